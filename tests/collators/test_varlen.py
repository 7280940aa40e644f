"""Flat values of a batch, row after row."""

import numpy as np

from seqdata import Fixed, Loader
from seqdata.collators.varlen import Varlen


def batch_of(collator):
    rows = [{"x": np.full(n, n, "f4")} for n in (3, 2, 4)]
    return next(iter(Loader(rows, Fixed(3, shuffle=False), collator=collator)))


def test_rows_have_the_values_of_their_sequences():
    batch = batch_of(Varlen())
    assert batch.layout == Varlen.layout == "varlen"
    assert batch["x"].tolist() == [3.0] * 3 + [2.0] * 2 + [4.0] * 4
    assert batch.lengths.tolist() == [3, 2, 4]


def test_outputs_lie_where_the_allocator_says():
    shapes = []

    def allocate(shape, dtype):
        shapes.append(shape)
        return np.empty(shape, dtype)

    batch = batch_of(Varlen().with_allocator(allocate))
    assert batch.lengths.sum() == 9
    assert shapes == []  # the loader lends memory of its own
    assert Varlen().with_allocator(allocate) == Varlen()  # memory is no part of what it is
