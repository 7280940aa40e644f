"""An epoch is planned block by block; a block is a sample of all items, always the same one."""

from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest

from seqdata.index import SequenceIndex
from seqdata.planning import blocks as blocks_module
from seqdata.planning.blocks import (
    MAX_BLOCK_ITEMS,
    Blocks,
    compute_block_costs,
    count_lengths,
    make_block_table,
    split_blocks,
)
from seqdata.planning.build import FixedSizeCutter
from seqdata.planning.items import WholeSequences, number_items, select_items
from seqdata.planning.randomness import Draw
from seqdata.policies.token_budget import LengthBuckets
from seqdata.policies.windows import GridWindows


def items_of(lengths):
    rule = WholeSequences(None, "error", "drop", "first")
    return select_items(SequenceIndex.from_lengths(lengths), "time", rule, policy="any")


ITEMS = items_of(np.random.default_rng(0).integers(1, 60, 1000))
SMALL = FixedSizeCutter(4, None, is_arranged=False, max_block=256)
ARRANGED = FixedSizeCutter(4, lambda items, *_: items.lengths, True, max_block=256)
EDGES = (0, 256, 512, 768, 1000)


def table_of(cutter=SMALL, epoch=1, items=ITEMS, *, shuffle=True, **options):
    return make_block_table(items, cutter, Draw(0, epoch), shuffle=shuffle, **options)


def block_numbers(table):
    """Return which block each batch is of; all of its rows are."""
    of_item = np.empty(len(table.items), dtype=np.int64)
    for block in table.blocks:
        of_item[table.blocks.spans(block)[:, 0]] = block.number
    found = [of_item[table.batch(number).spans[:, 0]] for number in range(len(table))]
    assert all((one == one[0]).all() for one in found)
    return np.array([one[0] for one in found], dtype=np.int64)


# what a block holds


