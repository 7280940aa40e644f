"""Batches come in groups of like lengths, as many as a step has ranks; one rank: at random."""

import numpy as np
import pytest

from seqdata.planning.batch_order import order_batches
from seqdata.planning.randomness import Draw

GROUPS = [1, 2, 3, 4, 6, 8, 48, 64]
COUNTS = [0, 1, 2, 5, 7, 48, 100, 385]


def order_of(longest, group, *, seed=0, epoch=1, block=0, lead=None):
    return order_batches(longest, Draw(seed, epoch), block=block, group=group, lead=lead)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("count", COUNTS)
def test_every_batch_comes_once(count, group):
    longest = np.arange(count)[::-1].copy()
    assert sorted(order_of(longest, group).tolist()) == list(range(count))


@pytest.mark.parametrize("group", GROUPS)
def test_groups_are_of_neighbours_in_length(group):
    count = 20 * group
    longest = np.random.default_rng(0).permutation(count)
    played = longest[order_of(longest, group, epoch=3)].reshape(-1, group)
    assert (played.max(axis=1) - played.min(axis=1) == group - 1).all()


@pytest.mark.parametrize("group", [4, 8, 64])
def test_halves_of_a_group_are_of_neighbours_too(group):
    """Fewer ranks than those balanced for, a divisor of them, have like work, too."""
    longest = np.random.default_rng(0).permutation(20 * group)
    order = order_of(longest, group, epoch=3)
    width = group
    while width > 1:
        width //= 2
        played = longest[order].reshape(-1, width)
        assert (played.max(axis=1) - played.min(axis=1) == width - 1).all()


@pytest.mark.parametrize(("group", "rest"), [(2, 1), (3, 2), (6, 5), (48, 37), (64, 37)])
def test_the_remainder_comes_last_and_is_one_slice_of_the_lengths(group, rest):
    longest = np.random.default_rng(0).permutation(20 * group + rest)
    firsts = set()
    for epoch in range(40):
        order = order_of(longest, group, epoch=epoch)
        tail = np.sort(longest[order[-rest:]])
        assert (np.diff(tail) == 1).all()
        firsts.add(int(tail[0]))
    assert len(firsts) > 10  # another slice in every epoch


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("count", [1, 2, 5, 48, 100])
@pytest.mark.parametrize("epoch", range(3))
def test_the_lead_comes_first_whatever_is_drawn_with_its_group(count, group, epoch):
    longest = np.random.default_rng(epoch).permutation(count)
    for lead in {0, count // 2, count - 1, int(np.argmax(longest))}:
        order = order_of(longest, group, seed=9, epoch=epoch, block=2, lead=lead)
        assert order[0] == lead
        assert sorted(order.tolist()) == list(range(count))
        if count % group == 0:
            rank = (count - 1 - longest[lead]) // group
            first = np.sort(count - 1 - longest[order[:group]])
            assert first.tolist() == list(range(rank * group, (rank + 1) * group))


@pytest.mark.parametrize("epoch", range(2))
def test_the_remainder_leaves_out_whichever_leads(epoch):
    longest = np.random.default_rng(epoch).permutation(4 * 6 + 5)  # groups of 6, and 5 remain
    for lead in range(len(longest)):
        order = order_of(longest, 6, seed=1, epoch=epoch, lead=lead)
        assert order[0] == lead
        assert sorted(order.tolist()) == list(range(len(longest)))
        assert (np.diff(np.sort(longest[order[-5:]])) == 1).all()


def test_a_lead_and_its_neighbours_may_be_in_the_remainder_as_often_as_others():
    longest = np.arange(15)[::-1].copy()  # groups of 4, and 3 remain; the lead is batch 7
    tails = {
        tuple(sorted(order_of(longest, 4, epoch=epoch, lead=7)[-3:].tolist()))
        for epoch in range(300)
    }
    due = {tuple(range(first, first + 3)) for first in range(13)}
    assert tails == {one for one in due if 7 not in one}


@pytest.mark.parametrize("group", [3, 4, 6, 8, 48, 64])
def test_any_batch_of_a_group_may_come_first(group):
    longest = np.arange(4 * group)[::-1].copy()
    firsts = {int(order_of(longest, group, epoch=epoch)[0]) % group for epoch in range(12 * group)}
    assert len(firsts) > 0.9 * group


@pytest.mark.parametrize("count", [2, 3, 5])
def test_fewer_batches_than_a_group_are_shuffled(count):
    longest = np.arange(count)
    orders = {tuple(order_of(longest, 8, epoch=epoch).tolist()) for epoch in range(50)}
    assert len({order[0] for order in orders}) == count


@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_lengths_of_consecutive_groups_go_along_with_nothing(group):
    longest = np.arange(3000 // group * group)
    played = longest[order_of(longest, group)].reshape(-1, group).max(axis=1)
    assert abs(np.corrcoef(played[:-1], played[1:])[0, 1]) < 0.1


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("other", [{"seed": 1}, {"epoch": 2}, {"block": 1}])
def test_seed_epoch_and_block_all_count(group, other):
    longest = np.arange(60)
    assert order_of(longest, group).tolist() == order_of(longest, group).tolist()
    assert order_of(longest, group).tolist() != order_of(longest, group, **other).tolist()
