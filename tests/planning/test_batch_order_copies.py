"""Copies of a sequence go to different batches of about its length, where there are enough."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import Bucketed, Sorted, TokenBudget, Weighted, Windows
from seqdata.index import SequenceIndex
from seqdata.planning.batch_order import lengthen_copies, spread_copies
from seqdata.planning.blocks import BlockItems
from seqdata.planning.build import order_longest_first
from seqdata.planning.randomness import Draw
from seqdata.policies.fixed import _make_noisy_lengths
from seqdata.storage.memory import MemoryStore
from seqdata_testing.blocks import SmallBlocks
from seqdata_testing.plans import check_budget, check_constant_count
from tests.properties.counts import examples

ROWS = 32


def copies_of(bases):
    return SequenceIndex.from_lengths([1] * len(bases)).find_copies(np.asarray(bases))


def drawn(count=4000, seed=0, rare=0.05, times=20):
    """Return lengths and base numbers: some sequences come many times."""
    random = np.random.default_rng(seed)
    own = random.integers(500, 1500, count)
    repeats = np.where(random.random(count) < rare, times, 1)
    bases = np.repeat(np.arange(count), repeats)
    return own[bases], bases


def repeats_of(batches):
    """Return the share of rows that repeat another row of their batch."""
    return sum(len(one) - len(set(one.tolist())) for one in batches) / sum(map(len, batches))


def view_of(bases, lengths=None):
    own = np.random.default_rng(1).integers(50, 150, max(bases) + 1) if lengths is None else lengths
    store = MemoryStore.from_sequences([np.zeros(length) for length in own]).take(list(bases))
    return SequenceIndex.from_store(store)


def test_copies_are_numbered_and_know_the_first():
    copies = copies_of([4, 2, 4, 7, 2, 4])
    assert copies.numbers.tolist() == [0, 0, 1, 0, 1, 2]
    assert copies.firsts.tolist() == [0, 1, 0, 3, 1, 0]
    rising = copies_of([2, 2, 4, 4, 4, 7])
    assert rising.numbers.tolist() == [0, 1, 0, 1, 2, 0]
    assert rising.firsts.tolist() == [0, 0, 2, 2, 2, 5]
    assert [len(one) for one in copies_of([])] == [0, 0]


def test_copies_go_to_batches_of_their_own_and_none_is_lost():
    lengths, bases = drawn()
    members = order_longest_first(lengths)
    spread = spread_copies(members, lengths, copies_of(bases), ROWS)
    assert sorted(spread.tolist()) == list(range(len(lengths)))
    before, after = (
        [bases[one] for one in np.split(order, range(ROWS, len(order), ROWS))]
        for order in (members, spread)
    )
    assert repeats_of(before) > 0.3
    assert repeats_of(after) < 0.05


def test_a_copy_goes_to_longer_ones_by_a_fifth_of_the_mean_at_most():
    lengths, bases = drawn()
    members = order_longest_first(lengths)
    spread = spread_copies(members, lengths, copies_of(bases), ROWS)
    widths = np.repeat(np.maximum.reduceat(lengths[spread], np.arange(0, len(spread), ROWS)), ROWS)
    padding = widths[: len(spread)].sum() / lengths.sum()
    plain = np.maximum.reduceat(lengths[members], np.arange(0, len(members), ROWS)).sum() * ROWS
    assert padding < 1.08 * plain / lengths.sum()


def test_without_copies_the_order_stays():
    lengths = np.random.default_rng(0).integers(1, 99, 500)
    members, none = order_longest_first(lengths), copies_of(range(500))
    assert spread_copies(members, lengths, none, ROWS).tolist() == members.tolist()
    assert lengthen_copies(lengths, members, none, 300).tolist() == lengths.tolist()
    empty = np.empty(0, dtype=np.int64)
    assert spread_copies(empty, empty, copies_of([]), ROWS).tolist() == []
    assert lengthen_copies(empty, empty, copies_of([]), 300).tolist() == []


def test_more_copies_than_batches_are_dealt_evenly():
    """100 of one sequence, and 96 others of its length: 7 batches have about equally many."""
    bases = np.array([0] * 100 + [*range(1, 125)])
    lengths = np.full(len(bases), 50)
    lengths[100:] = np.random.default_rng(0).integers(50, 58, 124)
    members = order_longest_first(lengths)
    spread = spread_copies(members, lengths, copies_of(bases), ROWS)
    counts = [(bases[one] == 0).sum() for one in np.split(spread, range(ROWS, 224, ROWS))]
    assert max(counts) < ROWS
    before = [(bases[one] == 0).sum() for one in np.split(members, range(ROWS, 224, ROWS))]
    assert max(before) == ROWS


@examples(2, here=60)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.data())
def test_lengthened_copies_keep_to_a_budget(lengths, data):
    most = data.draw(st.integers(max(lengths), 900))
    bases = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=99)))
    own = np.array(lengths)[bases]
    longer = lengthen_copies(own, order_longest_first(own), copies_of(bases), most)
    assert (longer >= own).all()
    assert set(longer.tolist()) <= set(own.tolist())  # a length that there is
    first = copies_of(bases).numbers == 0
    assert (longer[first] == own[first]).all()


def plan_waste(plan):
    """Return the timesteps of each batch with padding."""
    return [int(plan.batch(k).lengths.max()) * len(plan.batch(k).lengths) for k in range(len(plan))]


POLICIES = [Bucketed(ROWS), Sorted(ROWS), TokenBudget(ROWS * 1000)]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_a_view_that_repeats_sequences_has_few_repeats_in_a_batch(policy):
    lengths, bases = drawn()
    index = view_of(bases, np.bincount(bases, weights=lengths).astype(int) // np.bincount(bases))
    assert index.has_copies
    plan = policy.plan(index, seed=0, epoch=1)
    batches = [bases[plan.batch(k).spans[:, 0]] for k in range(len(plan))]
    assert sorted(plan.spans[:, 0].tolist()) == list(range(len(bases)))
    assert repeats_of(batches) < 0.08
    apart = SequenceIndex.from_lengths(index.lengths)  # nothing is known of copies
    plain = policy.plan(apart, seed=0, epoch=1)
    by_length = [bases[plain.batch(k).spans[:, 0]] for k in range(len(plain))]
    assert repeats_of(by_length) > 0.2
    waste = [sum(plan_waste(one)) for one in (plan, plain)]
    assert waste[0] <= 1.1 * waste[1]


@pytest.mark.parametrize("most", [200, 1 << 18])
@pytest.mark.parametrize("policy", [Bucketed(4), Sorted(4), TokenBudget(600)], ids=str)
def test_counts_are_constant_where_sequences_come_repeatedly(policy, most):
    random = np.random.default_rng(3)
    index = view_of(random.integers(0, 90, 700).tolist())
    small = SmallBlocks(policy, most)
    check_constant_count(small, index, epochs=(0, 1, 2, 7), seeds=(0, 1))
    for epoch in range(3):
        plan = small.plan(index, seed=0, epoch=epoch)
        assert sorted(plan.spans[:, 0].tolist()) == list(range(700))
        if isinstance(policy, TokenBudget):
            check_budget(plan, 600, None)


def test_weighted_draws_are_apart():
    random = np.random.default_rng(0)
    lengths = random.integers(500, 10_000, 20_000)
    weights = np.where(random.random(20_000) < 0.03, 30.0, 1.0)
    index = SequenceIndex.from_lengths(lengths)
    for policy in (Bucketed(64), TokenBudget(64 * 5000)):
        plan = Weighted(policy, weights, draws=20_000).plan(index, seed=0, epoch=1)
        batches = [plan.batch(k).spans[:, 0] for k in range(len(plan))]
        assert repeats_of(batches) < 0.05
        assert sum(map(len, batches)) == 20_000


def test_copies_have_the_noise_of_the_first():
    """Else one that goes to longer ones meets another that noise has put there."""
    items = BlockItems(np.full(9, 1000), copies_of([0, 1, 2] * 3))
    keys = _make_noisy_lengths(items, Draw(0, 1), 0)
    assert keys[:3].tolist() == keys[3:6].tolist() == keys[6:].tolist()
    assert len(set(keys.tolist())) == 3


def test_has_copies_only_where_a_sequence_comes_repeatedly():
    def index_of(numbers):
        return view_of(numbers, np.full(10, 5))

    assert not index_of([3, 1, 2]).has_copies
    assert not index_of([1, 2, 3]).has_copies
    assert index_of([3, 1, 3]).has_copies
    assert index_of([1, 1, 3]).has_copies
    assert index_of([9, 1, 2, 9]).has_copies
    assert not SequenceIndex.from_lengths([1, 1]).has_copies


def test_windows_of_a_sequence_are_no_copies_that_are_moved():
    """They come in random order: few of a sequence meet anyway."""
    store = MemoryStore.from_sequences([np.zeros(100)] * 500)
    index = SequenceIndex.from_store(store)
    plan = Windows(10, batch_size=32, random=True, per_sequence=4).plan(index, seed=0, epoch=0)
    batches = [plan.batch(k).spans[:, 0] for k in range(len(plan))]
    assert repeats_of(batches) < 0.08
