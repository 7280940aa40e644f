"""What collators share: one value per row, sums by row, and flat values in memory of the caller."""

import numpy as np
import torch

from seqdata import Fixed, Loader, Packed
from seqdata.collators.base import fill_flat, first_spans, sum_by_row
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.memory import MemoryStore

ROWS = [{"x": np.full(n, n, "f4"), "y": n, "note": f"s{n}"} for n in (3, 2, 4, 1)]


def rows_of(policy, collator="varlen"):
    return next(iter(Loader(MemoryStore.from_sequences(ROWS), policy, collator=collator)))


def test_a_row_of_several_spans_has_the_values_of_its_first_one():
    batch = rows_of(Packed(rows=2, row_length=6, shuffle=False))
    starts = np.unique(batch.segments[:, 0].numpy(), return_index=True)[1]
    assert len(batch.segments) > len(batch)
    assert first_spans(batch).tolist() == starts.tolist()
    begins = np.cumsum(batch.lengths.numpy()) - batch.lengths.numpy()
    assert batch["y"].tolist() == batch["x"][begins].tolist()  # each x is its sequence's y
    assert [f"s{y}" for y in batch["y"].tolist()] == batch["note"]


def test_timesteps_are_summed_by_row():
    batch = rows_of(Packed(rows=2, row_length=6, shuffle=False))
    lengths = batch.segments[:, 2].numpy() - batch.segments[:, 1].numpy()
    assert sum_by_row(np.abs(lengths), batch).sum() == np.abs(lengths).sum()
    plain = rows_of(Fixed(4, shuffle=False))
    assert sum_by_row(np.array([3, 2, 4, 1]), plain).tolist() == [3, 2, 4, 1]
    assert first_spans(plain).tolist() == [0, 1, 2, 3]


def test_flat_values_lie_row_after_row_in_the_memory_that_is_given():
    batch = rows_of(Fixed(4, shuffle=False))
    pieces = [np.full(n, 10 * n, "f4") for n in (3, 2, 4, 1)]
    given = []

    def allocate(shape, dtype):
        given.append(np.full(shape, -1, dtype=dtype))
        return given[-1]

    filled = fill_flat({"x": ArrayColumn(np.dtype("f4"), (), pieces)}, batch, allocate)
    assert filled.layout == "varlen"
    assert torch.equal(filled["x"], torch.from_numpy(np.concatenate(pieces)))
    assert np.shares_memory(filled["x"].numpy(), given[0])
