"""An epoch is planned block by block, and the batches of blocks come in their order."""

import numpy as np
import pytest

from seqdata.index import SequenceIndex
from seqdata.planning.blocks import (
    MAX_BLOCK_ITEMS,
    Block,
    compute_block_costs,
    histogram,
    make_block_table,
    split_blocks,
)
from seqdata.planning.build import FixedSizeCutter, order_longest_first, order_randomly
from seqdata.planning.items import WholeSequences, select_items
from seqdata.planning.randomness import Draw


def items_of(lengths):
    rule = WholeSequences(None, "error", "drop", "first")
    return select_items(SequenceIndex.from_lengths(lengths), "time", rule, policy="any")


ITEMS = items_of(np.random.default_rng(0).integers(1, 60, 1000))
SMALL = FixedSizeCutter(4, order_randomly, is_arranged=False, max_block=256)
ARRANGED = FixedSizeCutter(4, lambda sizes, *_: order_longest_first(sizes), True, max_block=256)


def table_of(cutter=SMALL, epoch=1, shuffle=True, worst_first=False):
    return make_block_table(ITEMS, cutter, Draw(0, epoch), shuffle=shuffle, worst_first=worst_first)


def test_all_blocks_but_the_last_are_equal_and_they_hold_everything():
    assert split_blocks(ITEMS, SMALL) == [
        Block(0, 0, 256), Block(1, 256, 512), Block(2, 512, 768), Block(3, 768, 1000),
    ]  # fmt: skip
    assert split_blocks(items_of([]), SMALL) == []
    assert split_blocks(items_of([1] * 256), SMALL) == [Block(0, 0, 256)]


def test_batches_of_a_block_are_counted_once_for_an_index():
    costs = compute_block_costs(ITEMS, SMALL)
    assert [cost.batches for cost in costs] == [64, 64, 64, 58]
    assert compute_block_costs(ITEMS, SMALL) is costs


@pytest.mark.parametrize("most", [60, 5 * MAX_BLOCK_ITEMS])
def test_a_histogram_counts_the_lengths_of_a_block_from_the_longest_on(most):
    lengths = np.random.default_rng(1).integers(1, 60, 300)
    lengths[100] = most
    values, counts = histogram(items_of(lengths), Block(0, 50, 250))
    expected = np.unique(lengths[50:250], return_counts=True)
    assert (values[::-1] == expected[0]).all()
    assert (counts[::-1] == expected[1]).all()


def test_every_item_comes_once_and_batches_stay_in_one_block():
    table = table_of()
    batches = [table.batch(number).spans[:, 0] for number in range(len(table))]
    assert sorted(np.concatenate(batches)) == list(range(1000))
    assert all(len({number // 256 for number in batch.tolist()}) == 1 for batch in batches)


def test_the_short_block_is_last():
    table = table_of()
    assert {number // 256 for number in table.batch(len(table) - 1).spans[:, 0].tolist()} == {3}


@pytest.mark.parametrize("shuffle", [False, True])
def test_tables_slices_and_totals_are_those_of_the_batches(shuffle):
    table = table_of(shuffle=shuffle)
    spans = [table.batch(number).spans for number in range(len(table))]
    joined = np.concatenate([one.spans for one in table.tables()])
    assert (joined == np.concatenate(spans)).all()
    assert (table.slice(3, 6).spans == np.concatenate(spans[3:6])).all()
    part = np.concatenate(spans[60:130])  # over the end of a block
    assert table.totals(60, 130, 0) == ((part[:, 2] - part[:, 1]).sum(), len(part))


def test_a_block_is_prepared_up_to_the_first_batch_of_the_next():
    table = table_of(shuffle=False)
    assert [table.prepare(number) for number in (0, 63, 64, 200)] == [64, 64, 128, 250]


def test_the_most_expensive_batch_leads_epoch_0_where_it_is_asked_for():
    table = table_of(ARRANGED, epoch=0, worst_first=True)
    sizes = [table.batch(number).spans for number in range(len(table))]
    costs = [(one[:, 2] - one[:, 1]).max() * len(one) for one in sizes]
    assert costs[0] == max(costs)
    assert table_of(ARRANGED, epoch=1, worst_first=True).lead_block == -1
    assert table_of(SMALL, epoch=0, worst_first=True).lead_block == -1


def test_no_items_are_no_batches():
    table = make_block_table(items_of([]), ARRANGED, Draw(0, 0), shuffle=True, worst_first=True)
    assert len(table) == 0
    assert list(table.tables()) == []