@pytest.mark.parametrize("run", [0, 1, 3, 16])
@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 48, 49, 95, 96, 1000])
def test_blocks_hold_each_item_once_and_only_the_last_is_short(count, run):
    blocks = Blocks(items_of([1] * count), 48, run)
    held = [blocks.spans(block)[:, 0] for block in blocks]
    assert [len(one) for one in held] == [48] * (count // 48) + [count % 48] * (count % 48 > 0)
    assert all((np.diff(one) > 0).all() for one in held)  # in the data's order
    assert sorted(np.concatenate([*held, []]).tolist()) == list(range(count))
    for block, members in zip(blocks, held, strict=True):
        assert {blocks.find(item) for item in members.tolist()} == {block.number}
    assert blocks.short == (count // 48 if count > 48 and count % 48 else -1)


@pytest.mark.parametrize("run", [1, 2, 16])
def test_neighbours_of_a_run_are_in_the_same_block(run):
    blocks = Blocks(ITEMS, 64, run)
    of_item = np.array([blocks.find(item) for item in range(1000)])
    whole = of_item[: 1000 // run * run].reshape(-1, run)
    assert (whole == whole[:, :1]).all()
    assert len({*whole[:, 0].tolist()}) == 16
    borders = (whole[1:, 0] == whole[:-1, 0]).mean()  # runs meet by chance
    assert borders < 4 / 16


@pytest.mark.parametrize(("run", "block"), [(1, 3), (16, 3), (16, 15)])
def test_a_block_is_a_sample_of_the_whole(run, block):
    blocks = Blocks(items_of([1] * 16_000), 1024, run)
    members = blocks.spans(blocks[block])[:, 0]
    counts = np.histogram(members, bins=4, range=(0, 16_000))[0]
    assert (counts > 0.3 * len(members) / 4).all()


def test_blocks_of_neighbours_are_asked_for_by_name():
    near, still = (split_blocks(ITEMS, SMALL, how) for how in ("blocks", False))
    for blocks in (near, still):
        held = [blocks.spans(block)[:, 0].tolist() for block in blocks]
        assert held == [list(range(*edges)) for edges in pairwise(EDGES)]
        assert [blocks.find(item) for item in (0, 255, 256, 999)] == [0, 0, 1, 3]
    assert split_blocks(ITEMS, SMALL, True).run == 1


def test_blocks_are_the_same_in_every_process_and_others_for_other_counts():
    members = [
        Blocks(items_of([1] * count), 64, 1).spans(Blocks(items_of([1] * count), 64, 1)[0])[:, 0]
        for count in (640, 640, 641)
    ]
    assert members[0].tolist() == members[1].tolist() != members[2].tolist()


def test_no_block_is_there_beyond_the_last():
    blocks = split_blocks(ITEMS, SMALL, True)
    for number in (4, -1):
        with pytest.raises(IndexError):
            blocks[number]


def test_up_to_the_largest_block_there_is_one():
    assert len(split_blocks(items_of([1] * 256), SMALL, True)) == 1
    assert len(split_blocks(items_of([1] * 257), SMALL, True)) == 2
    assert len(split_blocks(items_of([]), SMALL, True)) == 0


@pytest.mark.parametrize("max_length", [None, 20])
@pytest.mark.parametrize("run", [0, 1, 4])
def test_costs_of_a_block_are_those_of_its_spans(run, max_length):
    index = SequenceIndex.from_lengths(np.random.default_rng(2).integers(1, 60, 1000))
    rule = WholeSequences(max_length, "split")
    items = number_items(index, "time", rule)
    assert (items.stored_sizes is None) == (max_length is not None)
    blocks = Blocks(items, 300, run)
    for block in blocks:
        spans = blocks.spans(block)
        assert sorted(blocks.sizes(block)) == sorted(spans[:, 2] - spans[:, 1])


class FewRuns:
    """An index that says it is long."""

    has_copies: ClassVar[bool] = False

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


@pytest.mark.parametrize(
    ("sequences", "size", "run"),
    [
        (1 << 22, 1 << 18, 16),
        (1 << 22, 1 << 16, 8),
        (1 << 22, 3 << 13, 2),
        (1 << 22, 1 << 13, 1),
        (1 << 22, 1 << 12, 1),
        (1 << 22, (1 << 18) - 64 * 5, 16),  # 64 batches of 5 do not divide 2^18
        (1 << 22, (1 << 17) + 8, 8),
    ],
)
def test_the_length_of_a_run_leaves_a_block_that_is_a_sample(sequences, size, run):
    class Many:
        index = FewRuns(sequences)
        rule = WholeSequences()

        def __len__(self):
            return sequences

    found = blocks_module._choose_run(Many(), size)
    assert found == run
    assert size % found == 0


def test_what_is_cheap_to_find_is_dealt_one_by_one():
    class Cut:
        index = FewRuns(1 << 20)
        rule = GridWindows(4, 0, 4)

    assert blocks_module._choose_run(Cut(), 1 << 18) == 1


def test_copies_are_dealt_one_by_one():
    class Repeated:
        index = FewRuns(1 << 22)
        rule = WholeSequences()

    Repeated.index.has_copies = True
    assert blocks_module._choose_run(Repeated(), 1 << 18) == 1


# counts


def test_batches_of_a_block_are_counted_once_for_an_index():
    blocks = split_blocks(ITEMS, SMALL, True)
    costs = compute_block_costs(blocks, SMALL)
    assert [cost.batches for cost in costs] == [64, 64, 64, 58]
    assert compute_block_costs(split_blocks(ITEMS, SMALL, True), SMALL) is costs


def test_blocks_of_neighbours_have_counts_of_their_own():
    items = items_of(np.repeat([3, 30], 500))
    cutter = LengthBuckets(60, None, 2, max_block=250)
    counts = {
        how: [
            cost.batches for cost in compute_block_costs(split_blocks(items, cutter, how), cutter)
        ]
        for how in (True, "blocks")
    }
    assert counts["blocks"] == [13, 13, 125, 125]  # 20 rows of 3, or 2 of 30, to a batch
    assert all(50 < count < 90 for count in counts[True])


@pytest.mark.parametrize("run", [0, 1])
@pytest.mark.parametrize("most", [60, 5 * MAX_BLOCK_ITEMS])
def test_a_histogram_counts_the_lengths_of_a_block_from_the_longest_on(most, run):
    lengths = np.random.default_rng(1).integers(1, 60, 300)
    lengths[100] = most
    blocks = Blocks(items_of(lengths), 100, run)
    block = blocks[blocks.find(100)]
    values, counts = count_lengths(blocks.sizes(block))
    expected = np.unique(lengths[blocks.spans(block)[:, 0]], return_counts=True)
    assert values[0] == most
    assert (values[::-1] == expected[0]).all()
    assert (counts[::-1] == expected[1]).all()


# the order of an epoch


@pytest.mark.parametrize("group", [1, 2, 3, 7, 64, 100])
@pytest.mark.parametrize("shuffle", [True, "blocks", False])
@pytest.mark.parametrize("cutter", [SMALL, ARRANGED], ids=["random", "arranged"])
def test_every_item_comes_once_and_batches_stay_in_one_block(cutter, shuffle, group):
    table = table_of(cutter, shuffle=shuffle, group=group)
    batches = [table.batch(number).spans[:, 0] for number in range(len(table))]
    assert len(table) == 250
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    block_numbers(table)


@pytest.mark.parametrize("shuffle", [True, "blocks", False])
@pytest.mark.parametrize("group", [1, 3])
def test_tables_slices_and_totals_are_those_of_the_batches(shuffle, group):
    table = table_of(ARRANGED, shuffle=shuffle, group=group)
    spans = [table.batch(number).spans for number in range(len(table))]
    joined = np.concatenate([one.spans for one in table.tables()])
    assert (joined == np.concatenate(spans)).all()
    for first, stop in ((3, 6), (0, 250), (60, 130), (249, 250)):  # over ends of blocks, too
        part = np.concatenate(spans[first:stop])
        cut = table.slice(first, stop)
        assert (cut.spans == part).all()
        assert cut.offsets.tolist() == [0, *np.cumsum([len(one) for one in spans[first:stop]])]
        assert table.totals(first, stop, 0) == ((part[:, 2] - part[:, 1]).sum(), len(part))


def test_a_block_is_prepared_up_to_the_first_batch_of_the_next():
    table = table_of(shuffle=False)
    assert [table.prepare(number) for number in (0, 63, 64, 200)] == [64, 64, 128, 250]


@pytest.mark.parametrize("group", [1, 3, 7])
def test_what_is_prepared_needs_no_other_block(group):
    """A stretch is of one block and of the short one, whose groups are spread."""
    table = table_of(ARRANGED, group=group)
    number, stretches, of_batch = 0, [], block_numbers(table)
    while number < len(table):
        table._cache.clear()
        stop = table.prepare(number)
        made = set(table._cache)
        assert number < stop <= len(table)
        assert set(of_batch[number:stop].tolist()) <= made
        assert len(made) <= 2
        stretches.append((number, stop))
        number = stop
    assert [len(one) for one in table.tables()] == [stop - first for first, stop in stretches]


def test_few_blocks_are_kept():
    table = table_of(ARRANGED, items=items_of(np.arange(1, 3001)), group=2)
    for number in range(len(table)):
        table.batch(number)
        assert len(table._cache) <= 4
    assert table.blocks.short in table._cache  # some of its groups are in each stretch


@pytest.mark.parametrize("group", [1, 2, 5, 6])
@pytest.mark.parametrize("epoch", range(4))
def test_groups_come_first_and_then_remainders_of_blocks_in_their_order(group, epoch):
    table = table_of(ARRANGED, epoch=epoch, group=group)
    order = block_numbers(table)
    counts = np.array([64, 64, 64, 58])
    rests = counts % group
    whole = int((counts - rests).sum())
    groups = order[:whole].reshape(-1, group)
    assert (groups == groups[:, :1]).all()  # aligned with steps
    assert np.bincount(groups[:, 0], minlength=4).tolist() == ((counts - rests) // group).tolist()
    played = [block for block in dict.fromkeys(order.tolist()) if block != 3]
    assert order[whole:].tolist() == [k for k in [*played, 3] for _ in range(rests[k])]


@pytest.mark.parametrize("group", [1, 2, 3])
def test_groups_of_the_short_block_are_spread_among_those_of_the_others(group):
    of_short = []
    for epoch in range(30):
        table = table_of(ARRANGED, epoch=epoch, group=group)
        order = block_numbers(table)
        groups = order[: 192 // group * group].reshape(-1, group)[:, 0]
        places = np.flatnonzero(groups == 3) / len(groups)
        thirds = np.histogram(places, bins=3, range=(0, 1))[0]
        assert thirds.min() > 0.5 * len(places) / 3
        of_short.append(tuple(np.flatnonzero(groups == 3).tolist()))
        others = groups[groups != 3]
        assert len([1 for a, b in pairwise(others.tolist()) if a != b]) <= 3  # one after another
    assert len(set(of_short)) == 30
    for rank in range(min(map(len, of_short))):  # wherever it is, none has a place of its own
        assert len({places[rank] for places in of_short}) > 1


def test_blocks_of_neighbours_are_all_played_one_after_another():
    order = block_numbers(table_of(shuffle="blocks")).tolist()
    first = [a for a, b in pairwise([-1, *order]) if a != b]
    assert len(set(first)) <= 5
    epochs = {tuple(dict.fromkeys(block_numbers(table_of(epoch=k)).tolist())) for k in range(20)}
    assert len(epochs) > 5


@pytest.mark.parametrize("short", [1, 3, 4, 5, 100])
@pytest.mark.parametrize("epoch", range(4))
@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_only_the_last_batch_may_have_fewer_rows(short, epoch, shuffle):
    items = items_of([5] * (768 + short))
    table = table_of(items=items, epoch=epoch, shuffle=shuffle)
    sizes = [len(table.batch(number).spans) for number in range(len(table))]
    assert set(sizes[:-1]) == {4}
    assert sizes[-1] == (short % 4 or 4)


@pytest.mark.parametrize("longest", range(0, 1000, 111))
@pytest.mark.parametrize("group", [1, 2, 3, 8, 48, 64])  # a full block has 64 batches
@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_the_most_expensive_batch_leads_epoch_0_where_it_is_asked_for(longest, group, shuffle):
    lengths = np.random.default_rng(longest).integers(1, 60, 1000)
    lengths[longest] = 100
    items = items_of(lengths)
    blocks = split_blocks(items, ARRANGED, shuffle)
    if group > 58 and longest in blocks.spans(blocks[3])[:, 0]:
        lengths[longest] = 60  # the short block has no group that could lead
        lengths[blocks.spans(blocks[0])[0, 0]] = 100
    table = table_of(ARRANGED, epoch=0, items=items, group=group, shuffle=shuffle, worst_first=True)
    spans = [table.batch(number).spans for number in range(len(table))]
    costs = [(one[:, 2] - one[:, 1]).max() * len(one) for one in spans]
    assert costs[0] == max(costs)
    assert sorted(np.concatenate(spans)[:, 0].tolist()) == list(range(1000))
    order = block_numbers(table)
    assert (order[:group] == order[0]).all()  # with its group
    joined = np.concatenate([one.spans for one in table.tables()])
    assert (joined == np.concatenate(spans)).all()


@pytest.mark.parametrize("group", [1, 8, 48, 58, 60, 80])
def test_a_lead_of_the_short_block_brings_its_group(group):
    blocks = split_blocks(ITEMS, ARRANGED, True)
    members = blocks.spans(blocks[3])[:, 0]
    lengths = np.random.default_rng(1).integers(1, 60, 1000)
    lengths[members[40:44]] = 100
    table = table_of(ARRANGED, epoch=0, items=items_of(lengths), group=group, worst_first=True)
    order = block_numbers(table)
    first = table.batch(0).spans
    if group <= 58:  # else it has no group that could lead
        assert (order[:group] == 3).all()
    if group <= 58 or group > 64:  # or no block has one
        assert (first[:, 2] == 100).all()
    assert sorted(np.concatenate([one.spans for one in table.tables()])[:, 0]) == list(range(1000))


def test_later_epochs_and_batches_in_random_order_have_no_lead():
    assert table_of(ARRANGED, epoch=1, worst_first=True).lead_block == -1
    assert table_of(SMALL, epoch=0, worst_first=True).lead_block == -1


@pytest.mark.parametrize("shuffle", [True, "blocks", False])
def test_no_items_are_no_batches(shuffle):
    table = table_of(ARRANGED, epoch=0, items=items_of([]), shuffle=shuffle, worst_first=True)
    assert len(table) == 0
    assert list(table.tables()) == []


@pytest.mark.parametrize("count", [1, 3, 5])
def test_fewer_batches_than_a_group_in_all_blocks_are_played_too(count):
    items = items_of(np.arange(1, 257 + count))
    for epoch in (0, 1):
        table = table_of(ARRANGED, epoch=epoch, items=items, group=100, worst_first=True)
        joined = np.concatenate([one.spans for one in table.tables()])
        assert sorted(joined[:, 0].tolist()) == list(range(256 + count))
