"""A limit of length that is raised from epoch to epoch, and what is known of epochs before."""

import numpy as np
import pytest

import seqdata
from seqdata.errors import ConfigError, PlanError
from seqdata.index import SequenceIndex
from seqdata.planning.build import describe_policy
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix, Part
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata.policies.windows import Windows

LENGTHS = np.random.default_rng(0).integers(1, 100, 300)
RULES = [(0, 20), (2, 50), (3, None)]
INNER = [Fixed(4), Bucketed(4), TokenBudget(128), Packed(2, 128)]


def index_of(lengths=LENGTHS):
    return SequenceIndex.from_lengths(lengths)


@pytest.mark.parametrize("inner", INNER, ids=lambda policy: type(policy).__name__)
def test_an_epoch_has_the_sequences_within_its_limit(inner):
    policy = Curriculum(inner, max_length=RULES)
    for epoch, limit in enumerate([20, 20, 50, 100, 100]):
        plan = policy.plan(index_of(), seed=3, epoch=epoch)
        assert sorted(plan.spans[:, 0]) == np.flatnonzero(limit >= LENGTHS).tolist()
        assert plan.report.dropped.tolist() == np.flatnonzero(limit < LENGTHS).tolist()
        assert len(plan) == policy.count_batches(index_of(), seed=0, epoch=epoch)
    assert len(policy.plan(index_of(), seed=3, epoch=0)) == policy.num_batches(index_of())
    assert policy.varies


def test_without_a_limit_an_epoch_is_that_of_the_inner_policy():
    policy = Curriculum(Bucketed(4), max_length=RULES)
    plan, inner = (one.plan(index_of(), seed=1, epoch=7) for one in (policy, Bucketed(4)))
    assert plan.spans.tolist() == inner.spans.tolist()
    assert plan.fingerprint == inner.fingerprint


def test_a_function_of_the_epoch_may_say_the_limit():
    policy = Curriculum(Fixed(4), by=lambda epoch: None if epoch > 4 else 10 * (epoch + 1))
    for epoch in range(7):
        longest = policy.plan(index_of(), seed=0, epoch=epoch).spans[:, 2].max()
        assert longest <= (10 * (epoch + 1) if epoch <= 4 else 99)
    assert longest == LENGTHS.max()


def test_longer_ones_are_cut_where_the_policy_says_so():
    cut = Curriculum(Fixed(4, too_long="truncate", max_length=64), max_length=RULES)
    plans = [cut.plan(index_of(), seed=0, epoch=epoch) for epoch in (0, 2, 3)]
    assert [int(plan.spans[:, 2].max()) for plan in plans] == [20, 50, 64]
    assert [len(plan.spans) for plan in plans] == [300, 300, 300]
    split = Curriculum(Fixed(4, too_long="split", max_length=64), max_length=RULES)
    plan = split.plan(index_of(), seed=0, epoch=0)
    assert (plan.spans[:, 2] - plan.spans[:, 1]).sum() == LENGTHS.sum()


def test_a_limit_of_the_policys_own_holds_in_every_epoch():
    policy = Curriculum(Fixed(4, max_length=30, too_long="drop"), max_length=RULES)
    longest = [policy.plan(index_of(), seed=0, epoch=k).spans[:, 2].max() for k in (0, 2, 3)]
    assert longest == [20, 30, 30]


def test_what_a_later_epoch_would_refuse_is_told_before_the_run():
    policy = Curriculum(TokenBudget(60), max_length=[(0, 20), (5, None)])
    with pytest.raises(PlanError, match="sequences are longer than `max_tokens=60`"):
        policy.num_batches(index_of())
    with pytest.raises(PlanError, match=r"epoch 3 must have a sequence of at most 5 .* none of 2"):
        Curriculum(Fixed(2), max_length=[(0, 8), (3, 5)]).num_batches(index_of([7, 9]))
    with pytest.raises(PlanError, match="epoch 1 must have a sequence of at most 5 timesteps"):
        Curriculum(Fixed(2), by=lambda _: 5).plan(index_of([7, 9]), seed=0, epoch=1)
    assert Curriculum(Fixed(2), max_length=RULES).num_batches(index_of([])) == 0


