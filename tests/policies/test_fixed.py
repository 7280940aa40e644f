"""Policies ``fixed``, ``sorted`` and ``bucketed``: batches of one size in three orders."""

import numpy as np
import pytest

from seqdata.errors import ConfigError, PlanError
from seqdata.index import SequenceIndex
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata_testing.plans import check_policy
from seqdata_testing.sharing import check_elastic, check_resume, check_shares

INDEX = SequenceIndex.from_lengths(np.random.default_rng(0).integers(1, 30, 103))


def numbers(plan):
    return [plan.batch(k).spans[:, 0].tolist() for k in range(len(plan))]


def test_it_is_a_policy():
    check_policy(Fixed(4), INDEX, shuffled=True)
    check_policy(Fixed(4, shuffle=False), INDEX, shuffled=False)


def test_its_batches_are_shared_and_resumed():
    plan = Fixed(4).plan(INDEX, seed=1, epoch=1)
    check_shares(plan, 3)
    check_resume(plan, 3, [2, 5])
    check_elastic(plan, [(2, 3), (3, 1), (1, 2)])


def test_all_batches_but_the_last_are_full():
    sizes = [len(one) for one in numbers(Fixed(4).plan(INDEX, seed=0, epoch=0))]
    assert sorted(sizes, reverse=True) == [4] * 25 + [3]
    assert Fixed(4).num_batches(INDEX) == 26


def test_without_shuffling_it_is_the_order_of_the_data():
    plan = Fixed(4, shuffle=False).plan(INDEX, seed=7, epoch=3)
    assert [one for batch in numbers(plan) for one in batch] == list(range(103))


def test_lengths_do_not_matter():
    other = SequenceIndex.from_lengths(INDEX.lengths[::-1].copy())
    plans = [Fixed(4).plan(index, seed=0, epoch=0) for index in (INDEX, other)]
    assert numbers(plans[0]) == numbers(plans[1])


def test_a_batch_needs_a_row():
    with pytest.raises(ConfigError, match=r"'fixed': `batch_size` .*at least 1.* is 0"):
        Fixed(0)


def test_unshuffled_batches_are_in_falling_order_ties_by_number():
    plan = Sorted(2, shuffle=False).plan(SequenceIndex.from_lengths([1, 3, 2, 3]), seed=0, epoch=0)
    assert plan.spans[:, 0].tolist() == [1, 3, 2, 0]


def test_the_same_rows_meet_in_every_epoch():
    index = SequenceIndex.from_lengths([k % 13 + 1 for k in range(100)])
    meetings = [
        {frozenset(plan.batch(k).spans[:, 0].tolist()) for k in range(len(plan))}
        for plan in (Sorted(8).plan(index, seed=0, epoch=epoch) for epoch in range(3))
    ]
    assert meetings[0] == meetings[1] == meetings[2]


def test_batch_mates_have_like_lengths():
    index = SequenceIndex.from_lengths(np.random.default_rng(0).integers(1, 1000, 2000))
    plan = Bucketed(16).plan(index, seed=0, epoch=0)
    assert plan.report.waste < 1.02


def test_other_rows_meet_in_the_next_epoch():
    index = SequenceIndex.from_lengths(np.full(512, 30))
    plans = [Bucketed(16).plan(index, seed=0, epoch=epoch) for epoch in (1, 2)]
    mates = [
        {frozenset(plan.batch(k).spans[:, 0].tolist()) for k in range(len(plan))} for plan in plans
    ]
    assert not mates[0] & mates[1]


def test_a_length_that_would_overflow_is_refused():
    index = SequenceIndex.from_lengths(np.array([1, 1 << 32], dtype=np.uint64))
    with pytest.raises(
        PlanError, match=r"must have fewer than 2\*\*32 timesteps, but one has 4294967296"
    ):
        Bucketed(2).plan(index, seed=0, epoch=0).batch(0)
