"""Questions to any policy; those about batches reach the innermost one."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from seqdata import (
    TBPTT,
    Bucketed,
    Curriculum,
    Fixed,
    Mix,
    Packed,
    Part,
    Segments,
    Sorted,
    TokenBudget,
    Weighted,
    Windows,
    Zip,
)
from seqdata.index import SequenceIndex
from seqdata.planning.build import describe_policy
from seqdata.planning.policy import (
    as_policy,
    balance_ranks,
    continues_passes,
    disable_shuffle,
    find_planned,
    find_varying,
    group_updates,
    has_draws,
)

LENGTHS = {"books": [3, 1, 2, 2, 5, 4, 1], "code": [5, 4, 2]}
INDEX = SequenceIndex.from_parts(
    {name: SequenceIndex.from_lengths(lengths) for name, lengths in LENGTHS.items()}
)
PARTS = {
    "books": Part(7, Weighted(Fixed(1), [5, 0, 1, 1, 1, 0, 9], draws=40)),
    "code": Part(3, Curriculum(Weighted(Bucketed(1), draws=9), max_length=[(0, 4)])),
}
MIXED = Weighted(Bucketed(1), [1.0, 5, 1, 1, 9, 1, 1, 1, 1, 1])


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_mixture_in_the_datas_order_plays_each_sequence_of_a_weighted_part_once(epoch):
    """Of each part's own epoch; the weights of parts hold as ever."""
    mix = disable_shuffle(Mix({**PARTS, "code": Part(3, Weighted(Sorted(1)))}, batches=60))
    assert mix.policies == {"books": Fixed(1, shuffle=False), "code": Sorted(1, shuffle=False)}
    plan = mix.plan(INDEX, seed=1, epoch=epoch)
    played: dict[tuple[str, int], list[int]] = {}
    for number, label in enumerate(plan.label_parts(range(60))):
        played.setdefault(tuple(label), []).append(int(plan.batch(number).spans[0, 0]))
    for part, due in (("books", list(range(7))), ("code", [7, 8, 9])):
        passes = [sorted(numbers) for (name, _), numbers in sorted(played.items()) if name == part]
        assert len(passes) > 4
        assert all(numbers == due for numbers in passes[1:-1])  # others: cut off by the epoch


def test_rows_of_a_mixture_in_the_datas_order_are_not_drawn_by_weight():
    mix = Mix({"books": 1, "code": 1}, MIXED, rows=True, shuffle=False)
    assert not mix.varies
    counts = Counter(mix.plan(INDEX, seed=1, epoch=0).spans[:, 0].tolist())
    assert {counts[number] for number in range(7)} == {0, 1}
    assert {counts[number] for number in range(7, 10)} == {1, 2}


def test_the_policy_within_is_what_evaluates():
    assert disable_shuffle(Curriculum(Weighted(Bucketed(3)), max_length=[(0, 4)])) == Bucketed(
        3, shuffle=False
    )
    assert disable_shuffle(Sorted(4)) == Sorted(4, shuffle=False)
    assert has_draws(Curriculum(Weighted(Bucketed(3)), max_length=[(0, 4)]))
    assert not has_draws(Bucketed(3))


def test_epochs_that_vary_are_found_under_policies_around_them():
    rising, chunks = Weighted(TokenBudget(30)), TBPTT(2, lambda epoch: 4 + epoch)
    assert find_varying(Segments(rising, 4)) is rising
    assert find_varying(chunks) is chunks
    assert find_varying(Curriculum(Bucketed(3), [(0, 4)], batches=5)) is None


@pytest.mark.parametrize("batches", [1, 3, 4])
def test_the_batches_of_an_update_are_of_one_part(batches):
    lengths = np.random.default_rng(0).integers(1, 9, size=200)
    parts = {name: SequenceIndex.from_lengths(lengths) for name in ("a", "b", "c")}
    index = SequenceIndex.from_parts(parts)
    mix = Mix({"a": 5, "b": 3, "c": 1}, Fixed(2), batches=60)
    plan = group_updates(mix, batches).plan(index, seed=3, epoch=1)
    labels = [label.part for label in plan.label_parts(range(60))]
    groups = [set(labels[first : first + batches]) for first in range(0, 60, batches)]
    assert all(len(group) == 1 for group in groups)
    changes = sum(a != b for a, b in pairwise(groups))
    assert changes > 60 // batches // 3  # the next group is chosen by itself
    given = Mix(mix.parts, Fixed(2), batches=60, batches_per_update=batches)
    assert (given.plan(index, seed=3, epoch=1).spans == plan.spans).all()


