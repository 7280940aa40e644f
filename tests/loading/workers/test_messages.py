"""What travels between processes arrives as it was: requests, columns, errors about them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata.batch.axes import Axes
from seqdata.errors import LimitError
from seqdata.kernel.dispatch import get_kernel
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.workers.messages import (
    MAX_REQUESTS,
    SLOT_HEADER,
    ColumnsMessage,
    count_request_bytes,
    read_requests,
    reduce_tensor,
    unpack_columns,
    write_requests,
)
from seqdata.storage.array_column import ArrayColumn

CASES = settings().max_examples
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"]


@st.composite
def requests(draw):
    count = draw(st.integers(0, 5))
    numbers = st.integers(0, 1 << 40)
    flat = draw(st.lists(numbers, min_size=4 * count, max_size=4 * count))
    known = draw(st.booleans())
    return StepRequest(
        spans=np.array(flat[: 3 * count], dtype=np.int64).reshape(count, 3),
        ids=np.array(flat[3 * count :], dtype=np.int64),
        epoch=draw(st.integers(0, 1 << 40)),
        horizon=draw(st.integers(0, 9)),
        joint_targets=draw(st.booleans()),
        occurrences=np.arange(count, dtype=np.int64) << 33 if known else None,
    )


@settings(max_examples=CASES)
@given(sent=st.lists(requests(), min_size=1, max_size=MAX_REQUESTS))
def test_requests_arrive_as_they_were(sent):
    slot = memoryview(bytearray(1 << 14))
    write_requests(slot, sent)
    told = []
    found = read_requests(slot, told.append)
    slot[SLOT_HEADER:] = b"\xff" * (len(slot) - SLOT_HEADER)  # answers are written over them
    assert len(found) == len(sent)
    for one, other in zip(sent, found, strict=True):
        assert (one.epoch, one.horizon, one.joint_targets) == (
            other.epoch,
            other.horizon,
            other.joint_targets,
        )
        assert np.array_equal(one.spans, other.spans)
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.get_occurrences(), other.get_occurrences())
        assert (one.occurrences is None) == (other.occurrences is None)
        other.on_sequence(5)
    assert told == [5] * len(sent)


def test_a_request_that_fills_its_slot_goes_and_one_that_does_not_fit_says_so():
    spans = np.zeros((10, 3), dtype=np.int64)
    request = StepRequest(spans, spans[:, 0], 0)
    slot = memoryview(bytearray(SLOT_HEADER + 8 + count_request_bytes(request)))
    write_requests(slot, [request])
    assert len(read_requests(slot, print)[0].ids) == 10
    message = (
        r"loader: the 10 spans of a batch take 368 bytes, but at most 360 can be sent to a "
        r"worker process. Use smaller batches, or pass num_workers=0."
    )
    with pytest.raises(LimitError, match=message):
        write_requests(slot[:-8], [request])


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
        made[f"f{number}"] = ArrayColumn(dtype, shape, pieces)
    return made


def _lengths(count):
    return st.lists(st.integers(0, 6), min_size=count, max_size=count)


@settings(max_examples=CASES)
@given(sent=columns(), offset=st.sampled_from([0, SLOT_HEADER]))
@pytest.mark.slow
def test_columns_arrive_as_they_were(sent, offset):
    axes = Axes("time", dict.fromkeys(sent, "time"), dict.fromkeys(sent, 1))
    parcel = ColumnsMessage(sent, axes)
    size = parcel.size + len(parcel.header)
    slot = memoryview(bytearray(b"\xee" * (offset + size)))[offset:]
    parcel.write(slot)
    found, told = unpack_columns(slot, slot[parcel.size :], get_kernel())
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
    parcel = ColumnsMessage({}, None)
    slot = memoryview(bytearray(parcel.size + len(parcel.header)))
    parcel.write(slot)
    assert unpack_columns(slot, slot[parcel.size :], get_kernel()) == ({}, None)


def test_a_column_that_is_overwritten_keeps_its_lengths():
    parcel = ColumnsMessage(
        {"x": ArrayColumn(np.dtype("int64"), (), [np.arange(3), np.arange(2)])}, None
    )
    slot = memoryview(bytearray(parcel.size + len(parcel.header)))
    parcel.write(slot)
    column = unpack_columns(slot, slot[parcel.size :], get_kernel())[0]["x"]
    slot[:] = b"\x7f" * len(slot)
    out = np.zeros(6, dtype=np.int64)
    column.fill(out, np.array([0, 3, 6], dtype=np.int64), None)
    assert column.lengths.tolist() == [3, 2]
    assert out[5] == 0


def test_a_column_of_another_dtype_is_not_filled():
    parcel = ColumnsMessage({"x": ArrayColumn(np.dtype("int64"), (), [np.arange(3)])}, None)
    slot = memoryview(bytearray(parcel.size + len(parcel.header)))
    parcel.write(slot)
    column = unpack_columns(slot, slot[parcel.size :], get_kernel())[0]["x"]
    with pytest.raises(
        ValueError, match=r"fill: `out` must be int64, but is float32. Pass such an array"
    ):
        column.fill(np.zeros(3, dtype=np.float32), np.array([0, 3]), None)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.to_sparse(),
        lambda value: value.requires_grad_(),
        lambda value: value.to("meta"),
    ],
)
def test_tensors_that_are_more_than_an_array_are_pickled_by_torch(change):
    assert reduce_tensor(change(torch.eye(3))) is NotImplemented


def test_a_plain_tensor_is_sent_as_its_bytes():
    make, arguments = reduce_tensor(torch.eye(3).T[1:])
    assert torch.equal(make(*arguments), torch.eye(3)[1:])
