"""An epoch mixes as one permutation of all items does, however many blocks it is planned in.

Counted is what a permutation makes even: neighbours of the data that meet in a batch, thirds of
the data in each tenth of an epoch, and how lengths follow each other from step to step. The same
checks fail for blocks of neighbours, and for 64 batches of like lengths in a row.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.index import SequenceIndex
from seqdata.planning import blocks as blocks_module
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.packed import Packed
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.windows import Windows
from seqdata_testing.blocks import SmallBlocks
from tests.properties.counts import examples

pytestmark = pytest.mark.timeout(3600)  # all of a file's cases, at night
DISTANCES = range(1, 21)
MOST_OFF = 6  # standard deviations: one case of 10^8 by chance
MOST = 1000  # timesteps: few lengths are equal, of which the order is the data's in Sorted


def policies_of(rows, shuffle=True):
    return {
        "Fixed": Fixed(rows, shuffle=shuffle),
        "Sorted": Sorted(rows, shuffle=shuffle),
        "Bucketed": Bucketed(rows, shuffle=shuffle),
        "TokenBudget": TokenBudget(rows * MOST, shuffle=shuffle),
        "Packed": Packed(rows, 2 * MOST, shuffle=shuffle),
        "Windows": Windows(MOST // 10, batch_size=rows, shuffle=shuffle),
    }


KINDS = tuple(policies_of(1))
ARRANGED = ("Sorted", "Bucketed", "TokenBudget")


def index_of(count, seed=0):
    lengths = np.random.default_rng(seed).integers(MOST // 10, MOST, count)
    return SequenceIndex.from_lengths(lengths)


def batches_of(plan):
    """Return items by their number, in order, and where each batch begins, and the end."""
    spans = plan.spans
    items = np.empty(len(spans), dtype=np.int64)
    items[np.lexsort((spans[:, 1], spans[:, 0]))] = np.arange(len(spans))
    rows = plan.rows if plan.rows is not None else np.arange(len(spans) + 1)
    return items, rows[plan.offsets]


def check_neighbours(plans):
    """Raise unless neighbours of the data are in one batch as often as any others."""
    found = due = 0.0
    for plan in plans:
        items, edges = batches_of(plan)
        count, sizes = len(items), np.diff(edges).astype(float)
        batch = np.empty(count, dtype=np.int64)
        batch[items] = np.repeat(np.arange(len(sizes)), np.diff(edges))
        together = (sizes * (sizes - 1)).sum() / (count * (count - 1.0))
        for distance in DISTANCES:
            found += (batch[distance:] == batch[:-distance]).sum()
            due += (count - distance) * together
    assert abs(found - due) < MOST_OFF * due**0.5 + MOST_OFF, (found, due)


def check_thirds(plan):
    """Raise unless each tenth of an epoch has equally many of each third of the data."""
    items, _ = batches_of(plan)
    places = np.arange(len(items)) * 10 // len(items)
    table = np.bincount(places * 3 + items * 3 // len(items), minlength=30).reshape(10, 3)
    assert sorted(items.tolist()) == list(range(len(items)))
    check_even(table, freedom=18)


def check_steps(plan, ranks):
    """Raise unless lengths of a step say nothing about the next one's."""
    lengths = plan.spans[:, 2] - plan.spans[:, 1]
    means = np.add.reduceat(lengths, plan.offsets[:-1]) / np.diff(plan.offsets)
    steps = means[: int(0.95 * len(means)) // ranks * ranks].reshape(-1, ranks).mean(axis=1)
    quarter = np.argsort(np.argsort(steps, kind="stable"), kind="stable") * 4 // len(steps)
    table = np.bincount(quarter[:-1] * 4 + quarter[1:], minlength=16).reshape(4, 4)
    check_even(table, freedom=9)


def check_even(table, freedom):
    due = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    statistic = ((table - due) ** 2 / due).sum()
    # its cube root is nearly normal (Wilson and Hilferty, 1931); its own tail is long
    spread = 2 / (9 * freedom)
    off = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5
    assert off < MOST_OFF, table.tolist()


sizes = st.integers(3_000, 12_000)
seeds = st.integers(0, 1 << 40)
kinds = st.sampled_from(KINDS)


@examples(2, here=8)
@given(kinds, sizes, st.integers(2, 5), st.integers(1, 700), seeds)
@pytest.mark.slow
def test_neighbours_of_the_data_meet_as_often_as_any_others(kind, count, rows, most, seed):
    small = SmallBlocks(policies_of(rows)[kind], max(64, most))
    epochs = (0,) if kind == "Sorted" else (0, 1, 7)  # whose batches are the same in each
    index = index_of(count, seed)
    check_neighbours([small.plan(index, seed=seed, epoch=epoch) for epoch in epochs])


@examples(2, here=10)
@given(kinds, sizes, st.integers(1, 5), st.integers(1, 700), st.integers(1, 4), seeds)
@pytest.mark.slow
def test_each_tenth_of_an_epoch_has_all_thirds_of_the_data(kind, count, rows, most, ranks, seed):
    small = SmallBlocks(policies_of(rows)[kind], max(64, most))
    if kind in ARRANGED:
        small = small.for_ranks(ranks)
    check_thirds(small.plan(index_of(count, seed), seed=seed, epoch=seed % 3))


@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_neighbours_are_spread_over_all_data_too(kind, monkeypatch):
    """As they are dealt where neighbouring reads pay: of which a small block has few."""
    monkeypatch.setattr(blocks_module, "_MIN_RUNS", 16)
    small = SmallBlocks(policies_of(4)[kind], 1024)
    index = index_of(40_000)
    assert len(split(small, index)) > 30
    assert split(small, index).run == (1 if kind == "Windows" else 16)
    for epoch in range(3):
        items, _ = batches_of(small.plan(index, seed=0, epoch=epoch))
        tenths = np.bincount(
            np.arange(len(items)) * 10 // len(items) * 3 + items * 3 // len(items), minlength=30
        )
        assert abs(tenths / (len(items) / 30) - 1).max() < 0.25


def split(small, index):
    return blocks_module.split_blocks(
        small.policy._select_items(index), small.cutter(), small.shuffle
    )


@examples(1, here=8)
@given(st.sampled_from(ARRANGED), st.integers(1, 3), st.integers(1, 4), seeds)
@pytest.mark.slow
def test_lengths_of_a_step_say_nothing_about_the_next_one(kind, rows, ranks, seed):
    small = SmallBlocks(policies_of(rows)[kind], 256 * rows).for_ranks(ranks)
    check_steps(small.plan(index_of(20_000 * rows, seed), seed=seed, epoch=seed % 3), ranks)


def fails(check, *arguments):
    with pytest.raises(AssertionError):
        check(*arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_neighbours_are_found(kind):
    small = SmallBlocks(policies_of(4, "blocks")[kind], 256)
    plan = small.plan(index_of(6_000), seed=3, epoch=1)
    fails(check_neighbours, [plan])
    fails(check_thirds, plan)
    mixed = SmallBlocks(policies_of(4)[kind], 256).plan(index_of(6_000), seed=3, epoch=1)
    check_neighbours([mixed])
    check_thirds(mixed)


@pytest.mark.parametrize("kind", KINDS)
def test_the_datas_order_is_found(kind):
    if kind == "Packed":
        pytest.skip("its rows are by length without shuffling")
    plan = policies_of(4, shuffle=False)[kind].plan(index_of(6_000), seed=3, epoch=1)
    if kind in ARRANGED:
        fails(check_steps, plan, 1)
    else:
        fails(check_neighbours, [plan])
        fails(check_thirds, plan)


@pytest.mark.parametrize("group", [4, 8, 64])
@pytest.mark.parametrize("kind", ARRANGED)
def test_more_like_batches_in_a_row_than_a_step_has_ranks_are_found(kind, group):
    small = SmallBlocks(policies_of(2)[kind], 1024)
    index = index_of(40_000)
    fails(check_steps, small.for_ranks(group).plan(index, seed=3, epoch=1), 1)
    for alone in (small, small.for_ranks(1)):
        check_steps(alone.plan(index, seed=3, epoch=1), 1)
