"""Columns of a table: read at once, one value per sequence, none infinite, no label missing."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import open_store
from seqdata.errors import DataError
from seqdata.suite.table_columns import (
    check_labels,
    check_static_numbers,
    check_stored_labels,
    describe_float_labels,
    is_float,
    list_groups,
    make_infinite_error,
    read_columns,
    take_static,
)
from tests.properties.counts import examples

TABLE = pd.DataFrame(
    {
        "site": ["a", "a", "b", "c", "c", "c"],
        "x": [1.0, 2, 3, 4, 5, 6],
        "kind": ["u", "u", "v", "u", "u", "u"],
        "area": [7.0, 7, 8, np.nan, np.nan, np.nan],
        "floor": [2, 2, 3, 4, 4, 4],
        "open": [1, 2, 3, 4, 5, 6],
    }
)
LENGTHS = np.array([2, 1, 3])


def open_table(table=TABLE, **columns):
    return open_store(table.assign(**columns), group="site", missing="nan")


def read(store, *names, lengths=LENGTHS):
    return read_columns(store, names, lengths, next(iter(store.lengths_of)))


def refuses(message):
    return pytest.raises(DataError, match=f"^{re.escape(message)}")


def test_columns_hold_the_values_of_all_sequences_one_after_the_other():
    found = read(open_table(), "x", "open", "x")
    assert list(found) == ["x", "open"]
    assert found["x"].tolist() == TABLE["x"].tolist()
    assert found["open"].tolist() == TABLE["open"].tolist()


def test_no_timesteps_are_read_if_none_are_asked_for():
    found = read(open_table(), "x", "site", lengths=0 * LENGTHS)
    assert found["x"].size == 0
    assert found["site"] == ["a", "b", "c"]


def test_groups_are_the_fields_with_one_value_per_sequence():
    assert list_groups(open_table()) == ["site", "kind"]  # it changes in no site
    rows = [{"id": "r", "x": [1.0], "y": 3, "name": "n", "corner": np.ones(2)}]
    store = open_store(rows, axes={"x": "time", "corner": None})
    assert list_groups(store) == ["y", "name"]


@examples(0.5, here=20)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6).filter(any),
    st.sampled_from(["strings", "floats", "integers"]), st.data(),
)  # fmt: skip
def test_a_value_that_stays_within_each_sequence_is_that_of_the_sequence(counts, kind, data):
    counts = np.array([count for count in counts if count])
    drawn = data.draw(st.lists(st.integers(0, 3), min_size=len(counts), max_size=len(counts)))
    of = {"strings": list("abcd"), "floats": [0.5, -1.0, np.nan, 2.0], "integers": [7, 8, 9, -1]}
    values = [of[kind][each] for each in drawn]
    rows = [
        {"x": np.zeros(count), "y": [value] * count}
        for value, count in zip(values, counts.tolist(), strict=True)
    ]
    store = open_store(rows)
    found = take_static(store, "y", read(store, "y", lengths=counts)["y"], counts, "who", "Do")
    np.testing.assert_array_equal(np.array(found), np.array(values))


@pytest.mark.parametrize(
    ("name", "values"), [("kind", list("uuvuvu")), ("area", [7, 7, 8, np.nan, 1, 1]), ("open", 0)]
)
def test_a_value_that_changes_is_an_error_that_names_the_sequence(name, values):
    store = open_table(**{name: values} if values else {})
    owner = "a" if name == "open" else "c"
    message = (
        f"who: static column {name!r} must have one value per sequence, but that of {owner!r} "
        "changes. Do this"
    )
    with refuses(message):
        take_static(store, name, read(store, name)[name], LENGTHS, "who", "Do this")


def test_a_change_between_sequences_is_none_and_an_empty_one_has_no_say():
    store = open_table()
    lengths = np.array([2, 0, 1, 0, 3, 0])
    values = read(store, "floor")["floor"]
    assert take_static(store, "floor", values, lengths, "w", "")[[0, 2, 4]].tolist() == [2, 3, 4]


def test_a_field_with_one_value_per_sequence_is_taken_as_it_is():
    values = read(open_table(), "site")["site"]
    assert take_static(open_table(), "site", values, LENGTHS, "who", "Do") is values


def test_only_arrays_of_floats_may_hold_nan():
    assert is_float(np.zeros(1, np.float32))
    assert not is_float(np.zeros(1, np.int64))
    assert not is_float([0.5])


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_number_of_a_sequence_that_is_used_is_an_error(value):
    statics = {"name": ["a", "b"], "n": np.array([1, 2]), "area": np.array([1.0, value])}
    check_static_numbers("who", statics, ["a", "b"], np.array([0]))
    check_static_numbers("who", {"area": np.array([np.nan])}, ["a"], np.array([0]))
    message = (
        f"who: values of 'area' must be finite, but 'b' has {value}. Repair it, or make it a "
        "missing value (NaN)"
    )
    with refuses(message):
        check_static_numbers("who", statics, ["a", "b"], np.array([0, 1]))


def test_the_place_of_an_infinite_number_is_named():
    error = make_infinite_error("who", "x", np.inf, "a", " at 2024-01-31")
    assert "but 'a' has inf at 2024-01-31. Repair it" in str(error)


# Labels


def make_label_message(name, found):
    return (
        f"who: label 'y' must have a value for each sequence, but {name!r} {found}. Leave out such "
        "sequences, or fill the label; then convert floats that stand for classes to integers"
    )


@pytest.mark.parametrize(("value", "found"), [(np.nan, "has none"), (-np.inf, "has -inf")])
def test_the_first_sequence_that_is_used_and_lacks_its_label_is_named(value, found):
    labels, ids = np.array([value, 1.0, value, np.nan]), list("abcd")
    check_labels("who", "y", labels, ids, np.array([1]))
    with refuses(make_label_message("c", found)):
        check_labels("who", "y", labels, ids, np.array([1, 2, 3]))


@pytest.mark.parametrize("labels", [["a", ""], np.array([0, 1])])
def test_strings_and_integers_are_never_missing(labels):
    check_labels("who", "y", labels, ["a", "b"], np.arange(2))


def test_labels_of_a_store_are_read_unless_they_run_along_an_axis():
    rows = [{"id": name, "x": [1.0], "y": value} for name, value in zip("ab", (0.5, np.nan),
                                                                       strict=True)]  # fmt: skip
    with refuses(make_label_message("b", "has none")):
        check_stored_labels("who", "y", open_store(rows))
    check_stored_labels("who", "y", open_store(rows[:1]))
    check_stored_labels("who", "y", open_store([{"x": [1.0], "y": [np.nan]}]))
    store = open_store([{"x": [1.0], "y": np.array([np.nan])}], axes={"x": "time", "y": None})
    check_stored_labels("who", "y", store)  # a vector is not one label


def test_floats_as_labels_are_numbers_to_predict():
    assert describe_float_labels("y").startswith("label 'y' holds floats: numbers to predict")
