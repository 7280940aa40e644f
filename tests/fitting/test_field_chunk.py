"""What estimators share: groups of spans, errors that name a sequence, floats as plain data."""

import json

import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.fitting.field_chunk import (
    FieldChunk,
    check_choice,
    check_number_field,
    list_groups,
    to_plain_floats,
)
from seqdata.protocols import Field
from seqdata.storage.memory import MemoryStore


@pytest.mark.parametrize("as_array", [False, True])
def test_groups_are_distinct_and_in_order(as_array):
    values = [3, 1, 3, 2]
    groups, places = list_groups(np.array(values) if as_array else values)
    assert groups == [1, 2, 3]
    assert [groups[place] for place in places] == values


def test_an_error_about_a_row_names_the_sequence_it_is_of():
    rows = [{"x": np.zeros(n), "id": f"s{n}"} for n in (2, 3, 1)]
    numbers = np.array([2, 0, 1])  # the spans' sequences, of 1, 2 and 3 rows
    chunk = FieldChunk(
        MemoryStore.from_sequences(rows), "x", np.zeros((6, 1)), np.array([1, 2, 3]), numbers
    )
    named = [str(chunk.make_error(row, "is wrong")).split("'")[1] for row in range(6)]
    assert named == ["s1", "s2", "s2", "s3", "s3", "s3"]


def test_what_is_not_finite_is_text_that_json_can_hold():
    plain = to_plain_floats(np.array([[1.5, np.nan], [np.inf, -np.inf]]))
    assert json.loads(json.dumps(plain, allow_nan=False)) == [[1.5, "nan"], ["inf", "-inf"]]
    assert np.array(plain, dtype=np.float64)[1].tolist() == [np.inf, -np.inf]


def test_a_field_of_texts_has_no_numbers():
    check_number_field("MeanStd", "x", Field("float32", (2,)))
    with pytest.raises(ConfigError, match="field 'x' of MeanStd must be of numbers, but is of str"):
        check_number_field("MeanStd", "x", Field("str", ()))


def test_a_choice_is_one_of_its_names():
    check_choice("MeanStd", "nan", "ignore", ("error", "ignore"))
    with pytest.raises(ConfigError, match="`nan` must be 'error' or 'ignore', but is 'drop'"):
        check_choice("MeanStd", "nan", "drop", ("error", "ignore"))
