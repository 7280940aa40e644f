"""Flat values of a batch, row after row."""

import numpy as np

from seqdata.collators.varlen import Varlen
from tests.samples import collate_three_rows


def test_rows_have_the_values_of_their_sequences():
    batch = collate_three_rows(Varlen())
    assert batch.layout == Varlen.layout == "varlen"
    assert batch["x"].tolist() == [3.0] * 3 + [2.0] * 2 + [4.0] * 4
    assert batch.lengths.tolist() == [3, 2, 4]


def test_outputs_lie_where_the_allocator_says():
    shapes = []

    def allocate(shape, dtype):
        shapes.append(shape)
        return np.empty(shape, dtype)

    batch = collate_three_rows(Varlen().with_allocator(allocate))
    assert batch.lengths.sum() == 9
    assert shapes == []  # the loader lends memory of its own
    assert Varlen().with_allocator(allocate) == Varlen()  # memory is no part of what it is
