"""Missing values of tables: kept as NaN, filled, dropped with their row, or an error."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqdata.errors import ConfigError, DecodeError, must_be
from seqdata.storage.arrow_columns import warn_of_missing

if TYPE_CHECKING:
    import pyarrow as pa

Missing = Literal["error", "nan", "drop"] | float
_RULES = ("error", "nan", "drop")


def check_missing(missing: object) -> None:
    """Raise if a value is not a rule for missing values.

    Raises:
        ConfigError: If ``missing`` is neither a known rule nor a number.
    """
    is_number = isinstance(missing, int | float) and not isinstance(missing, bool)
    if missing is not None and missing not in _RULES and not is_number:
        needed = "'error', 'nan', 'drop', or a number that replaces missing values"
        raise ConfigError(must_be("table: `missing`", needed, repr(missing)))


def refuse_missing_alone(missing: object, group: str | None) -> None:
    """Raise if a rule for missing values is given, but no column that groups rows.

    Raises:
        ConfigError: If ``missing`` is given without ``group``.
    """
    if missing is not None and group is None:
        raise ConfigError(
            f"table: `missing` requires `group`, but is {missing!r} without it: it is for tables "
            "with a row per timestep. Pass `group`, or fill the lists before"
        )


def replace_missing(table: pa.Table, missing: Missing | None, keys: Collection[str]) -> pa.Table:
    """Treat missing values of a table, which are nulls, and NaN in columns of floats.

    Nulls stay in columns that are not numbers, in ``keys``, and in columns of integers unless a
    number replaces them; they raise an error when the column is read.

    Args:
        table: A row per timestep.
        missing: ``nan``: NaN in columns of floats; ``drop``: rows that lack a value are dropped;
            ``error``: a missing number raises; or a number, which replaces missing numbers. None:
            as ``nan``, with a warning.
        keys: Columns that group and order rows; only ``drop`` treats their missing values.

    Raises:
        ConfigError: If ``missing`` is not a rule, or a column of integers cannot hold the number.
        DecodeError: If a value is missing that must not be, or no row is left.
    """
    from pyarrow import compute, types

    check_missing(missing)
    absent = {}
    for name in dict.fromkeys(table.column_names):
        column = table.column(name)
        if column.null_count or types.is_floating(column.type):
            is_absent = column.is_null(nan_is_null=True)
            if (count := compute.sum(is_absent, min_count=0).as_py()) > 0:
                absent[name] = (is_absent, count)
    if not absent:
        return table
    if missing == "drop":
        return _drop_rows(table, absent)
    for name, (is_absent, count) in absent.items():
        column = table.column(name)
        if name in keys or not (types.is_floating(column.type) or types.is_integer(column.type)):
            continue
        if missing == "error":
            raise make_missing_error(name, count, _first_row(is_absent))
        filled = _fill(name, column, is_absent, np.nan if missing in (None, "nan") else missing)
        if missing is None and filled is not column and column.null_count:  # NaN is data
            warn_of_missing(name, count, len(column), _first_row(is_absent))
        table = table.set_column(table.column_names.index(name), name, filled)
    return table


def _fill(name: str, column: Any, is_absent: Any, value: Any) -> Any:
    from pyarrow import compute, lib, scalar, types

    if types.is_integer(column.type) and not float(value).is_integer():
        if value != value:  # integers have no NaN: an error where they are read
            return column
        raise ConfigError(
            f"table: `missing` must be an integer to fill column {name!r} of {column.type}, but is "
            f"{value!r}. Pass an integer, or convert the column"
        )
    try:
        fitting = scalar(int(value) if types.is_integer(column.type) else value, column.type)
    except (lib.ArrowException, OverflowError) as error:
        raise ConfigError(
            f"table: `missing` must fit column {name!r} of {column.type}, but is {value!r}. Pass "
            "another number, or convert the column"
        ) from error
    return compute.if_else(is_absent, fitting, column)


def _drop_rows(table: pa.Table, absent: dict[str, Any]) -> pa.Table:
    from pyarrow import compute

    is_absent = None
    for found, _ in absent.values():
        is_absent = found if is_absent is None else compute.or_(is_absent, found)
    kept = table.filter(compute.invert(is_absent))
    if not len(kept):
        raise DecodeError.at(
            f"table: at least one row must have all values for `missing='drop'`, but each of "
            f"{len(table)} rows lacks one ({', '.join(map(repr, absent))}). Leave a column out"
        )
    return kept


def _first_row(is_absent: Any) -> int:
    return int(np.flatnonzero(is_absent.to_numpy())[0])


def make_missing_error(name: str, count: int, row: int) -> DecodeError:
    """Return the error that a column lacks values.

    Args:
        name: The column.
        count: The number of missing values.
        row: The first row that lacks its value.
    """
    return DecodeError.at(
        f"table: column {name!r} must not hold missing values, but holds {count}, the first in row "
        f"{row}. Fill them, or pass `missing`: 'nan', 'drop', or a number",
        field=name, row=row,
    )  # fmt: skip
