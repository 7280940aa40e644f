"""What ``fill`` copies, pads and refuses; the compiled kernel and its twin take the same tests."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqdata.kernel.dispatch import get_kernel
from seqdata.storage.fields import extents_of
from tests.kernel.engines import get_compiled, int64, numpy_kernel, spans

BIG = 2**63 - 1


def ragged(engine, *lengths_of_shards, dtype=np.int32):
    """Return a source whose timesteps count 0, 1, 2, … over all shards."""
    first, values, offsets, starts = 0, [], [], [0]
    for lengths in lengths_of_shards:
        edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values.append(np.arange(first, first + edges[-1]).astype(dtype))
        offsets.append(edges)
        starts.append(starts[-1] + len(lengths))
        first += edges[-1]
    width = np.dtype(dtype).itemsize
    return engine.source(tuple(values), extents_of(offsets), int64(*starts), width)


def test_fill_copies_spans_of_several_shards_and_pads_with_zeros(engine):
    source = ragged(engine, [3, 2], [], [4])
    out = np.full(10, -1, dtype=np.int32)
    table = spans([2, 1, 4], [0, 0, 3], [1, 1, 1])
    assert engine.fill(source, table, int64(0, 4, 8, 10), out, None) == -1
    assert out.tolist() == [6, 7, 8, 0, 0, 1, 2, 0, 0, 0]


def test_fill_leaves_what_lies_before_the_first_and_after_the_last_bound(engine):
    source = ragged(engine, [3])
    out = np.full(6, -1, dtype=np.int32)
    assert engine.fill(source, spans([0, 0, 2]), int64(1, 4), out, None) == -1
    assert out.tolist() == [-1, 0, 1, 0, -1, -1]


@pytest.mark.parametrize("value", [7, -1, 0, 0x01020304])
def test_fill_repeats_the_padding_of_one_element(engine, value):
    source = ragged(engine, [2])
    out = np.zeros(7, dtype=np.int32)
    padding = np.int32(value).tobytes()
    assert engine.fill(source, spans([0, 0, 2]), int64(0, 7), out, padding) == -1
    assert out.tolist() == [0, 1, *[value] * 5]


def test_fill_pads_every_element_of_a_timestep(engine):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    source = engine.source((values,), extents_of([int64(0, 2)]), int64(0, 1), 12)
    out = np.zeros((4, 3), dtype=np.float32)
    padding = np.float32(0.1).tobytes()
    assert engine.fill(source, spans([0, 0, 2]), int64(0, 4), out, padding) == -1
    assert (out[:2] == values).all()
    assert (out[2:] == np.float32(0.1)).all()


def test_fill_takes_rows_of_a_source_without_offsets(engine):
    values = (np.arange(4, dtype=np.int16), np.arange(4, 6, dtype=np.int16))
    source = engine.source(values, None, int64(0, 4, 6), 2)
    out = np.full(3, -1, dtype=np.int16)
    table = spans([5, 0, 1], [0, 0, 1], [3, 0, 0])
    assert engine.fill(source, table, int64(0, 1, 2, 3), out, None) == -1
    assert out.tolist() == [5, 0, 0]


def test_fill_of_no_spans_does_nothing(engine):
    source = ragged(engine, [3])
    assert engine.fill(source, spans(), int64(0), np.empty(0, dtype=np.int32), None) == -1


def test_fill_takes_more_spans_than_fit_on_its_stack(engine):
    source = ragged(engine, [1] * 1000)
    numbers = np.arange(1000)[::-1]
    table = np.stack([numbers, numbers * 0, numbers * 0 + 1], axis=1)
    out = np.empty(1000, dtype=np.int32)
    assert engine.fill(source, table, np.arange(1001), out, None) == -1
    assert (out == numbers).all()


@pytest.mark.parametrize(
    "bad",
    [
        [-1, 0, 0], [3, 0, 0], [BIG, 0, 0], [-BIG - 1, 0, 0],
        [1, -1, 1], [1, 2, 1], [1, 0, 3], [1, 3, 3], [1, BIG, BIG], [1, -BIG - 1, BIG],
    ],
)  # fmt: skip
def test_fill_gives_the_number_of_the_first_bad_span_and_writes_nothing(engine, bad):
    source = ragged(engine, [3, 2, 1])
    out = np.full(9, -1, dtype=np.int32)
    table = spans([0, 0, 3], bad, [99, 0, 0])
    assert engine.fill(source, table, int64(0, 3, 6, 9), out, None) == 1
    assert (out == -1).all()


@pytest.mark.parametrize(
    "offsets",
    [(0, -1, 2), (0, 3, 2), (0, 0, 5), (0, 0, BIG), (0, -BIG - 1, BIG), (0, BIG, BIG)],
)
def test_fill_refuses_recorded_offsets_outside_of_the_values(engine, offsets):
    values = np.arange(4, dtype=np.int32)
    source = engine.source((values,), extents_of([int64(*offsets)]), int64(0, 2), 4)
    out = np.full(4, -1, dtype=np.int32)
    assert engine.fill(source, spans([1, 0, 0]), int64(0, 4), out, None) == 0
    assert (out == -1).all()


@pytest.mark.parametrize(
    "bounds",
    [(-1, 2, 4), (0, 1, 4), (0, 3, 2), (0, 2, 5), (5, 5, 5), (0, 2, BIG), (-BIG - 1, 2, 4)],
)
def test_fill_refuses_bounds_that_do_not_hold_the_spans(engine, bounds):
    source = ragged(engine, [2, 2])
    out = np.full(4, -1, dtype=np.int32)
    with pytest.raises(ValueError, match="`bounds` must rise inside `out` and hold every span"):
        engine.fill(source, spans([0, 0, 2], [1, 0, 2]), int64(*bounds), out, None)
    assert (out == -1).all()


@pytest.mark.parametrize(
    ("table", "bounds"),
    [(int64(1, 2), int64(0)), (spans([0, 0, 1]), int64(0)), (spans(), int64())],
)
def test_fill_refuses_tables_of_another_shape(engine, table, bounds):
    source = ragged(engine, [2])
    with pytest.raises(ValueError, match=r"needs `spans` int64 \(n, 3\), `bounds` int64 \(n\+1\)"):
        engine.fill(source, table, bounds, np.empty(1, dtype=np.int32), None)


@pytest.mark.parametrize("padding", [b"", b"abc", b"12345678"])
def test_fill_refuses_a_padding_that_is_not_one_element(engine, padding):
    source = ragged(engine, [2])
    with pytest.raises(ValueError, match="`padding` must be one element of the field"):
        engine.fill(source, spans(), int64(0), np.empty(1, dtype=np.int32), padding)


def test_fill_refuses_what_is_no_source(engine):
    with pytest.raises(TypeError, match=r"fill: takes|fill: `source` must be made by"):
        engine.fill(object(), spans(), int64(0), np.empty(1, dtype=np.int32), None)


def test_fill_refuses_arrays_that_are_not_contiguous(engine):
    source = ragged(engine, [2])
    with pytest.raises(ValueError, match="not C-contiguous"):
        engine.fill(source, spans(*[[0, 0, 1]] * 3)[::2], int64(0, 1, 2), np.empty(9), None)


def test_fill_refuses_an_output_that_is_read_only(engine):
    source = ragged(engine, [2])
    out = np.empty(1, dtype=np.int32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        engine.fill(source, spans([0, 0, 1]), int64(0, 1), out, None)


@pytest.mark.parametrize("starts", [(), (0,), (0, 2, 1), (1, 2, 3), (0, 1, 2, 3)])
def test_source_refuses_starts_that_do_not_rise_from_zero(engine, starts):
    values = (np.arange(4, dtype=np.int32),) * 2
    with pytest.raises(ValueError, match="`starts` must rise from 0, one more than shards"):
        engine.source(values, None, int64(*starts), 4)


def test_source_refuses_values_that_are_too_short(engine):
    with pytest.raises(ValueError, match="`values` of shard 1 are too short"):
        engine.source((bytes(8), bytes(7)), None, int64(0, 2, 4), 4)


@pytest.mark.parametrize("counts", [(1, 2), (2, 1)])
def test_source_refuses_extents_that_are_too_short(engine, counts):
    extents = tuple(np.zeros(count, dtype=np.int64) for count in counts)
    with pytest.raises(ValueError, match="`extents` of shard 0 are too short"):
        engine.source((bytes(8),), (extents,), int64(0, 2), 4)


@pytest.mark.parametrize("extents", [int64(0, 1, 2), (int64(0, 1),), [int64(0, 1), int64(1, 2)]])
def test_source_refuses_extents_that_are_no_pair(engine, extents):
    with pytest.raises(ValueError, match=r"`extents` of shard 0 must be \(begins, ends\)"):
        engine.source((bytes(8),), (extents,), int64(0, 2), 4)


@pytest.mark.parametrize(
    ("extents", "width", "unit"), [(None, 0, 1), (None, -1, 1), ((), 4, 4), (None, 4, 0)]
)
def test_source_refuses_a_width_of_nothing_and_other_numbers_of_shards(
    engine, extents, width, unit
):
    with pytest.raises(ValueError, match="`width` and `unit` >= 1, and one `extents` per shard"):
        engine.source((bytes(8),), extents, int64(0, 2), width, None, unit)


def test_fill_takes_values_that_lie_anywhere_in_a_file(engine):
    file = bytes(range(40))
    begins, ends = int64(21, 3, -1, 30), int64(27, 3, -1, 34)
    source = engine.source((file,), ((begins, ends),), int64(0, 4), 2, None, 1)
    out = np.zeros((4, 2), dtype=np.uint8)
    table = spans([0, 1, 3], [1, 0, 0], [3, 0, 2])
    assert engine.fill(source, table, int64(0, 2, 2, 4), out, None) == -1
    assert out.tolist() == [[23, 24], [25, 26], [30, 31], [32, 33]]
    assert engine.verify(source, spans([2, 0, 0])) == 0  # it has none
    assert engine.verify(source, spans([0, 0, 4])) == 0  # not so long


@pytest.mark.parametrize(
    ("begin", "end"), [(35, 41), (-3, 3), (7, 6), (BIG, BIG), (0, BIG), (-BIG - 1, 5)]
)
def test_fill_refuses_extents_outside_of_a_file(engine, begin, end):
    source = engine.source((bytes(40),), ((int64(begin), int64(end)),), int64(0, 1), 2, None, 1)
    assert engine.verify(source, spans([0, 0, 1])) == 0


def test_source_refuses_lists(engine):
    with pytest.raises(TypeError, match=r"takes \(values, extents or None, starts, width, checks"):
        engine.source([bytes(8)], None, int64(0, 2), 4)


def test_a_source_holds_its_buffers_as_long_as_it_lives(engine):
    values = bytearray(np.arange(4, dtype=np.int32).tobytes())
    source = engine.source((values,), None, int64(0, 4), 4)
    with pytest.raises(BufferError):
        values.append(0)
    del source
    values.append(0)


small = st.integers(-2, 9) | st.sampled_from([BIG, -BIG - 1, 1 << 32])


@st.composite
def calls(draw):
    """Return arguments of ``source`` and ``fill``, mostly sane, sometimes garbage."""
    width = draw(st.integers(1, 3))
    counts = draw(st.lists(st.integers(0, 3), max_size=4))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    if draw(st.booleans()):
        values = tuple(bytes(range(n * width)) for n in counts)
        offsets = None
    else:
        edges = [sorted(draw(st.lists(st.integers(0, 8), min_size=n + 1, max_size=n + 1)))
                 for n in counts]  # fmt: skip
        values = tuple(bytes(range(8 * width)) for _ in counts)
        for one in edges:
            if draw(st.integers(0, 4)) == 0:
                one[draw(st.integers(0, len(one) - 1))] = draw(small)
        offsets = extents_of(np.array(one, dtype=np.int64) for one in edges)
    last = int(starts[-1])
    n = draw(st.integers(0, 5))
    rows = []
    for _ in range(n):
        start = draw(st.integers(0, 4))
        row = [draw(st.integers(0, max(0, last - 1))), start, start + draw(st.integers(0, 3))]
        if draw(st.integers(0, 4)) == 0:
            row[draw(st.integers(0, 2))] = draw(small)
        rows.append(row)
    bounds = np.cumsum([0, *draw(st.lists(st.integers(2, 6), min_size=n, max_size=n))])
    bounds = bounds.astype(np.int64)
    if draw(st.integers(0, 4)) == 0:
        bounds[draw(st.integers(0, n))] = draw(small)
    room = draw(st.integers(0, 3)) + max(0, min(int(bounds[-1]), 64))
    padding = draw(st.none() | st.binary(min_size=width, max_size=width) | st.just(b"\xff"))
    unit = draw(st.sampled_from([width, width, 1, 2]))
    return (
        (values, offsets, starts, width, None, unit),
        (spans(*rows), bounds),
        room * width,
        padding,
    )


def outcome(engine, call):
    """Run a call on the middle of a guarded output; give what it returned or raised, and wrote."""
    source_args, (table, bounds), size, padding = call
    whole = np.full(size + 128, 0xA5, dtype=np.uint8)
    try:
        source = engine.source(*source_args)
        result = engine.fill(source, table, bounds, whole[64 : 64 + size], padding)
    except ValueError as error:
        result = str(error)
    assert (whole[:64] == 0xA5).all()
    assert (whole[64 + size :] == 0xA5).all()
    return result, whole.tobytes()


@given(calls())
@example(
    (((b"",), extents_of([int64(0)]), int64(0, 0), 1), (spans([0, 0, 0]), int64(0, 0)), 0, None)
)
def test_the_compiled_kernel_and_its_twin_do_the_same_whatever_the_buffers_hold(call):
    assert outcome(get_compiled(), call) == outcome(numpy_kernel, call)


def test_the_kernel_in_use_fills(monkeypatch):
    monkeypatch.delenv("SEQDATA_KERNEL", raising=False)
    engine = get_kernel()
    out = np.empty(2, dtype=np.int32)
    assert engine.fill(ragged(engine, [2]), spans([0, 0, 2]), int64(0, 2), out, None) == -1
    assert out.tolist() == [0, 1]
