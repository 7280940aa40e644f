"""Kinds of fields: what each takes, packs and reads, and that nothing else asks which it is."""

import re
from pathlib import Path

import numpy as np
import pytest

from seqdata.protocols import Field
from seqdata.storage.fields import (
    FIELD_DTYPES,
    KINDS,
    RAW,
    TEXT,
    field_width,
    find_key,
    infer_object,
    kind_of,
    make_packer,
)
from seqdata.storage.packing import FieldMismatch

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("storage", "readers", "batch", "collators", "loading", "lightning", "runs", "cli")
LIBRARY = (
    *(ROOT / "seqdata" / room for room in ROOMS),
    ROOT / "plugins/seqdata-webdataset/seqdata_webdataset",
)
ASKS = re.compile(r"""\bdtype (?:[!=]=|(?:not )?in) \(?["'](?:str|bytes)["']|TEXT_DTYPES""")


def test_no_dtype_is_of_two_kinds():
    assert len(set(FIELD_DTYPES)) == len(FIELD_DTYPES) == sum(len(kind.dtypes) for kind in KINDS)


def test_only_the_file_of_kinds_asks_whether_a_field_is_text():
    paths = [path for folder in LIBRARY for path in folder.rglob("*.py")]
    found = [path.name for path in paths if ASKS.search(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("field", "width"),
    [(TEXT, 1), (RAW, 1), (Field("float32", (3, 2)), 24), (Field("<i4"), 4)],
)
def test_extents_of_numbers_count_timesteps_and_those_of_texts_bytes(field, width):
    assert field_width(field) == width


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_what_a_kind_infers_is_of_that_kind(kind):
    value = {str: "a", bytes: b"a", np.ndarray: np.ones(2)}[kind.value_type]
    field = kind.infer("x", value, {})
    assert kind_of(field) is kind
    assert infer_object(value) == (None if kind.is_array else field)
    if not kind.is_array:
        assert all(other is kind or other.infer("x", value, {}) is None for other in KINDS[:2])


@pytest.mark.parametrize(("field", "value"), [(TEXT, "grün"), (RAW, b"\xff\0")])
def test_objects_are_packed_and_decoded_to_the_same(field, value):
    packer = make_packer(field)
    packer.add(value)
    values, offsets = packer.take()
    assert offsets.tolist() == [0, len(values)]
    assert kind_of(field).decode(values.tobytes()) == value
    assert kind_of(field).gather(field, [value, value]) == [value, value]
    assert type(kind_of(field).empty) is type(value)


@pytest.mark.parametrize(("field", "value"), [(TEXT, b"a"), (RAW, "a"), (TEXT, "\ud800")])
def test_what_is_not_of_a_kind_is_refused(field, value):
    with pytest.raises(FieldMismatch, match="must be"):
        make_packer(field).add(value)


def test_only_text_names_sequences():
    fields = {"id": TEXT, "raw": RAW, "x": Field("int64")}
    assert [find_key(fields, name) for name in ("id", "raw", "x", "other")] == ["id", *[None] * 3]


def test_arrays_in_memory_are_a_column():
    field = Field("int16", (2,))
    column = kind_of(field).gather(field, [np.ones((3, 2), np.int16)])
    assert (column.dtype, column.shape, column.lengths.tolist()) == (np.int16, (2,), [3])
