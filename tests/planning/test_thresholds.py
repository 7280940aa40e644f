"""Sizes above which planning takes another way, and the tests that cross them.

| threshold | where | crossed by |
|---|---|---|
| 2^18 items: several blocks | ``blocks.MAX_BLOCK_ITEMS`` | test_blocks, properties/test_mixing |
| 2^13 runs of a block | ``blocks._MIN_RUNS`` | test_blocks, here |
| 2^21 sequences | ``blocks._MAX_SEARCHED`` | here |
| 2^16 sequences, 2^5 of a bin | ``index_scans.SCAN_CHUNK``, ``items._BIN`` | test_items |
| 2^16 timesteps | ``build.order_longest_first`` | here |
| 2^20 timesteps | ``blocks.count_lengths`` | test_blocks |
| 2^32 timesteps | ``bucketed._MAX_LENGTH`` | policies/test_bucketed |
| 2^10 keys | ``randomness._MIN_KEYS`` | test_randomness_stable_sort |
| 2^13 draws | ``randomness._CHUNK_DRAWS`` | here |
| 2^10 events of parts | ``mix_table._ORDER_EVENTS`` | here |
| 2^14 rows of lanes | ``step_table._WINDOW_ROWS`` | here |
| 2^30 draws of an epoch | ``draws.MAX_DRAWS`` | policies/test_weighted |

What only caches, or reads in pieces of a size, gives the same above it: those sizes are lowered in
the tests of storage, readers and fitting.
"""

from dataclasses import replace

import numpy as np
import pytest

from seqdata.index import SequenceIndex
from seqdata.planning import blocks
from seqdata.planning.build import order_longest_first
from seqdata.planning.randomness import Draw, KeyedPermutation, Purpose
from seqdata.policies.fixed import Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.windows import Windows

PIECES = [slice(0, 5), slice(8_190, 8_195), slice(19_000, 20_000)]


def test_draws_do_not_depend_on_how_many_are_made_at_once():
    draw, numbers = Draw(3, 1), np.arange(20_000)
    for make in (draw.each, draw.hash_each):
        drawn = make(Purpose.CROPS, numbers % 7, numbers)
        for piece in PIECES:
            alone = make(Purpose.CROPS, numbers[piece] % 7, numbers[piece])
            assert (alone == drawn[piece]).all()


def test_a_permutation_does_not_depend_on_how_many_are_asked_for():
    permutation, numbers = KeyedPermutation(1_000_003, 2), np.arange(20_000) * 50
    for find in (permutation.apply, permutation.invert):
        found = find(numbers)
        assert all((find(numbers[piece]) == found[piece]).all() for piece in PIECES)


@pytest.mark.parametrize("top", [(1 << 16) - 1, 1 << 16, 1 << 40])
def test_long_sequences_are_ordered_as_short_ones(top):
    lengths = np.random.default_rng(0).integers(1, 50, 3_000)
    lengths[1_234] = top
    expected = np.argsort(-lengths, kind="stable")
    assert (order_longest_first(lengths) == expected).all()


def test_the_order_of_parts_is_one_over_the_ends_of_its_pieces():
    parts = {name: SequenceIndex.from_lengths([3] * 900) for name in ("a", "b")}
    mix = Mix({"a": 2, "b": 1}, Fixed(1), batches=5_000, keep="batch")
    plan = mix.plan(SequenceIndex.from_parts(parts), seed=0, epoch=1)
    together = plan.label_parts(range(5_000))
    for number in (0, 1_023, 1_024, 2_047, 2_048, 4_999):
        assert plan.label_parts([number]) == [together[number]]
    assert abs([label.part for label in together].count("b") - 5_000 / 3) < 3


def test_lanes_continue_over_the_ends_of_the_runs_that_are_laid_out():
    lengths = np.random.default_rng(1).integers(1, 90, 5_000)
    plan = TBPTT(128, 4).plan(SequenceIndex.from_lengths(lengths), seed=0, epoch=1)
    assert len(plan) * 128 > 2 << 14
    last = plan.batch(0).spans
    for number in range(1, len(plan)):
        spans = plan.batch(number).spans
        starts = (spans[:, 1] == 0) | (spans[:, 1] == spans[:, 2])
        continued = (spans[:, 0] == last[:, 0]) & (spans[:, 1] == last[:, 2])
        assert (starts | continued).all()
        last = spans


@pytest.mark.parametrize("most", [3_000, 3_001])
def test_windows_of_many_sequences_are_dealt_by_runs_and_come_once(monkeypatch, most):
    monkeypatch.setattr(blocks, "_MAX_SEARCHED", most)
    monkeypatch.setattr(blocks, "_MIN_RUNS", 16)
    index = SequenceIndex.from_lengths([40] * 3_001)
    policy = Windows(4, batch_size=16)
    items, cutter = policy._select_items(index), policy._make_cutter()
    found = blocks.split_blocks(items, replace(cutter, max_block=4_096), True)
    assert found.run == (16 if most == 3_000 else 1)
    members = np.concatenate([found.spans(block) for block in found])
    assert len(np.unique(members, axis=0)) == len(items) == 30_010
