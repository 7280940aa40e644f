"""What ``pack`` takes, and what it gives back whole; the compiled kernel and its twin alike."""

import pickle

import numpy as np
import pytest

from seqdata.kernel.pack_rows import MAX_KEY_BYTES, FieldBuffer, FieldKind


def ragged(name="x", dtype="int32", shape=(), room=8, most=8):
    dtype = np.dtype(dtype)
    width = dtype.itemsize * int(np.prod(shape, dtype=int))
    values, ends = np.full((room, *shape), 99, dtype=dtype), np.full(most, -1, dtype=np.int64)
    return FieldBuffer(name, FieldKind.RAGGED, None, dtype, shape, width, values, 0, ends)


def fixed(name="x", dtype="int16", shape=(2,), room=4):
    dtype = np.dtype(dtype)
    width = dtype.itemsize * int(np.prod(shape, dtype=int))
    values = np.zeros((room, *shape), dtype=dtype)
    return FieldBuffer(name, FieldKind.FIXED, None, dtype, shape, width, values, 0, None)


def number(name="x", dtype="int64", type_=int, room=8):
    scalar = np.dtype(dtype).type
    values = np.zeros(room, dtype=dtype)
    return FieldBuffer(name, FieldKind.NUMBER, type_, scalar, (), values.itemsize, values, 0, None)


def text(name="x", kind=FieldKind.TEXT, room=2048, most=8):
    values, ends = np.zeros(room, dtype=np.uint8), np.full(most, -1, dtype=np.int64)
    return FieldBuffer(name, kind, None, None, (), 1, values, 0, ends)


def pack(engine, rows, *loans, most=8, stop=1 << 20):
    return engine.pack(iter(rows), loans, np.ndarray, most, stop)


def int32(*values):
    return np.array(values, dtype=np.int32)


def test_rows_of_every_kind_are_copied(engine):
    loans = (
        ragged(), ragged("f", "float32", (2,)), fixed("v"), number("n"), text("id", FieldKind.KEY),
        text("b", FieldKind.BYTES), text("t"),
    )  # fmt: skip
    rows = [
        {
            "x": int32(*range(count)), "f": np.full((count, 2), count, dtype="float32"),
            "v": np.array([count, 1], dtype="int16"), "n": -count, "id": f"s{count}",
            "b": b"\0" * count, "t": "é" * count,
        }
        for count in (2, 0, 3)
    ]  # fmt: skip
    count, size, used, left = pack(engine, rows, *loans)
    assert (count, left) == (3, None)
    assert used == (20, 40, 12, 24, 6, 5, 10)
    assert size == sum(used) + 8 * 3 * 5  # five fields have ends
    x, f, v, n, key, b, t = loans
    assert x.values.tolist() == [0, 1, 0, 1, 2, 99, 99, 99]
    assert x.ends[:4].tolist() == [2, 2, 5, -1]
    assert f.values[:5, 1].tolist() == [2, 2, 3, 3, 3]
    assert f.ends[:3].tolist() == [2, 2, 5]
    assert v.values[:3].tolist() == [[2, 1], [0, 1], [3, 1]]
    assert n.values[:3].tolist() == [-2, 0, -3]
    assert key.values[:6].tobytes() == b"s2s0s3"
    assert b.ends[:3].tolist() == [2, 2, 5]
    assert t.values[:10].tobytes().decode() == "é" * 5
    assert t.ends[:3].tolist() == [4, 4, 10]


def test_values_go_behind_what_is_there(engine):
    loan = ragged()._replace(used=8)
    assert pack(engine, [{"x": int32(7)}], loan) == (1, 12, (12,), None)
    assert loan.values.tolist()[:4] == [99, 99, 7, 99]
    assert loan.ends[0] == 3


class Row(dict):
    """Not quite a dict: what it holds may be anything."""


