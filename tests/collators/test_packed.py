"""PackedSequences of a batch, for rows in any order."""

import numpy as np
from torch.nn.utils.rnn import pad_packed_sequence

from seqdata.collators.packed import PackedRows
from tests.samples import collate_three_rows


def test_rows_have_the_values_of_their_sequences():
    batch = collate_three_rows(PackedRows())
    assert batch.layout == PackedRows.layout == "packed"
    padded, lengths = pad_packed_sequence(batch["x"], batch_first=True)
    assert lengths.tolist() == [3, 2, 4]
    assert [row[:n].tolist() for row, n in zip(padded, lengths, strict=True)] == [
        [3.0] * 3, [2.0] * 2, [4.0] * 4
    ]  # fmt: skip


def test_outputs_lie_where_the_allocator_says():
    shapes = []

    def allocate(shape, dtype):
        shapes.append(shape)
        return np.empty(shape, dtype)

    batch = collate_three_rows(PackedRows().with_allocator(allocate))
    assert batch.lengths.sum() == 9
    assert shapes == []  # the loader lends memory of its own
    assert PackedRows().with_allocator(allocate) == PackedRows()  # memory is no part of what it is
