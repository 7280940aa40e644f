"""A plan carries the digest of what it was made from, and the report of what it left out."""

from dataclasses import dataclass, fields, replace
from functools import partial, update_wrapper

import pytest

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.planning.build import count_block_batches, describe_policy, make_fingerprint
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.token_budget import TokenBudget

INDEX = SequenceIndex.from_lengths([3, 0, 9, 4, 5])


def squared(lengths_of):
    return lengths_of["time"] ** 2


@dataclass(frozen=True)
class Costly:
    cost: object


class Plain:
    """A policy that is no dataclass."""


def test_a_policy_is_told_with_all_that_determines_a_plan():
    assert describe_policy(Costly(3)) == "Costly(cost=3)"
    assert describe_policy(Costly(squared)) == "Costly(cost=squared)"  # in every process
    assert describe_policy(Plain()) == "Plain"


@dataclass
class Times:
    factor: int

    def __call__(self, lengths_of):
        return lengths_of["time"] * self.factor


class Opaque:
    """Told by its class: its address differs from process to process."""

    def __call__(self, lengths_of):
        return lengths_of["time"]


def test_a_function_with_arguments_and_an_object_that_is_called_are_told():
    assert describe_policy(Costly(partial(squared))) == "Costly(cost=partial(squared))"
    given = partial(max, 2, "two", Times(3), key=squared, of={"a": Opaque()})
    text = "partial(max, 2, 'two', Times(factor=3), key=squared, of={'a': Opaque})"
    assert describe_policy(Costly(given)) == f"Costly(cost={text})"
    assert describe_policy(Costly(Times(2))) == "Costly(cost=Times(factor=2))"
    assert describe_policy(Costly(Opaque())) == "Costly(cost=Opaque)"
    assert describe_policy(Costly(Plain())) == "Costly(cost=Plain)"
    for policy in (TokenBudget(90, cost=partial(squared)), TokenBudget(99, cost=Times(3))):
        assert len(policy.plan(INDEX, seed=0, epoch=0)) == policy.num_batches(INDEX)


def test_what_has_a_name_is_told_by_it_as_ever():
    named = update_wrapper(partial(squared), squared)
    options = (named, Opaque().__call__, int, len, TokenBudget.plan)
    texts = ("squared", "Opaque.__call__", "int", "len", "BlockPolicy.plan")
    for option, text in zip(options, texts, strict=True):
        assert describe_policy(Costly(option)) == f"Costly(cost={text})"


def test_options_are_told_where_they_are_as_they_come_too():
    text = describe_policy(Sorted(4))
    names = [field.name for field in fields(Sorted)]
    assert [one.partition("=")[0] for one in text[len("Sorted(") : -1].split(", ")] == names
    assert text.endswith("worst_first=True, keep='first', balance_ranks=None)")
    told = {describe_policy(Sorted(4, balance_ranks=ranks)) for ranks in (None, 1, 2)}
    assert len(told) == 3


def test_each_part_of_what_a_plan_is_made_from_changes_the_digest():
    made = {
        make_fingerprint(INDEX, Fixed(2), 0, 0),
        make_fingerprint(SequenceIndex.from_lengths([3, 0, 9, 4, 6]), Fixed(2), 0, 0),
        make_fingerprint(INDEX, Fixed(3), 0, 0),
        make_fingerprint(INDEX, Bucketed(2), 0, 0),
        make_fingerprint(INDEX, Fixed(2), 1, 0),
        make_fingerprint(INDEX, Fixed(2), 0, 1),
    }
    assert len(made) == 6
    assert {len(one) for one in made} == {32}
    assert make_fingerprint(INDEX, Fixed(2), 0, 0) in made


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"too_long": "drop"}, {"dropped": [1, 2, 4]}),
        ({"too_long": "split"}, {"dropped": [1], "split": [2, 4]}),
        ({"too_long": "truncate"}, {"dropped": [1], "truncated": [2, 4]}),
    ],
)
def test_a_report_names_the_sequences_that_were_changed(options, changed):
    report = Fixed(2, max_length=4, **options).plan(INDEX, seed=0, epoch=0).report
    found = {name: getattr(report, name) for name in ("dropped", "split", "truncated")}
    assert {name: list(one) for name, one in found.items() if len(one)} == changed


def test_without_a_limit_only_what_is_empty_is_dropped():
    report = Fixed(2).plan(INDEX, seed=0, epoch=0).report
    assert (list(report.dropped), len(report.split), len(report.truncated)) == ([1], 0, 0)


@pytest.mark.parametrize("policy", [Fixed(2), Bucketed(2), TokenBudget(9)], ids=str)
def test_batches_are_counted_without_a_plan(policy):
    assert policy.num_batches(INDEX) == len(policy.plan(INDEX, seed=3, epoch=5))
    counted = count_block_batches(policy._select_items(INDEX), policy._make_cutter())
    assert counted == len(replace(policy, shuffle=False).plan(INDEX, seed=0, epoch=0))


@pytest.mark.parametrize("numbers", [{"seed": -1}, {"seed": 1 << 64}, {"epoch": -1}])
def test_seed_and_epoch_must_be_in_range(numbers):
    (name,) = numbers
    with pytest.raises(ConfigError, match=name):
        Fixed(2).plan(INDEX, **{"seed": 0, "epoch": 0, **numbers})