class Words(str):
    """Not quite a str."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("loan", "value"),
    [
        (ragged(), [1, 2]),
        (ragged(), np.array([1, 2])),
        (ragged(), np.array([1, 2], dtype=">i4")),
        (ragged(), int32(1, 2, 3, 4)[::2]),
        (ragged(), np.array(1, dtype=np.int32)),
        (ragged(), np.ones((2, 1), dtype=np.int32)),
        (ragged(), np.ma.masked_array(int32(1))),
        (ragged(shape=(2,)), np.ones((2, 3), dtype=np.int32)),
        (ragged(), None),
        (fixed(), np.ones(3, dtype=np.int16)),
        (fixed(), np.ones((1, 2), dtype=np.int16)),
        (number(), True),
        (number(), 1.0),
        (number(), 1 << 63),
        (number(), np.int32(1)),
        (number(dtype="float64", type_=float), 1),
        (number(dtype="bool", type_=bool), 1),
        (number(dtype="int32", type_=np.int32), 1),
        (text(), b"x"),
        (text(), Words("x")),
        (text(), "\ud800"),
        (text(kind=FieldKind.KEY), "a\0b"),
        (text(kind=FieldKind.KEY), "x" * (MAX_KEY_BYTES + 1)),
        (text(kind=FieldKind.BYTES), "x"),
        (text(kind=FieldKind.BYTES), bytearray(b"x")),
    ],
)
def test_what_is_not_plain_is_given_back_and_nothing_of_it_is_kept(engine, loan, value):
    row, before = {"a": int32(1), "x": value}, loan.values.copy()
    first = ragged("a")
    assert pack(engine, [row, row], first, loan) == (0, 0, (0, 0), (row,))
    assert (loan.values == before).all()
    assert first.values.tolist() == [99] * 8


@pytest.mark.parametrize(
    "row", [Row(x=int32(1)), {}, {"y": int32(1)}, {"x": int32(1), "y": 1}, [1], None, int32(1)]
)
def test_a_row_that_is_no_dict_of_the_fields_is_given_back(engine, row):
    count, size, used, left = pack(engine, [{"x": int32(1)}, row], ragged())
    assert (count, size, used) == (1, 12, (4,))
    assert left[0] is row


@pytest.mark.parametrize(
    ("loan", "value", "due"),
    [
        (number(), np.int64(5), 5),
        (number(), -(1 << 63), -(1 << 63)),
        (number(dtype="float64", type_=float), 0.5, 0.5),
        (number(dtype="float64", type_=float), np.float64(0.5), 0.5),
        (number(dtype="bool", type_=bool), True, True),
        (number(dtype="int32", type_=np.int32), np.int32(-5), -5),
        (number(dtype="float16", type_=np.float16), np.float16(1.5), 1.5),
    ],
)
def test_numbers_of_python_and_of_numpy(engine, loan, value, due):
    assert pack(engine, [{"x": value}], loan)[0] == 1
    assert loan.values[0] == due


def test_an_equal_dtype_of_other_identity_is_plain(engine):
    value = pickle.loads(pickle.dumps(int32(1, 2)))
    assert pack(engine, [{"x": value}], ragged())[0] == 1


def test_an_id_may_be_as_long_as_ids_may_be(engine):
    assert pack(engine, [{"x": "x" * MAX_KEY_BYTES}], text(kind=FieldKind.KEY))[0] == 1


@pytest.mark.parametrize(
    ("loan", "value"),
    [(ragged(room=3), int32(1, 2)), (text(room=3), "ab"), (fixed(room=1), np.ones(2, "int16"))],
)
def test_a_row_without_room_is_given_back(engine, loan, value):
    count, _, used, left = pack(engine, [{"x": value}] * 3, loan)
    assert count == 1
    assert used[0] <= loan.values.nbytes
    assert left[0]["x"] is value


def test_rows_are_taken_no_further_than_said(engine):
    rows = iter([{"x": int32(1)}] * 5)
    assert engine.pack(rows, (ragged(),), np.ndarray, 2, 100) == (2, 24, (8,), ())
    assert engine.pack(rows, (ragged(),), np.ndarray, 8, 13) == (2, 24, (8,), ())
    assert engine.pack(rows, (ragged(),), np.ndarray, 8, 0) == (0, 0, (0,), ())
    assert engine.pack(rows, (ragged(),), np.ndarray, 8, 13) == (1, 12, (4,), None)


def test_a_value_is_copied_when_it_is_taken(engine):
    loan, one = ragged(), int32(0)

    def rows():
        for one[0] in range(3):
            yield {"x": one}

    pack(engine, rows(), loan)
    assert loan.values[:3].tolist() == [0, 1, 2]


def test_what_the_rows_raise_is_raised(engine):
    def rows():
        yield {"x": int32(1)}
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        pack(engine, rows(), ragged())


def test_long_values_are_copied_whole(engine):
    value = np.arange(1 << 16, dtype=np.int32)
    loan = ragged(room=1 << 17)
    assert pack(engine, [{"x": value}] * 2, loan)[0] == 2
    assert (loan.values.reshape(2, -1) == value).all()


@pytest.mark.parametrize(
    "loan",
    [
        ragged(most=7), ragged()._replace(used=33), ragged()._replace(used=-1),
        ragged()._replace(ends=None), fixed()._replace(ends=np.zeros(8, dtype=np.int64)),
    ],
)  # fmt: skip
def test_a_buffer_that_is_too_short_is_an_error(engine, loan):
    with pytest.raises(ValueError, match="pack: a buffer is too short"):
        pack(engine, [], loan)


@pytest.mark.parametrize("loan", [ragged()._replace(kind=6), ragged()._replace(width=0)])
def test_a_field_that_cannot_be_is_an_error(engine, loan):
    with pytest.raises(ValueError, match="pack: no such field"):
        pack(engine, [], loan)


def test_what_are_no_rows_are_an_error(engine):
    with pytest.raises(TypeError, match="pack"):
        engine.pack([], (ragged(),), np.ndarray, 8, 1)
