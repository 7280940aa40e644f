"""Whatever is written or held is read back as NumPy would slice it."""

import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.memory import MemoryStore
from seqdata.storage.packing import NUMBER_DTYPES

AXES = ("time", "text", None)
KINDS = st.sampled_from([*NUMBER_DTYPES, "str", "bytes"])


@st.composite
def data_sets(draw):
    """Return (axes, sequences): random fields and lengths, at least one ragged field."""
    shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
    fields = {
        "f0": (draw(st.sampled_from(NUMBER_DTYPES)), draw(shapes), draw(st.sampled_from(AXES[:2])))
    }
    for i in range(draw(st.integers(0, 4))):
        fields[f"f{i + 1}"] = (draw(KINDS), draw(shapes), draw(st.sampled_from(AXES)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 12))
    most = draw(st.sampled_from([0, 1, 5, 40]))
    rows = []
    for number in range(count):
        lengths = {axis: int(random.integers(0, most + 1)) for axis in AXES[:2]}
        row = {name: value_of(random, *field, lengths) for name, field in fields.items()}
        rows.append({"id": f"u{number}", **row} if count % 2 else row)
    axes = {
        name: axis
        for name, (dtype, shape, axis) in fields.items()
        if dtype not in ("str", "bytes") and (axis or shape)
    }
    return axes, rows


def value_of(random, dtype, shape, axis, lengths):
    if dtype == "str":
        return "".join(chr(int(c)) for c in random.integers(32, 0x2FFF, random.integers(0, 5)))
    if dtype == "bytes":
        return random.bytes(int(random.integers(0, 5)))
    full = shape if axis is None else (lengths[axis], *shape)
    raw = random.integers(0, 100, full)
    return raw % 2 == 1 if dtype == "bool" else np.asarray(raw).astype(dtype)


def check(store, axes, rows, random):
    ragged = {name: axis for name, axis in axes.items() if axis}
    for axis in set(ragged.values()):
        name = next(one for one, along in ragged.items() if along == axis)
        assert store.lengths_of[axis].tolist() == [len(row[name]) for row in rows]
        lengths = store.lengths_of[axis].astype(np.int64)
        numbers = random.integers(0, len(rows), 7)
        starts = random.integers(0, lengths[numbers] + 1)
        stops = random.integers(starts, lengths[numbers] + 1)
        spans = np.stack([numbers, starts, stops], axis=1)
        columns = store.read(spans, store.fields, axis=axis)
        for field, column in columns.items():
            given = [np.asarray(rows[i][field]) for i in numbers]
            if isinstance(column, list):
                assert column == [rows[i][field] for i in numbers]
            elif axes.get(field) == axis:
                check_column(column, [g[a:b] for g, a, b in zip(given, starts, stops, strict=True)])
            elif axes.get(field):
                check_column(column, given)
            else:
                check_column(column, [one[None] for one in given])


def check_column(column, expected):
    assert [len(one) for one in expected] == column.lengths.tolist()
    assert (column.dtype, column.shape) == (expected[0].dtype, expected[0].shape[1:])
    width = int(column.lengths.max()) + 1
    out = np.empty((len(expected) * width, *column.shape), dtype=column.dtype)
    column.fill(out, np.arange(len(expected) + 1) * width, np.ones(1, column.dtype).tobytes())
    rows = out.reshape(len(expected), width, *column.shape)
    for i, one in enumerate(expected):
        assert np.array_equal(column[i], one)
        assert np.array_equal(rows[i, : len(one)], one)
        assert (rows[i, len(one) :] == 1).all()


@settings(max_examples=60)
@given(data_sets(), st.sampled_from([1, 60, 1 << 20]))
@pytest.mark.slow
def test_stored_sequences_are_read_as_they_were_given(data_set, shard_bytes):
    axes, rows = data_set
    with tempfile.TemporaryDirectory() as folder:
        store = write_arrow(folder, iter(rows), axes=axes, shard_bytes=shard_bytes)
        check(store, axes, rows, np.random.default_rng(0))


@given(data_sets())
def test_sequences_in_memory_are_read_as_they_were_given(data_set):
    axes, rows = data_set
    check(MemoryStore.from_sequences(iter(rows), axes), axes, rows, np.random.default_rng(0))
