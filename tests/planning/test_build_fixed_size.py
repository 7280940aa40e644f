"""Items are cut every so many rows, in the order that a policy gives them."""

from dataclasses import dataclass

import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.planning.blocks import BlockItems, Blocks
from seqdata.planning.build import (
    FixedSizeCutter,
    check_counts,
    check_shuffle,
    order_longest_first,
)
from seqdata.planning.items import WholeSequences, select_items
from seqdata.planning.randomness import Draw


def cutter(batch_size=3, **options):
    return FixedSizeCutter(batch_size, None, is_arranged=False, **options)


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (2, [2]), (6, [3, 3]), (7, [3, 3, 1])])
def test_the_last_batch_has_what_is_left(count, sizes):
    cut = cutter().cut(BlockItems(np.ones(count, dtype=np.int64)), None, 0)
    assert np.diff(cut.offsets).tolist() == sizes
    assert cut.members.tolist() == list(range(count))


def test_batches_are_cut_from_the_order_of_the_policy():
    longest_first = FixedSizeCutter(2, lambda items, *_: items.lengths, True)
    cut = longest_first.cut(BlockItems(np.array([1, 5, 3])), None, 0)
    assert cut.members.tolist() == [1, 2, 0]
    assert cut.offsets.tolist() == [0, 2, 3]


@pytest.mark.parametrize("ordering", [None, lambda items, *_: items.lengths])
@pytest.mark.parametrize("run", [0, 1, 16])
@pytest.mark.parametrize("count", [100, 98, 64, 2, 0])
def test_counts_are_those_of_the_cut_and_costs_are_bounds_of_it(ordering, run, count):
    lengths = np.random.default_rng(0).integers(1, 40, count)
    rule = WholeSequences(None, "error", "drop", "first")
    items = select_items(SequenceIndex.from_lengths(lengths), "time", rule, policy="any")
    blocks = Blocks(items, 48, run)
    made = FixedSizeCutter(3, ordering, is_arranged=True)
    highest = 0
    for block, counted in zip(blocks, made.count_batches(blocks), strict=True):
        spans = blocks.spans(block)
        sizes = spans[:, 2] - spans[:, 1]
        cut = made.cut(BlockItems(sizes), Draw(0, 0), block.number)
        assert counted.batches == len(cut.offsets) - 1
        longest = np.maximum.reduceat(sizes[cut.members], cut.offsets[:-1])
        cost = (longest * np.diff(cut.offsets)).max()
        highest = max(highest, cost)
        if ordering is not None or counted.cost:
            assert counted.cost >= cost or counted.cost == 0
    if count:
        assert max(one.cost for one in made.count_batches(blocks)) >= highest


@pytest.mark.parametrize(("most", "items"), [(1, 192), (192, 192), (400, 384), (384, 384)])
def test_a_block_holds_whole_groups_of_batches(most, items):
    assert cutter(max_block=most).block_items == items


@pytest.mark.parametrize("top", [5, (1 << 16) - 1, 1 << 16, 1 << 40])
def test_the_longest_come_first_and_equal_ones_by_number(top):
    lengths = np.array([3, top, 3, 4, top])
    assert order_longest_first(lengths).tolist() == [1, 4, 3, 0, 2]


def test_a_random_order_is_that_of_its_block():
    items = BlockItems(np.ones(50, dtype=np.int64))
    first, other = (cutter().cut(items, Draw(1, 2), block).members for block in (0, 1))
    assert sorted(first) == sorted(other) == list(range(50))
    assert first.tolist() != other.tolist()
    assert first.tolist() == cutter().cut(items, Draw(1, 2), 0).members.tolist()


@pytest.mark.parametrize("value", ["block", "Blocks", "true", None, 1, 0, ["blocks"]])
def test_shuffle_is_one_of_three(value):
    text = "policy 'any': `shuffle` must be True, False or 'blocks', but is "
    with pytest.raises(ConfigError) as caught:
        check_shuffle("any", value)
    assert str(caught.value).startswith(text + repr(value))
    for allowed in (True, False, "blocks"):
        check_shuffle("any", allowed)


@pytest.mark.parametrize("value", [0, -1, 1.0, "3", True, None])
def test_a_count_must_be_one(value):
    with pytest.raises(ConfigError, match=r"policy 'any': `size`.* integer of at least 1.* is "):
        check_counts("any", Options(value), "size")
    check_counts("any", Options(0), "size", least=0)


LARGE = 1 << 62


@pytest.mark.parametrize("value", ["512", 2.5, 0, False, LARGE, np.array([1, 2])])
def test_a_count_that_may_be_none_is_else_one(value):
    check_counts("any", Options(None), "size", optional=True)
    limit = " and below 2\\*\\*62" if value is LARGE else ""
    with pytest.raises(ConfigError, match=f"`size` must be an .* of at least 1{limit}, but is"):
        check_counts("any", Options(value), "size", optional=True)


@pytest.mark.parametrize("value", [np.int64(8), np.uint8(8), np.array(8)])
def test_integers_of_numpy_become_plain_ones(value):
    options = Options(value)
    check_counts("any", options, "size")
    assert type(options.size) is int
    assert repr(options) == "Options(size=8, shuffle=True)"  # what a state is compared with


@dataclass(frozen=True, slots=True)
class Options:
    """A policy's."""

    size: object
    shuffle: object = True
