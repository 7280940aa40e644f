"""Logical types: integers become dates, durations and strings, and a type survives JSON."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.logical_types import (
    UNITS,
    Categories,
    Duration,
    Timestamp,
    describe_codes,
    parse_logical_type,
)

UNIT = st.sampled_from(UNITS)
TYPES = st.one_of(
    st.builds(Timestamp, UNIT, st.none() | st.text(min_size=1)),
    st.builds(Duration, UNIT),
    st.builds(Categories, st.lists(st.text(), unique=True).map(tuple)),
)


@given(TYPES)
def test_a_logical_type_survives_json_and_pickle(logical):
    plain = json.loads(json.dumps(logical.to_plain()))
    for copy in (parse_logical_type(plain), pickle.loads(pickle.dumps(logical))):
        assert copy == logical
        assert hash(copy) == hash(logical)
        assert (str(copy), repr(copy)) == (str(logical), repr(logical))


@pytest.mark.parametrize(
    "plain",
    [
        None, {}, [], "timestamp", {"type": "timestamp"}, {"type": "timestamp", "unit": "W"},
        {"type": "timestamp", "unit": 1}, {"type": "timestamp", "unit": "s", "timezone": 1},
        {"type": "timestamp", "unit": "s", "timezone": ""},
        {"type": "timestamp", "unit": "s", "a": 1},
        {"type": "duration", "unit": "s", "timezone": "UTC"}, {"type": "duration", "unit": "W"},
        {"type": "categories", "values": ["a", "a"]}, {"type": "categories", "values": [1]},
        {"type": "categories", "values": "ab"}, {"type": "categories", "values": [], "unit": "s"},
        {"type": "date", "unit": "s"},
    ],
)  # fmt: skip
def test_what_is_no_logical_type_is_none(plain):
    assert parse_logical_type(plain) is None


def test_reading_a_type_leaves_the_plain_data_as_it_was():
    plain = {"type": "timestamp", "unit": "s", "timezone": "UTC"}
    assert parse_logical_type(plain) == parse_logical_type(plain) == Timestamp("s", "UTC")


@given(UNIT, st.lists(st.integers(-(2**62), 2**62)))
def test_dates_and_durations_are_the_integers_in_their_unit(unit, numbers):
    integers = np.array(numbers, dtype=np.int64)
    for logical, kind in ((Timestamp(unit), "M8"), (Duration(unit), "m8")):
        found = logical.decode(integers)
        assert found.dtype == f"{kind}[{unit}]"
        assert found.view(np.int64).tolist() == numbers


def test_dates_of_a_zone_are_decoded_in_utc():
    found = Timestamp("s", "Europe/Berlin").decode(np.array([[0]]))
    assert found.tolist() == np.array([["1970-01-01T00:00:00"]], "M8[s]").tolist()


@given(st.lists(st.text(), min_size=1, unique=True), st.data())
def test_codes_and_strings_are_each_others_inverse(values, data):
    categories = Categories(tuple(values))
    chosen = data.draw(st.lists(st.integers(0, len(values) - 1)))
    found = categories.decode(np.array(chosen, dtype=np.int32))
    assert found.tolist() == [values[code] for code in chosen]  # with their NUL at the end
    assert [categories.codes[value] for value in found.tolist()] == chosen


def test_strings_have_the_shape_of_their_codes():
    assert Categories(("red", "blue")).decode(np.array([[1, 0]], np.int32)).tolist() == [
        ["blue", "red"],
    ]  # fmt: skip


def test_a_string_that_ends_in_nul_keeps_it():
    values = ("a", "a\0", "\0")
    found = Categories(values).decode(np.arange(3, dtype=np.int32))
    assert tuple(found.tolist()) == values


def test_vocabularies_are_equal_by_their_strings_in_order():
    first, second = Categories(("a", "b")), Categories(("b", "a"))
    assert first == Categories(("a", "b"))
    assert first != second
    assert first != ("a", "b")
    assert repr(first) != repr(second)
    assert str(first) == str(second) == "categories[2]"
    assert repr(Categories(("a,b", "c"))) != repr(Categories(("a", "b,c")))


def test_a_type_is_shown_with_its_unit_and_zone():
    shown = [str(each) for each in (Timestamp("D"), Timestamp("ns", "UTC"), Duration("ms"))]
    assert shown == ["timestamp[D]", "timestamp[ns, UTC]", "duration[ms]"]


def test_five_strings_of_a_vocabulary_are_named_and_the_others_counted():
    assert describe_codes(["a", "b'"]) == "'a', \"b'\""
    letters = list("abcdefg")
    assert describe_codes(letters[:5]) == "'a', 'b', 'c', 'd', 'e'"
    assert describe_codes(letters) == "'a', 'b', 'c', 'd', 'e' and 2 more"
    assert describe_codes(letters * 1000).endswith(" and 6,995 more")
