"""Missing values of a table by rule: kept as NaN, filled, dropped with their row, or an error."""

import re
import warnings

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import ConfigError, DecodeError, SeqDataWarning
from seqdata.readers.missing import (
    check_missing,
    make_missing_error,
    refuse_missing_alone,
    replace_missing,
)

NAN = float("nan")


def refuses(error, message):
    return pytest.raises(error, match=f"^{re.escape(message)}")


def read(table, name):
    return table.column(name).to_pylist()


# Rules


@pytest.mark.parametrize("rule", [None, "error", "nan", "drop", 0, -1.5, NAN])
def test_a_rule_is_a_word_or_a_number(rule):
    check_missing(rule)


@pytest.mark.parametrize("rule", ["fill", "", True, [0], "0", b"nan"])
def test_what_is_no_rule_is_refused(rule):
    message = (
        "table: `missing` must be 'error', 'nan', 'drop', or a number that replaces missing "
        f"values, but is {rule!r}"
    )
    with refuses(ConfigError, message):
        check_missing(rule)
    with refuses(ConfigError, message):  # also where nothing is missing
        replace_missing(pa.table({"x": [1]}), rule, ())


def test_a_rule_is_for_tables_that_are_grouped():
    refuse_missing_alone(None, None)
    refuse_missing_alone("drop", "site")
    message = (
        "table: `missing` requires `group`, but is 0 without it: it is for tables with a row per "
        "timestep. Pass `group`, or fill the lists before"
    )
    with refuses(ConfigError, message):
        refuse_missing_alone(0, None)


# Values


VALUE = st.one_of(st.none(), st.just(NAN), st.floats(-10, 10))
COLUMNS = st.integers(1, 6).flatmap(
    lambda rows: st.lists(
        st.lists(VALUE, min_size=rows, max_size=rows), min_size=1, max_size=3
    )
)  # fmt: skip


@given(COLUMNS, st.sampled_from([None, "error", "nan", "drop", 7, 0.5]))
def test_floats_are_treated_by_the_rule_and_others_stay(columns, rule):
    table = pa.table({f"x{at}": pa.array(each, pa.float64()) for at, each in enumerate(columns)})
    values = np.array([[NAN if v is None else v for v in each] for each in columns])
    has_all = ~np.isnan(values).any(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeqDataWarning)
        if not has_all.all() and (rule == "error" or (rule == "drop" and not has_all.any())):
            with pytest.raises(DecodeError):
                replace_missing(table, rule, ())
            return
        found = replace_missing(table, rule, ())
    assert all(column.null_count == 0 for column in found.columns) or has_all.all()
    due = values[:, has_all] if rule == "drop" else values
    if isinstance(rule, int | float):
        due = np.where(np.isnan(due), rule, due)
    np.testing.assert_array_equal([read(found, name) for name in table.column_names], due)


def test_a_table_without_missing_values_is_returned_as_it_is():
    table = pa.table({"x": [1.0, 2.0], "n": [1, 2], "s": ["a", "b"]})
    for rule in (None, "error", "nan", "drop", 0):
        assert replace_missing(table, rule, ("s",)) is table


def test_nulls_of_floats_are_warned_of_without_a_rule_and_nan_is_data():
    table = pa.table({"x": [NAN, 1.0], "y": [1.0, None]})
    message = "table: column 'y' lacks 1 of 2 values, the first in row 1: they are NaN."
    with pytest.warns(SeqDataWarning) as caught:
        replace_missing(table, None, ())
    assert [str(each.message)[: len(message)] for each in caught] == [message]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replace_missing(table, "nan", ())


def test_integers_take_an_integer_and_keep_their_type():
    table = pa.table({"n": pa.array([1, None, 3], pa.int16())})
    for rule in (7, 7.0):
        found = replace_missing(table, rule, ())
        assert found.schema.field("n").type == pa.int16()
        assert read(found, "n") == [1, 7, 3]


@pytest.mark.parametrize("rule", [None, "nan", NAN])
def test_integers_have_no_nan_so_that_they_are_left_to_who_reads_them(rule):
    table = pa.table({"n": [1, None]})
    assert read(replace_missing(table, rule, ()), "n") == [1, None]


@pytest.mark.parametrize(
    ("type_", "rule", "message"),
    [
        (
            pa.int64(), 0.5,
            "table: `missing` must be an integer to fill column 'n' of int64, but is 0.5. Pass an "
            "integer, or convert the column",
        ),
        (
            pa.int8(), 300,
            "table: `missing` must fit column 'n' of int8, but is 300. Pass another number, or "
            "convert the column",
        ),
        (pa.uint8(), -1, "table: `missing` must fit column 'n' of uint8, but is -1."),
        (pa.int64(), 2**80, "table: `missing` must fit column 'n' of int64, but is 1208925819614"),
        (pa.int64(), float("inf"), "table: `missing` must be an integer to fill column 'n' of in"),
    ],
)  # fmt: skip
def test_a_number_that_integers_cannot_hold_is_refused(type_, rule, message):
    with refuses(ConfigError, message):
        replace_missing(pa.table({"n": pa.array([1, None], type_)}), rule, ())


@pytest.mark.parametrize("rule", [None, "error", "nan", 0])
def test_strings_and_keys_are_left_to_who_reads_them(rule):
    table = pa.table({"site": pa.array([1.0, None]), "s": ["a", None]})
    assert replace_missing(table, rule, ("site",)) == table


def test_rows_are_dropped_for_any_value_even_of_a_key():
    table = pa.table(
        {"site": ["a", None, "b", "c"], "x": [1.0, 2.0, NAN, 4.0], "n": [1, 2, 3, None]}
    )
    found = replace_missing(table, "drop", ("site",))
    assert found.to_pydict() == {"site": ["a"], "x": [1.0], "n": [1]}


def test_a_table_of_which_no_row_is_left_is_an_error():
    table = pa.table({"x": [1.0, None], "n": [None, 2], "s": ["a", "b"]})
    message = (
        "table: at least one row must have all values for `missing='drop'`, but each of 2 rows "
        "lacks one ('x', 'n'). Leave a column out"
    )
    with refuses(DecodeError, message):
        replace_missing(table, "drop", ())


def test_missing_values_are_an_error_with_their_number_and_first_row():
    table = pa.table({"s": ["a", None, None], "x": [1.0, NAN, None]})
    message = (
        "table: column 'x' must not hold missing values, but holds 2, the first in row 1. Fill "
        "them, or pass `missing`: 'nan', 'drop', or a number"
    )
    with refuses(DecodeError, message) as caught:
        replace_missing(table, "error", ("s",))
    assert (caught.value.details["field"], caught.value.details["row"]) == ("x", 1)
    assert str(make_missing_error("x", 2, 1)) == str(caught.value)


def test_chunks_of_a_column_are_one_column():
    table = pa.table({"x": pa.chunked_array([[1.0], [2.0, None], [None]])})
    message = "column 'x' lacks 2 of 4 values, the first in row 2"
    with pytest.warns(SeqDataWarning, match=message):
        found = replace_missing(table, None, ())
    np.testing.assert_array_equal(read(found, "x"), [1, 2, NAN, NAN])
