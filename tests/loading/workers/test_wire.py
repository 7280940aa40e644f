"""What travels between processes arrives as it was: requests, columns, errors about them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata.batch.axes import Axes
from seqdata.errors import LimitError
from seqdata.kernel.dispatch import kernel
from seqdata.loading.step_requests import Request
from seqdata.loading.workers import shared_slots as slots
from seqdata.loading.workers.messages import (
    Parcel,
    columns_of,
    get_requests,
    put_requests,
    room_for,
)
from seqdata.loading.workers.shared_slots import GROUP, HEAD, Arena
from seqdata.storage.array_column import PieceColumn

CASES = settings().max_examples
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"]


@st.composite
def requests(draw):
    count = draw(st.integers(0, 5))
    numbers = st.integers(0, 1 << 40)
    flat = draw(st.lists(numbers, min_size=4 * count, max_size=4 * count))
    known = draw(st.booleans())
    return Request(
        spans=np.array(flat[: 3 * count], dtype=np.int64).reshape(count, 3),
        ids=np.array(flat[3 * count :], dtype=np.int64),
        epoch=draw(st.integers(0, 1 << 40)),
        horizon=draw(st.integers(0, 9)),
        together=draw(st.booleans()),
        occurrences=np.arange(count, dtype=np.int64) << 33 if known else None,
    )


@settings(max_examples=CASES)
@given(sent=st.lists(requests(), min_size=1, max_size=GROUP))
def test_requests_arrive_as_they_were(sent):
    slot = memoryview(bytearray(1 << 14))
    put_requests(slot, sent)
    told = []
    found = get_requests(slot, told.append)
    slot[HEAD:] = b"\xff" * (len(slot) - HEAD)  # answers are written over them
    assert len(found) == len(sent)
    for one, other in zip(sent, found, strict=True):
        assert (one.epoch, one.horizon, one.together) == (
            other.epoch,
            other.horizon,
            other.together,
        )
        assert np.array_equal(one.spans, other.spans)
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.drawings(), other.drawings())
        assert (one.occurrences is None) == (other.occurrences is None)
        other.tell(5)
    assert told == [5] * len(sent)


def test_a_request_that_fills_its_slot_goes_and_one_that_does_not_fit_says_so():
    spans = np.zeros((10, 3), dtype=np.int64)
    request = Request(spans, spans[:, 0], 0)
    slot = memoryview(bytearray(HEAD + 8 + room_for(request)))
    put_requests(slot, [request])
    assert len(get_requests(slot, print)[0].ids) == 10
    message = (
        r"loader: 10 spans of one batch take 368 bytes, must take at most 360 to be sent to a "
        r"worker process; make batches smaller, or pass num_workers=0"
    )
    with pytest.raises(LimitError, match=message):
        put_requests(slot[:-8], [request])


@st.composite
def columns(draw):
    count = draw(st.integers(0, 4))
    made = {}
    for number in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["ragged", "value", "text"]))
        if kind == "text":
            made[f"f{number}"] = draw(st.lists(st.text(), min_size=count, max_size=count))
            continue
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
        lengths = [1] * count if kind == "value" else draw(_lengths(count))
        pieces = [
            (np.arange(length * int(np.prod(shape))) % 7).astype(dtype).reshape(length, *shape)
            for length in lengths
        ]
        made[f"f{number}"] = PieceColumn(dtype, shape, pieces)
    return made


def _lengths(count):
    return st.lists(st.integers(0, 6), min_size=count, max_size=count)


@settings(max_examples=CASES)
@given(sent=columns(), offset=st.sampled_from([0, HEAD]))
@pytest.mark.slow
def test_columns_arrive_as_they_were(sent, offset):
    axes = Axes("time", dict.fromkeys(sent, "time"), dict.fromkeys(sent, 1))
    parcel = Parcel(sent, axes)
    size = parcel.size + len(parcel.head)
    slot = memoryview(bytearray(b"\xee" * (offset + size)))[offset:]
    parcel.write(slot)
    found, told = columns_of(slot, slot[parcel.size :], kernel())
    assert repr(told) == repr(axes)
    assert list(found) == list(sent)
    for name, column in sent.items():
        if isinstance(column, list):
            assert found[name] == column
            continue
        other = found[name]
        assert (other.dtype, other.shape, len(other)) == (column.dtype, column.shape, len(column))
        assert np.array_equal(other.lengths, column.lengths)
        for number, piece in enumerate(column.pieces):
            assert np.array_equal(other[number], piece)
        check_fill(column, other)


def check_fill(column, other):
    """Two columns fill the same padded rows."""
    lengths = column.lengths
    bounds = np.arange(len(lengths) + 1, dtype=np.int64) * int(max(lengths, default=0) + 1)
    padding = np.ones(1, dtype=column.dtype).tobytes()
    one, two = (np.zeros((int(bounds[-1]), *column.shape), dtype=column.dtype) for _ in range(2))
    column.fill(one, bounds, padding)
    other.fill(two, bounds, padding)
    assert np.array_equal(one, two)


def test_axes_that_the_main_process_knows_are_not_sent():
    parcel = Parcel({}, None)
    slot = memoryview(bytearray(parcel.size + len(parcel.head)))
    parcel.write(slot)
    assert columns_of(slot, slot[parcel.size :], kernel()) == ({}, None)


def test_a_column_that_is_overwritten_keeps_its_lengths():
    parcel = Parcel({"x": PieceColumn(np.dtype("int64"), (), [np.arange(3), np.arange(2)])}, None)
    slot = memoryview(bytearray(parcel.size + len(parcel.head)))
    parcel.write(slot)
    column = columns_of(slot, slot[parcel.size :], kernel())[0]["x"]
    slot[:] = b"\x7f" * len(slot)
    out = np.zeros(6, dtype=np.int64)
    column.fill(out, np.array([0, 3, 6], dtype=np.int64), None)
    assert column.lengths.tolist() == [3, 2]
    assert out[5] == 0


def test_a_column_of_another_dtype_is_not_filled():
    parcel = Parcel({"x": PieceColumn(np.dtype("int64"), (), [np.arange(3)])}, None)
    slot = memoryview(bytearray(parcel.size + len(parcel.head)))
    parcel.write(slot)
    column = columns_of(slot, slot[parcel.size :], kernel())[0]["x"]
    with pytest.raises(ValueError, match=r"fill: `out` is float32, must be int64; make it so"):
        column.fill(np.zeros(3, dtype=np.float32), np.array([0, 3]), None)


def test_slots_and_lines_of_status_do_not_touch_each_other():
    arena = Arena.of(3, 4, 1 << 13)
    for number in range(4):
        arena.slot(number)[:] = bytes([number + 1]) * (1 << 13)
    arena.status()[:] = 99
    for number in range(4):
        assert bytes(arena.slot(number)) == bytes([number + 1]) * (1 << 13)
        table, done = slots.table(arena.slot(number)), slots.done(arena.slot(number))
        assert table.shape == (GROUP, 3)
        assert 8 * (table.size + done.size) <= HEAD
    assert (arena.status() == 99).all()
