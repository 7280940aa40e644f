"""Rows of parts in one batch: each sequence as often as any other over the epochs."""

from fractions import Fraction

import numpy as np
import pytest

from seqdata import Fixed, TokenBudget
from seqdata.index import SequenceIndex
from seqdata.planning.mixed_rows import PartRows, draw_rows, make_part_rows

RANKED = np.array([4, 0, 3, 1])


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 7, 9])
def test_over_as_many_epochs_as_sequences_each_comes_equally_often(rows):
    part = PartRows("a", 10, RANKED, rows)
    passes = {number: [] for number in (RANKED + 10).tolist()}
    for epoch in range(len(RANKED)):
        numbers, before = part.draw(3, epoch)
        assert len(numbers) == rows
        counts = np.bincount(numbers, minlength=15)[RANKED + 10]
        assert set(counts.tolist()) <= {rows // 4, rows // 4 + 1}
        for number, passed in zip(numbers.tolist(), before.tolist(), strict=True):
            passes[number].append(passed)
    assert all(sorted(found) == list(range(rows)) for found in passes.values())


def test_parts_have_rows_by_their_weights_and_as_many_in_all_as_sequences():
    lengths = {"a": [3, 9, 1], "b": [2] * 5, "c": [7]}
    parts = {name: SequenceIndex({"time": np.array(own)}) for name, own in lengths.items()}
    weights = [Fraction(3), Fraction(1), Fraction(0)]
    found = make_part_rows(parts, Fixed(2), weights)
    assert [(part.name, part.first, part.rows) for part in found] == [
        ("a", 0, 6), ("b", 3, 2), ("c", 8, 0)
    ]  # fmt: skip
    assert found[0].ranked.tolist() == [1, 0, 2]  # longest first
    assert not len(found[2].ranked)
    dropped = make_part_rows(parts, TokenBudget(8, too_long="drop"), weights)
    assert dropped[0].ranked.tolist() == [0, 2]


def test_rows_of_an_epoch_are_in_the_datas_order():
    parts = [PartRows("a", 0, np.array([1, 0]), 3), PartRows("b", 2, np.array([0]), 2)]
    index = SequenceIndex({"time": np.array([3, 9, 5])})
    drawn, passes = draw_rows(parts, index, seed=0, epoch=0)
    assert drawn.numbers.tolist() == sorted(drawn.numbers.tolist())
    assert drawn.index.lengths.tolist() == [[3, 9, 5][number] for number in drawn.numbers]
    assert passes[drawn.numbers == 2].tolist() == [0, 1]
