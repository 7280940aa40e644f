"""Order and balance: neighbours for the ranks of a step, the dearest first, no batch lost."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from seqdata.index import SequenceIndex
from seqdata.planning.randomness import Draw, shuffle_batches
from seqdata.policies.bucketed import Bucketed
from seqdata.policies.fixed import Fixed
from seqdata.policies.sorted import Sorted
from seqdata.policies.token_budget import TokenBudget
from seqdata_testing.blocks import SmallBlocks
from seqdata_testing.generators import lengths
from tests.properties.counts import examples

pytestmark = pytest.mark.timeout(3600)  # all of a file's cases, at night
arranged = st.one_of(
    st.builds(Sorted, st.integers(1, 4), worst_first=st.booleans()),
    st.builds(Bucketed, st.integers(1, 4), worst_first=st.booleans()),
    st.builds(
        TokenBudget,
        st.integers(1, 60),
        too_long=st.sampled_from(("split", "drop")),
        worst_first=st.booleans(),
    ),
)
many_lengths = st.one_of(
    lengths(37), lengths(64), st.integers(0, 300).flatmap(lengths), lengths(1200)
)


def group_of(batches):
    """The largest power of two that is at most 64 and at most a sixteenth of the batches."""
    group = 1
    while 2 * group <= 64 and 2 * group * 16 <= batches:
        group *= 2
    return group


def longest_rows(plan):
    spans, firsts = plan.spans, plan.offsets[:-1]
    return np.maximum.reduceat(spans[:, 2] - spans[:, 1], firsts) if len(plan) else firsts


def costs(plan):
    return longest_rows(plan) * np.diff(plan.offsets)


@examples(5, here=75)
@given(arranged, many_lengths, st.integers(0, 2), st.integers(0, 1 << 40))
@pytest.mark.slow
def test_ranks_of_a_step_hold_neighbours_and_the_rest_is_one_slice(policy, given, epoch, seed):
    longest = longest_rows(policy.plan(SequenceIndex.from_lengths(given), seed=seed, epoch=epoch))
    group = group_of(len(longest))
    whole = len(longest) - len(longest) % group
    ranked = np.sort(longest)
    rest = np.sort(longest[whole:])
    slices = [
        cut
        for cut in range(len(ranked) - len(rest) + 1)
        if np.array_equal(ranked[cut : cut + len(rest)], rest)
    ]
    assert slices
    kept = np.delete(ranked, np.arange(slices[0], slices[0] + len(rest)))
    size = 1
    while size <= group:
        steps = np.sort(longest[:whole].reshape(-1, size), axis=1)
        assert sorted(steps.tolist()) == sorted(kept.reshape(-1, size).tolist())
        size *= 2


@examples(2, here=80)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=150), st.data(), st.integers(0, 1 << 40))
def test_the_batch_that_leads_is_first_and_each_comes_once(longest, data, seed):
    lead = data.draw(st.one_of(st.none(), st.integers(0, len(longest) - 1)))
    order = shuffle_batches(np.array(longest), Draw(seed, 0), block=3, lead=lead)
    assert sorted(order.tolist()) == list(range(len(longest)))
    assert lead is None or order[0] == lead


@examples(5, here=150)
@given(arranged, many_lengths, st.integers(0, 1 << 40))
@pytest.mark.slow
def test_epoch_0_begins_with_the_dearest_batch_and_counts_the_same(policy, given, seed):
    index = SequenceIndex.from_lengths(given)
    first, later = (policy.plan(index, seed=seed, epoch=epoch) for epoch in (0, 1))
    assert len(first) == len(later) == policy.num_batches(index)
    assume(policy.worst_first and len(first))
    paid = costs(first)
    assert paid[0] == paid.max()


@examples(5, here=75)
@example(Sorted(1), np.array([5] * 80 + [9] + [5] * 60), 64, 0)  # the longest, not in block 0
@example(TokenBudget(45), np.array([21, 27, 8, 6, 15, 16, 8, 13, 23, 15, 21, 26, 8, 14]), 11, 2)
@given(arranged, st.integers(0, 300).flatmap(lengths), st.integers(8, 200), st.integers(0, 1 << 40))
@pytest.mark.slow
def test_by_blocks_too_epoch_0_begins_with_the_dearest_batch(policy, given, max_block, seed):
    index = SequenceIndex.from_lengths(given)
    made = SmallBlocks(policy, max_block).plan(index, seed=seed, epoch=0)
    assume(len(made))
    paid = costs(made)
    assert paid[0] == paid.max()


@examples(2, here=80)
@given(
    st.sampled_from((Fixed, Sorted, Bucketed)),
    st.integers(0, 700),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 1 << 40),
)
def test_blocks_play_their_groups_first_and_the_short_one_last(kind, count, rows, epoch, seed):
    index = SequenceIndex.from_lengths(np.random.default_rng(seed).integers(1, 50, count))
    blocks = SmallBlocks(kind(rows), 1)
    size = blocks.cutter().block_items
    assert size == 64 * rows
    plan = blocks.plan(index, seed=seed, epoch=epoch)
    of_batch = [plan.batch(number).spans[:, 0] // size for number in range(len(plan))]
    assert all((one == one[0]).all() for one in of_batch)  # a batch lies in one block
    order = [int(one[0]) for one in of_batch]
    full, short = divmod(count, size)
    runs = [order[0], *(b for a, b in pairwise(order) if a != b)] if order else []
    assert sorted(runs[: full + bool(short)]) == list(range(full + bool(short)))
    if short and full:
        tail = -(-short // rows)
        assert order[len(order) - tail :] == [full] * tail
        assert runs.index(full) == full  # its groups come after those of all others


@examples(1, here=50)
@given(st.integers(25, 60), st.integers(60, 400), st.integers(33, 90), st.integers(0, 1 << 40))
def test_remainders_of_blocks_follow_in_the_order_of_their_groups(budget, count, block, seed):
    given = np.random.default_rng(seed).integers(15, 30, count)  # a row or two to a batch
    index = SequenceIndex.from_lengths(given)
    made = SmallBlocks(TokenBudget(budget, too_long="truncate"), block)
    plan = made.plan(index, seed=seed, epoch=1)
    order = [int(plan.batch(number).spans[0, 0]) // block for number in range(len(plan))]
    batches = {number: order.count(number) for number in set(order)}
    groups = {number: count - count % group_of(count) for number, count in batches.items()}
    seen = list(dict.fromkeys(order))
    due = [number for number in seen for _ in range(groups[number])]
    due += [number for number in seen for _ in range(batches[number] - groups[number])]
    assert order == due


@pytest.mark.parametrize("kind", [Fixed, Bucketed])
def test_blocks_of_the_same_lengths_are_not_shuffled_alike(kind):
    index = SequenceIndex.from_lengths(np.tile(np.arange(100, 164), 3))
    plan = SmallBlocks(kind(1), 1).plan(index, seed=3, epoch=2)
    numbers = plan.spans[:, 0]
    orders = [(numbers[numbers // 64 == block] % 64).tolist() for block in range(3)]
    assert all(sorted(order) == list(range(64)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]
