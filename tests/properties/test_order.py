"""Order and balance: neighbours for the ranks of a step, the dearest first, no batch lost."""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from seqdata.index import SequenceIndex
from seqdata.planning.batch_order import order_batches
from seqdata.planning.blocks import split_blocks
from seqdata.planning.randomness import Draw
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.token_budget import TokenBudget
from seqdata_testing.blocks import SmallBlocks
from seqdata_testing.generators import lengths
from tests.properties.counts import examples

pytestmark = pytest.mark.timeout(3600)  # all of a file's cases, at night
ranks = st.one_of(st.integers(1, 8), st.sampled_from((6, 48, 64)))
shuffles = st.sampled_from((True, True, "blocks"))
common = {"shuffle": shuffles, "worst_first": st.booleans(), "balance_ranks": ranks}
arranged = st.one_of(
    st.builds(Sorted, st.integers(1, 4), **common),
    st.builds(Bucketed, st.integers(1, 4), **common),
    st.builds(
        TokenBudget, st.integers(1, 60), too_long=st.sampled_from(("split", "drop")), **common
    ),
)
many_lengths = st.one_of(
    lengths(37), lengths(64), st.integers(0, 300).flatmap(lengths), lengths(1200)
)


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
    group = policy.balance_ranks
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
    size = group
    while whole and size >= 1:
        steps = np.sort(longest[:whole].reshape(-1, size), axis=1)
        assert sorted(steps.tolist()) == sorted(kept.reshape(-1, size).tolist())
        if size % 2 or group & (group - 1):  # halves are whole where it is a power of 2
            break
        size //= 2


@examples(2, here=80)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=150), ranks, st.data())
def test_the_batch_that_leads_is_first_and_each_comes_once(longest, group, data):
    lead = data.draw(st.one_of(st.none(), st.integers(0, len(longest) - 1)))
    draw = Draw(data.draw(st.integers(0, 1 << 40)), 0)
    order = order_batches(np.array(longest), draw, block=3, group=group, lead=lead)
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
@example(  # the block with the highest bound has not the dearest batch
    TokenBudget(45),
    np.array([23, 28, 27, 17, 28, 29, 29, 7, 16, 20, 12, 14, 20, 25]),
    9,
    4,
)
@given(arranged, st.integers(0, 300).flatmap(lengths), st.integers(8, 200), st.integers(0, 1 << 40))
@pytest.mark.slow
def test_by_blocks_too_epoch_0_begins_with_the_dearest_batch(policy, given, max_block, seed):
    """Blocks of fewer batches than a group have none that could lead, where others have one."""
    index = SequenceIndex.from_lengths(given)
    small = SmallBlocks(policy, max_block)
    made = small.plan(index, seed=seed, epoch=0)
    assume(len(made))
    paid = costs(made)
    blocks = split_blocks(policy._select_items(index), small.cutter(), policy.shuffle)
    group, counts = (
        policy.balance_ranks or 1,
        [c.batches for c in small.cutter().count_batches(blocks)],
    )
    if min(counts) >= group or max(counts) < group:
        assert paid[0] == paid.max()
    else:
        assert paid[0] >= np.median(paid)


@examples(2, here=80)
@given(
    st.sampled_from((Fixed, Sorted, Bucketed)),
    st.integers(0, 700),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 9),
    st.integers(0, 1 << 40),
)
@pytest.mark.slow
def test_blocks_play_whole_groups_first_and_then_what_is_left(
    kind, count, rows, epoch, group, seed
):
    index = SequenceIndex.from_lengths(np.random.default_rng(seed).integers(1, 50, count))
    policy = kind(rows) if kind is Fixed else kind(rows, balance_ranks=group)
    small = SmallBlocks(policy, 1)
    blocks = split_blocks(policy._select_items(index), small.cutter(), True)
    plan = small.plan(index, seed=seed, epoch=epoch)
    of_batch = [
        [blocks.find(number) for number in plan.batch(k).spans[:, 0].tolist()]
        for k in range(len(plan))
    ]
    assert all(len(set(one)) == 1 for one in of_batch)  # a batch lies in one block
    order = np.array([one[0] for one in of_batch], dtype=np.int64)
    counts = np.bincount(order, minlength=len(blocks))
    assert counts.tolist() == [-(-(block.stop - block.first) // rows) for block in blocks]
    sizes = [len(one) for one in of_batch]
    if kind is Fixed:
        assert set(sizes[:-1]) <= {rows}  # the last may be short
        return
    whole = int((counts - counts % group).sum())
    groups = order[:whole].reshape(-1, group)
    assert (groups == groups[:, :1]).all()
    longest = longest_rows(plan)[:whole].reshape(-1, group)
    for block in range(len(blocks)):  # a step has neighbours in length, but for what is left
        own = np.sort(longest[groups[:, 0] == block], axis=1)
        own = own[np.lexsort((own[:, -1], own[:, 0]))] if len(own) else own
        assert (own[1:, 0] >= own[:-1, -1]).all()


@examples(1, here=50)
@given(
    st.integers(25, 60), st.integers(60, 400), st.integers(33, 90), ranks, st.integers(0, 1 << 40)
)
def test_remainders_of_blocks_follow_in_the_order_of_their_groups(budget, count, size, group, seed):
    given = np.random.default_rng(seed).integers(15, 30, count)  # a row or two to a batch
    index = SequenceIndex.from_lengths(given)
    policy = TokenBudget(budget, too_long="truncate", balance_ranks=group)
    small = SmallBlocks(policy, size)
    blocks = split_blocks(policy._select_items(index), small.cutter(), True)
    plan = small.plan(index, seed=seed, epoch=1)
    order = [blocks.find(int(plan.batch(number).spans[0, 0])) for number in range(len(plan))]
    counts = np.bincount(order, minlength=len(blocks))
    rests = counts % group
    whole = int((counts - rests).sum())
    played, tail = order[:whole], order[whole:]
    assert np.bincount(played, minlength=len(blocks)).tolist() == (counts - rests).tolist()
    main = [block for block in dict.fromkeys(played) if block != blocks.short]
    runs = [block for block in played if block != blocks.short]
    assert runs == [block for block in main for _ in range(counts[block] - rests[block])]
    last = [block for block in dict.fromkeys(tail) if block in main]
    assert last == [block for block in main if rests[block]]
    assert tail == [block for block in dict.fromkeys(tail) for _ in range(rests[block])]


@pytest.mark.parametrize("shuffle", [True, "blocks"])
@pytest.mark.parametrize("kind", [Fixed, Bucketed])
def test_blocks_of_the_same_lengths_are_not_shuffled_alike(kind, shuffle):
    index = SequenceIndex.from_lengths(np.tile(np.arange(100, 164), 3))
    policy = kind(1, shuffle=shuffle)
    small = SmallBlocks(policy, 1)
    blocks = split_blocks(policy._select_items(index), small.cutter(), shuffle)
    numbers = small.plan(index, seed=3, epoch=2).spans[:, 0].tolist()
    orders = [[k for k in numbers if blocks.find(k) == block.number] for block in blocks]
    places = [
        np.argsort([sorted(order).index(number) for number in order]).tolist() for order in orders
    ]
    assert places[0] != places[1] != places[2] != places[0]