def test_draws_of_the_allowed_keep_the_number_of_batches():
    weights = np.arange(300) % 5
    policy = Curriculum(Weighted(Bucketed(4), weights, draws=90), max_length=RULES)
    assert not policy.varies
    for epoch, limit in enumerate([20, 20, 50, 100]):
        plan = policy.plan(index_of(), seed=0, epoch=epoch)
        assert len(plan) == policy.num_batches(index_of()) == 23
        assert LENGTHS[plan.spans[:, 0]].max() <= limit
        assert len(plan.spans) == 90
    assert Curriculum(Weighted(Bucketed(4), weights), max_length=RULES).varies
    assert Curriculum(Weighted(TokenBudget(200), draws=9), max_length=RULES).varies


def test_a_drawn_number_of_batches_follows_the_seed():
    policy = Curriculum(Weighted(TokenBudget(128), draws=90), max_length=RULES)
    for seed in range(4):
        known = policy.count_batches(index_of(), seed=seed, epoch=2)
        assert len(policy.plan(index_of(), seed=seed, epoch=2)) == known


def test_the_parts_of_a_mixture_are_limited_each():
    mix = Mix({"a": 1, "b": Part(1, TokenBudget(128))}, Fixed(4), batches=40)
    policy = Curriculum(mix, max_length=RULES)
    index = SequenceIndex.from_parts({"a": index_of(), "b": index_of(LENGTHS[::-1])})
    assert not policy.varies
    for epoch, limit in ((0, 20), (2, 50), (4, 100)):
        plan = policy.plan(index, seed=0, epoch=epoch)
        assert len(plan) == 40
        assert plan.spans[:, 2].max() <= limit


def test_the_text_of_a_policy_has_its_rules():
    policy = Curriculum(Fixed(4), max_length=[[0, 8], [2, None]])
    assert describe_policy(policy) == (
        f"Curriculum(policy={describe_policy(Fixed(4))}, max_length=((0, 8), (2, None)), by=None, "
        "segment=None, batches=None)"
    )
    assert hash(policy) == hash(Curriculum(Fixed(4), max_length=((0, 8), (2, None))))
    assert seqdata.Curriculum is Curriculum


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "exactly one of `max_length` and `by` must be given, but neither is"),
        ({"max_length": RULES, "by": len}, "`max_length` and `by` must be given, but both are"),
        ({"by": 5}, "`by` must be a function of the epoch, but is 5"),
        ({"max_length": []}, r"`max_length` must be pairs of an epoch and a length, but is \[\]"),
        ({"max_length": 256}, "`max_length` must be pairs of an epoch and a length, but is 256"),
        ({"max_length": [(0, 1, 2)]}, r"must be pairs of an epoch and a length, but is \(0, 1, 2"),
        ({"max_length": [256, 512]}, "must be pairs of an epoch and a length, but is 256"),
        (
            {"max_length": [(1, 256)]},
            "with 0 as the first, but is 1",
        ),
        (
            {"max_length": [(0, 9), (0, 10)]},
            "epochs must be increasing, .*, but is 0, 0",
        ),
        ({"max_length": [(0.5, 9)]}, "an epoch must be an integer, but is 0.5"),
        ({"max_length": [(0, 0)]}, "of epoch 0 must be an integer of at least 1, or None, but is"),
        ({"max_length": [(0, 2.5)]}, "must be an integer of at least 1, or None, but is 2.5"),
        ({"policy": Windows(4), "max_length": RULES}, "Windows has no max_length and too_long"),
        ({"policy": TBPTT(2, 4), "max_length": RULES}, "TBPTT has no max_length and too_long"),
        ({"policy": Weighted(Windows(4)), "max_length": RULES}, "Windows has no max_length"),
        ({"policy": "fixed", "max_length": RULES}, "must have the options max_length and too_long"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        Curriculum(**{"policy": Fixed(4), **arguments})


def test_a_function_that_gives_no_length_is_refused():
    policy = Curriculum(Fixed(4), by=lambda epoch: 5 - 5 * epoch)
    with pytest.raises(ConfigError, match="`by` of epoch 1 must be an integer of at least 1"):
        policy.plan(index_of(), seed=0, epoch=1)
