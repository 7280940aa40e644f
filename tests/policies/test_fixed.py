"""Policy ``fixed``: batches of one size in a random order, whatever the lengths."""

import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.policies.fixed import Fixed
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
