"""Nested tensors of a batch: each row as long as its sequence."""

import numpy as np
import torch

from seqdata.collators.jagged import Jagged
from tests.samples import collate_three_rows


def test_rows_have_the_values_of_their_sequences():
    batch = collate_three_rows(Jagged())
    assert batch.layout == Jagged.layout == "jagged"
    assert batch["x"].layout == torch.jagged
    assert batch["x"].values().tolist() == [3.0] * 3 + [2.0] * 2 + [4.0] * 4
    assert batch["x"].offsets().tolist() == [0, 3, 5, 9]


def test_outputs_lie_where_the_allocator_says():
    shapes = []

    def allocate(shape, dtype):
        shapes.append(shape)
        return np.empty(shape, dtype)

    batch = collate_three_rows(Jagged().with_allocator(allocate))
    assert batch.lengths.sum() == 9
    assert shapes == []  # the loader lends memory of its own
    assert Jagged().with_allocator(allocate) == Jagged()  # memory is no part of what it is
