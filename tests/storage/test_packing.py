"""Sequences are copied into one growing buffer per field."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from seqdata.protocols import Field
from seqdata.storage.fields import make_packer
from seqdata.storage.packing import FieldMismatch, as_array


@pytest.mark.parametrize("length", [1, 3, 1024, 16383, 16384, 16385, 70000])
def test_ragged_values_follow_each_other_whatever_the_buffer_held(length):
    packer = make_packer(Field("int32"))
    given = [np.arange(i, i + length, dtype=np.int32) for i in range(40_000 // length + 3)]
    sizes = [packer.add(one) for one in given]
    values, offsets = packer.take()
    assert sizes == [4 * length + 8] * len(given)
    assert np.array_equal(values, np.concatenate(given))
    assert np.array_equal(offsets, np.arange(len(given) + 1) * length)


def test_numbers_per_sequence_follow_each_other():
    packer = make_packer(Field("int16", (2,), None))
    for i in range(40_000):
        packer.add(np.array([i, -i]).astype(np.int16))
    values, offsets = packer.take()
    assert np.array_equal(values[:, 0], np.arange(40_000).astype(np.int16))
    assert offsets is None


@pytest.mark.parametrize(
    "field", [Field("int32"), Field("int64", (), None), Field("str", (), None)]
)
def test_what_was_taken_is_not_touched_by_what_is_added_later(field):
    packer = make_packer(field)
    first, later = {"int32": ([1], [2]), "int64": (1, 2), "str": ("a", "b")}[field.dtype]
    if field.dtype == "int32":
        first, later = np.array(first, dtype=np.int32), np.array(later, dtype=np.int32)
    packer.add(first)
    values, offsets = packer.take()
    before = values.tolist()
    packer.add(later)
    assert values.tolist() == before
    assert len(packer.take()[0]) == 1
    assert offsets is None or offsets.tolist() == [0, 1]


@pytest.mark.parametrize(
    "value",
    [
        pa.array([1, None, 3]),
        pl.Series([1, None, 3]),
        pd.Series([1, None, 3], dtype="Int64"),
        pd.array([1, None, 3], dtype="Int64"),
    ],
    ids=["arrow", "polars", "pandas", "pandas array"],
)
def test_a_null_is_not_stored_as_another_number(value):
    with pytest.raises(FieldMismatch, match="has 1 missing values, which cannot be stored"):
        as_array(value)


@pytest.mark.parametrize(
    "value",
    [
        [1, True], (True, 1), [1, True, 2.5], [np.int64(1), True], [[1, 2], [3, True]],
        [np.array([1, 2]), np.array([True, False])],
    ],
    ids=str,
)  # fmt: skip
def test_booleans_among_numbers_are_not_stored_as_numbers(value):
    with pytest.raises(FieldMismatch, match="is a list of booleans and numbers; give one of them"):
        as_array(value)


@pytest.mark.parametrize(
    "value", [[2**53 + 1, 0.5], [0.5, -(2**53) - 1], [-1, 2**63 + 1], [[1.5], [2**60 + 1]]], ids=str
)
def test_an_integer_is_not_stored_as_another_float(value):
    with pytest.raises(FieldMismatch, match=r"whose integer -?\d+ would be rounded to a float"):
        as_array(value)


@pytest.mark.parametrize(
    "value",
    [
        [True, False],
        [2**53 + 1, 1],
        [2**53, 0.5],
        [1e300, 2],
        [2**63, 2**64 - 1],
        [float("inf"), 1],
    ],
    ids=str,
)
def test_lists_of_one_kind_are_stored_as_they_are(value):
    assert as_array(value).tolist() == value


@pytest.mark.parametrize(
    "value",
    [
        pa.array([1.5, float("nan")]),
        pl.Series([1.5, float("nan")]),
        pd.Series([1.5, float("nan")]),
    ],
    ids=["arrow", "polars", "pandas"],
)
def test_nan_is_a_number(value):
    np.testing.assert_array_equal(as_array(value), [1.5, np.nan])