def test_a_number_of_the_mixtures_own_stays_and_others_have_none():
    own = Mix({"a": 1}, Fixed(2), batches_per_update=6)
    assert group_updates(own, 4) == own
    assert group_updates(TokenBudget(30), 4) == TokenBudget(30)
    assert group_updates(Weighted(Fixed(2)), 4) == Weighted(Fixed(2))
    rising = Curriculum(Mix({"a": 1}, Fixed(2)), max_length=[(0, 4)])
    grouped = group_updates(rising, 4)
    assert isinstance(grouped, Curriculum)
    assert grouped.policy.batches_per_update == 4
    assert grouped.max_length == rising.max_length


WRAPPED = [
    Bucketed(2),
    Sorted(2),
    TokenBudget(9),
    Weighted(Bucketed(2), draws=9),
    Curriculum(Bucketed(2), [(0, 4)]),
    Segments(Weighted(Bucketed(2)), 6),
    Mix({"a": 1}, Bucketed(2), batches=8),
    Segments(Mix({"a": 1}, Bucketed(2), batches=8), 4),
    Curriculum(Mix({"a": 1}, Bucketed(2)), [(0, 4)]),
    Zip({"a": Weighted(Bucketed(2)), "b": Fixed(2)}),
]


@pytest.mark.parametrize("policy", WRAPPED, ids=str)
def test_ranks_reach_what_orders_batches_through_policies_around_it(policy):
    made = balance_ranks(policy, 4)
    assert type(made) is type(policy)
    assert "balance_ranks=None" in describe_policy(policy)
    assert "balance_ranks=4" in describe_policy(made)
    assert "balance_ranks=None" not in describe_policy(made)
    assert balance_ranks(made, 2) == made  # its own stays


def test_what_orders_nothing_by_length_has_no_ranks():
    for policy in (Fixed(2), Packed(2, 9), Windows(3), Weighted(Fixed(2)), TBPTT(2, 4)):
        assert balance_ranks(policy, 4) == policy


def test_a_policy_of_ones_own_is_left_as_it_is():
    class Own:
        axis = "time"

        def plan(self, index, *, seed, epoch):
            return Bucketed(2).plan(index, seed=seed, epoch=epoch)

        def num_batches(self, index):
            return Bucketed(2).num_batches(index)

    own = Own()
    assert balance_ranks(own, 4) is own
    assert group_updates(own, 4) is own
    asked = as_policy(own)
    members = ("varies", "policies", "cuts_windows", "draws_sequences", "zips_parts")
    members += ("changes_weights", "importance", "random", "inner_policy", "horizon")
    assert not any(getattr(asked, name) for name in members)
    index = SequenceIndex.from_lengths([3, 1, 2])
    assert asked.axis == "time"
    assert asked.count_batches(index, seed=4, epoch=1) == len(asked.plan(index, seed=4, epoch=1))
    assert asked.count_planned(index) == (3, 6)
    assert find_planned(index, own).all()


@pytest.mark.parametrize("member", ["num_batches_of", "num_batches_drawn", "count_batches"])
def test_a_policy_of_ones_own_may_count_batches_as_in_older_releases(member):
    class Varying:
        axis = "time"
        varies = True

        def num_batches(self, index):
            return 1

    def count(self, index, epoch, seed=0):
        return 10 * seed + epoch

    setattr(Varying, member, count)
    counted = as_policy(Varying()).count_batches(SequenceIndex.from_lengths([1]), seed=2, epoch=3)
    assert counted == (3 if member == "num_batches_of" else 23)


def test_what_is_said_of_policies():
    mix, zipped = Mix({"a": 1}, Fixed(1), batches=1), Zip({"a": Fixed(1), "b": Fixed(2)})
    assert mix.policies.keys() == {"a"}
    assert zipped.policies.keys() == {"a", "b"}
    assert zipped.zips_parts
    assert not mix.zips_parts
    assert Windows(4, horizon=1).horizon == 1
    assert Windows(4).cuts_windows
    assert not Fixed(2).cuts_windows
    assert Weighted(TokenBudget(8), np.ones(3)).varies
    assert not Fixed(2).varies


@pytest.mark.parametrize(
    ("policy", "continues"),
    [
        (Bucketed(2), False),
        (Weighted(Bucketed(2)), False),
        (Curriculum(Bucketed(2), [(0, 4)]), False),
        (Curriculum(Bucketed(2), [(0, 4)], batches=5), True),
        (Curriculum(Bucketed(2), [(0, 4)], segment=5), True),
        (Segments(Weighted(Bucketed(2), draws=9), 3), False),
        (Mix({"a": 1}, Bucketed(2)), True),
        (Segments(Mix({"a": 1}, Bucketed(2), batches=8), 4), True),
        (Mix({"a": 1}, Bucketed(2), rows=True), False),
    ],
    ids=str,
)
def test_passes_that_go_on_over_the_end_of_an_epoch(policy, continues):
    assert continues_passes(policy) is continues
