"""Policy ``zip``: who leads, and what is refused; each message names the part and what to do."""

import pickle

import pytest

from seqdata import (
    TBPTT,
    Bucketed,
    ConfigError,
    Curriculum,
    Fixed,
    Mix,
    Packed,
    PlanError,
    Segments,
    SequenceIndex,
    TokenBudget,
    Weighted,
    Windows,
    Zip,
)
from seqdata.planning.build import describe_policy
from seqdata.planning.policy import disable_shuffle
from seqdata.resolve import resolve_policy
from tests.policies.mix_samples import make_index


@pytest.mark.parametrize(
    ("lead", "count", "expected"), [("a", 3, "a"), ("b", 5, "b"), (None, 5, "b")]
)
def test_the_part_that_leads_counts_the_steps(lead, count, expected):
    index = make_index(a=12, b=10, c=1)
    policy = Zip({"c": Fixed(1), "a": Fixed(4), "b": Fixed(2)}, lead=lead)
    assert policy.num_batches(index) == len(policy.plan(index, seed=0, epoch=2)) == count
    assert policy.find_lead(index) == expected


def test_of_equal_parts_the_first_leads():
    assert Zip({"b": Fixed(2), "a": Fixed(1)}).find_lead(make_index(a=3, b=6)) == "a"


def test_it_is_plain_data():
    policy = Zip({"a": Bucketed(2), "b": TokenBudget(30)}, lead="a")
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(Zip({"a": Bucketed(2), "b": TokenBudget(30)}, lead="a"))
    assert describe_policy(policy).startswith("Zip(parts={'a': Bucketed(batch_size=2, ")
    assert resolve_policy("zip", {"parts": policy.parts, "lead": "a"}) == policy
    assert policy.axis == "time"


def test_without_shuffle_every_part_is_in_its_order():
    policy = Zip({"a": Fixed(2), "b": Weighted(Fixed(2), [1, 2, 3])})
    plain = disable_shuffle(policy)
    assert plain.policies == {name: Fixed(2, shuffle=False) for name in "ab"}
    spans = plain.plan(make_index(a=4, b=3), seed=0, epoch=0).batch(0).spans
    assert spans[:, 0].tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (({},), r"`parts` must be a mapping of names to policies, but is \{\}"),
        (([Fixed(2)],), r"`parts` must be a mapping of names to policies"),
        (({1: Fixed(2)},), r"a part's name must be a string, but is 1"),
        (({"a": "fixed"},), r"policy 'zip': the policy of part 'a' must be a policy, but is 'fix"),
        (({"a": Fixed},), r"the policy of part 'a' must be a policy"),
        (({"a": 0.5},), r"the policy of part 'a' must be a policy, but is 0.5"),
        (({"a": TBPTT(4, 8)},), r"batches of part 'a' must be independent, but those of TBPTT"),
        (
            ({"a": Weighted(TokenBudget(30))},),
            r"part 'a' must all have the same number of batches, but those of Weighted vary",
        ),
        (
            ({"a": Curriculum(Fixed(2), max_length=[(0, 3)])},),
            r"epochs of part 'a' must .* those of Curriculum vary. Pass a policy whose",
        ),
        (
            ({"a": Segments(Weighted(Fixed(2)), batches=2)},),
            r"weights of part 'a' must not change within an epoch, but those of Segments may",
        ),
        (({"a": Mix({"b": 1}, Fixed(2))},), r"part 'a' must batch one store, but is a Mix"),
        (({"a": Zip({"b": Fixed(2)})},), r"part 'a' must batch one store, but is a Zip"),
        (
            ({"labelled": Fixed(2), "other": Fixed(1)}, "labeled"),
            r"of 'labelled', 'other', but is 'labeled'\. did you mean 'labelled'\?$",
        ),
        (({"a": Fixed(2)}, "x"), r"`lead` must be one of 'a', but is 'x'. Pass a part's name"),
    ],
)
def test_what_cannot_be_zipped_is_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        Zip(*arguments)


def test_parts_and_data_have_the_same_names():
    with pytest.raises(ConfigError, match=r"part 'cod' must be in the data, .* mean 'code'"):
        Zip({"books": Fixed(1), "cod": Fixed(2)}).num_batches(make_index(books=2, code=2))
    with pytest.raises(ConfigError, match=r"'code' of the data must have a policy, but has none"):
        Zip({"books": Fixed(1)}).num_batches(make_index(books=2, code=2))


def test_one_store_cannot_be_zipped():
    with pytest.raises(ConfigError, match=r"policy 'zip': the data must be several named stores"):
        Zip({"a": Fixed(1)}).plan(SequenceIndex.from_lengths([1, 2]), seed=0, epoch=0)


def test_an_empty_part_is_named():
    index = SequenceIndex.from_parts(
        {"full": SequenceIndex.from_lengths([1]), "void": SequenceIndex.from_lengths([0, 0])}
    )
    for lead in (None, "full", "void"):
        with pytest.raises(
            PlanError, match=r"part 'void' must have .* its policy makes no batch from 2 sequences"
        ):
            Zip({"full": Fixed(2), "void": Packed(2, 9)}, lead=lead).num_batches(index)


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_step_reads_ahead_as_far_as_any_of_its_parts(names):
    policies = {"a": Windows(4, batch_size=2, horizon=3), "b": Fixed(2)}
    lengths = SequenceIndex.from_lengths([20, 20])
    index = SequenceIndex.from_parts(dict.fromkeys(names, lengths))
    policy = Zip({name: policies[name] for name in names})
    assert policy.plan(index, seed=0, epoch=0).lookahead == 3


@pytest.mark.parametrize(("lead", "axis"), [(None, "time"), ("a", "time"), ("b", "text")])
def test_its_axis_is_that_of_the_part_that_leads(lead, axis):
    assert Zip({"a": Fixed(2), "b": Fixed(2, axis="text")}, lead=lead).axis == axis
