"""Chunks of rows hold every timestep once, whatever sequences begin and end in them."""

import itertools

import numpy as np
import pytest

from seqdata.storage.memory import MemoryStore
from seqdata.storage.row_chunks import RowChunks, flatten_column

LENGTHS = [3, 0, 5, 1, 0, 0, 12, 2]


def make_store():
    return MemoryStore.from_sequences([
        {"x": np.arange(length) + 100 * number, "y": number, "id": f"u{number}"}
        for number, length in enumerate(LENGTHS)
    ])  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 4, 7, 23, 100])
def test_chunks_of_timesteps_are_the_field_end_to_end(size):
    store = make_store()
    chunks = RowChunks.along(store, "time", size)
    parts = [flatten_column(store.read(spans, ["x"])["x"]) for spans in chunks]
    assert len(parts) == len(chunks)
    assert all(len(part) == size for part in parts[:-1])
    whole = np.concatenate([np.arange(length) + 100 * k for k, length in enumerate(LENGTHS)])
    assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("size", [1, 3, 8, 20])
def test_chunks_of_sequences_hold_one_value_of_each(size):
    store = make_store()
    chunks = RowChunks.of_sequences(store, size)
    values = [flatten_column(store.read(spans, ["y"])["y"]) for spans in chunks]
    assert np.concatenate(values).tolist() == list(range(len(LENGTHS)))
    texts = [flatten_column(store.read(spans, ["id"])["id"]) for spans in chunks]
    assert list(itertools.chain(*texts)) == [f"u{k}" for k in range(len(LENGTHS))]


@pytest.mark.parametrize("size", [1, 4, 7])
def test_sequences_that_end_in_the_first_chunks_are_counted(size):
    chunks = RowChunks.along(make_store(), "time", size)
    ends = np.cumsum(LENGTHS)
    counts = [chunks.count_sequences(number) for number in range(len(chunks))]
    assert counts == [int((ends <= number * size).sum()) for number in range(len(chunks))]


def test_a_field_without_timesteps_has_no_chunks():
    store = MemoryStore.from_sequences([{"x": np.zeros(0)}, {"x": np.zeros(0)}])
    assert list(RowChunks.along(store, "time", 4)) == []
