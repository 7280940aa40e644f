"""Sequences of a table with a row per timestep: the rows of each value of a column.

Every way into a store that groups rows does it here: tables in memory, and files of all formats.
Rows are taken in an order that the table shows or the caller names; never in one that is doubtful.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DecodeError, warn
from seqdata.logical_types import Categories
from seqdata.readers.missing import Missing, replace_missing
from seqdata.storage.arrow_columns import (
    TableLocation,
    Values,
    combine_column,
    convert_column,
    refuse_nulls,
)
from seqdata.storage.fields import ID_FIELD, make_unknown_name_error
from seqdata.storage.inputs import drop_index_columns, warn_left_out
from seqdata.storage.logical_values import (
    EncodedColumn,
    EncodedValues,
    view_integers,
    view_numbers,
)

if TYPE_CHECKING:
    import pyarrow as pa

_ORDER_TYPES = "numbers, dates, or strings that are dates (2024-01-31, 2024-01-31 10:00:00)"


@dataclass(frozen=True, slots=True, eq=False)
class GroupedRows:
    """The rows of a table, group by group.

    Attributes:
        names: The value of each group, in order of appearance.
        rows: int64 (rows,), the indices of the rows, one group after the other.
        offsets: int64 (groups+1,), first index in ``rows`` of each group, and the number of rows.
    """

    names: list[Any]
    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def find_steps(self, keys: NDArray[Any], *, back: bool) -> NDArray[np.int64]:
        """Return the indices in ``rows`` whose key is lower than, or equal to, the previous key.

        The first row of a group has no previous key.

        Args:
            keys: (rows,), the key of each row of the table.
            back: Whether to look for lower keys; else for equal ones.
        """
        ordered = keys[self.rows]
        compare = np.less if back else np.equal
        found = np.flatnonzero(compare(ordered[1:], ordered[:-1])) + 1
        return found[~np.isin(found, self.offsets)]

    def name_at(self, index: int) -> Any:
        """Return the value of the group of an index in ``rows``."""
        return self.names[int(np.searchsorted(self.offsets, index, side="right")) - 1]


def iter_groups(
    table: pa.Table,
    group: str,
    per_sequence: Iterable[str] = (),
    order: str | None = None,
    missing: Missing | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a sequence for the rows of each value of a column.

    Args:
        table: A row per timestep.
        group: The column; its values become ids, in order of appearance, and stay a field of its
            name. Another column called ``id`` is dropped with a warning.
        per_sequence: Columns that must not change within a group, and have one value per sequence.
        order: The column by which the rows of each group are sorted; None if they are in order.
        missing: The rule for missing values; see ``replace_missing``.

    Raises:
        ConfigError: If a column does not exist or cannot group or order rows, or no other column
            has a value per timestep.
        DecodeError: If a value is missing, or changes where it must not; or if, without ``order``,
            the rows of a group are not together, or their dates decrease.
    """
    for name in (group, order):
        if name is not None and name not in table.column_names:
            raise make_unknown_name_error("table", "column", name, table.column_names)
    keys = [name for name in (group, order) if name is not None]
    table = replace_missing(table, missing, keys)
    grouped = find_groups(table, group, order)
    names, offsets = grouped.names, grouped.offsets
    others = drop_index_columns(name for name in table.column_names if name != group)
    columns = convert_columns(table, drop_id_column(others, group))
    for name, column in columns.items():
        if has_lists(column):
            _warn_left_out(name, "a list in each row, which a timestep cannot hold")
    ragged: dict[str, NDArray[Any] | EncodedValues] = {}
    constant_texts: dict[str, list[Any]] = {}
    for name, column in columns.items():
        if isinstance(column, list):
            changing = _encode_changing(name, combine_column(table, name), grouped)
            if changing is None:
                constant_texts[name] = column
            elif not isinstance(column[0], bytes):
                ragged[name] = changing
        elif not has_lists(column) and isinstance(column, EncodedColumn):
            ragged[name] = EncodedValues(column.values[grouped.rows], column.logical)
        elif not has_lists(column) and isinstance(column, np.ndarray):
            ragged[name] = column[grouped.rows]
    if not ragged.keys() - set(per_sequence):
        left_out = f" and {ID_FIELD!r}" if ID_FIELD in others else ""
        single_names = ragged.keys() & set(per_sequence)
        raise ConfigError(
            f"table: no column but {group!r}{left_out} has a value per timestep (numbers, dates, "
            "or strings that change within a group), so a group has no timesteps. Add such a "
            f"column{', or leave it out of `axes`' if single_names else ''}"
        )
    single = {name: ragged.pop(name) for name in per_sequence if name in ragged}
    for name, values in single.items():
        _refuse_changes(name, values, grouped)
    for index, name in enumerate(names):
        first, stop = int(offsets[index]), int(offsets[index + 1])
        row = grouped.rows[first]
        sequence: dict[str, Any] = {ID_FIELD: str(name)}
        if group != ID_FIELD and isinstance(name, str | int | float):
            sequence[group] = name
        sequence.update({field: values[first:stop] for field, values in ragged.items()})
        sequence.update({field: values[first] for field, values in single.items()})
        sequence.update({field: values[row] for field, values in constant_texts.items()})
        yield sequence


def find_groups(table: pa.Table, group: str, order: str | None = None) -> GroupedRows:
    """Return the rows of a table by group, in order of appearance; raises as ``iter_groups`` does.

    Args:
        table: The table.
        group: The column whose equal values make a group.
        order: The column by which the rows of a group are sorted, equal values in the table's
            order, with a warning; None: the rows of a group must be together, and no column of
            dates may decrease within one.
    """
    from pyarrow import compute, types

    if group == order:
        raise ConfigError(
            f"table: `order` must differ from `group`, but both are {group!r}. Name the "
            "column of the time, or of the number of a row in its group"
        )
    column = combine_column(table, group)
    refuse_missing(group, column)
    if types.is_nested(column.type):
        raise ConfigError(
            f"table: column {group!r} must hold a string or a number per row to make groups, but "
            f"is of type {column.type}. Name another column"
        )
    encoded = compute.dictionary_encode(column)
    names = encoded.dictionary.to_pylist()
    codes = view_numbers(encoded.indices)
    if order is None:
        _refuse_apart(group, names, codes)
        rows = np.arange(len(codes), dtype=np.int64)
    else:
        keys = read_order_keys(order, combine_column(table, order))
        rows = np.lexsort((keys, codes))  # stable
    grouped = GroupedRows(names, rows, np.searchsorted(codes[rows], np.arange(len(names) + 1)))
    if order is None:
        _refuse_dates_that_decrease(table, group, grouped)
    else:
        _warn_of_equal_keys(order, combine_column(table, order), keys, grouped)
    return grouped


def convert_columns(
    table: pa.Table,
    names: Iterable[str],
    first_row: int = 0,
    vocabularies: Mapping[str, Categories] = MappingProxyType({}),
) -> dict[str, Values]:
    """Return column -> its values by row, of columns that can be fields.

    A warning names a column that cannot.

    Args:
        table: The table, or a part of it.
        names: The columns.
        first_row: The index of the first row of a part, for messages.
        vocabularies: Column of lists of strings -> its vocabulary; the vocabulary of other columns
            is that of ``table``.

    Raises:
        DecodeError: If a value is missing.
    """
    columns = {}
    for name in names:
        column = combine_column(table, name)
        values = convert_column(name, column, first_row, vocabularies.get(name))
        if values is None:
            _warn_left_out(name, f"of type {table.schema.field(name).type}")
        else:
            columns[name] = values
    return columns


def has_lists(values: Values) -> bool:
    """Return whether each row of a column holds a list of values."""
    if isinstance(values, EncodedColumn) and values.offsets is None:
        return values.values.ndim > 1
    return not isinstance(values, list | np.ndarray) or np.ndim(values) > 1


def refuse_missing(name: str, column: Any, first_row: int = 0) -> None:
    """Raise if a column of a table holds a null or NaN.

    Raises:
        DecodeError: If a value is missing; the message names the row.
    """
    from pyarrow import compute, types

    if types.is_floating(column.type):
        column = compute.if_else(compute.is_nan(column), None, column)
    refuse_nulls(TableLocation(dataset="table", field=name, first_row=first_row), column)


def _warn_left_out(
    name: str, reason: str, remedy: str = "must be numbers, text, bytes, or lists of numbers"
) -> None:
    warn_left_out(f"column {name!r}", f"{reason}; {remedy}")


def refuse_order_alone(order: str | None, group: str | None) -> None:
    """Raise if an order of rows is given, but no column that groups them.

    Raises:
        ConfigError: If ``order`` is given without ``group``.
    """
    if order is not None and group is None:
        raise ConfigError(
            f"table: `order` requires `group`, but is {order!r} without it: it sorts the rows of "
            "each group. Pass `group`, the column whose equal values make a sequence, or leave "
            "`order` out"
        )


def drop_id_column(names: list[str], key: str | None) -> list[str]:
    """Return the names of columns, without ``id`` if another column names sequences.

    A warning says that ``id`` is dropped.

    Args:
        names: The columns.
        key: The column whose values become the field ``id``; None: there is no such column.
    """
    if key in (None, ID_FIELD) or ID_FIELD not in names:
        return names
    _warn_left_out(
        ID_FIELD,
        f"sequences are named by column {key!r}, and their names are the field {ID_FIELD!r}",
        "rename the column to keep it",
    )
    return [name for name in names if name != ID_FIELD]


def _refuse_apart(group: str, names: list[Any], codes: NDArray[np.int32]) -> None:
    """Raise if a group's rows are not together: nothing says in which order they belong."""
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    if len(starts) == len(names):
        return
    runs = codes[starts]
    later = np.arange(len(runs)) != np.unique(runs, return_index=True)[1][runs]
    again = int(starts[later][0])
    code = codes[again]
    before = int(np.flatnonzero(codes[:again] == code)[-1])
    raise DecodeError.at(
        f"table: the rows of each value of column {group!r} must be together, but those of "
        f"{names[code]!r} are row {before} and row {again}, with rows of "
        f"{names[codes[before + 1]]!r} in between ({len(np.unique(runs[later]))} of {len(names)} "
        "groups are split like this), and the order of their timesteps may be another. Pass "
        "`order`, the column of the time, to sort the rows of each group; or sort the table by "
        f"{group!r} before, if the rows of each group are in order",
        field=group, row=again,
    )  # fmt: skip


def _refuse_dates_that_decrease(table: pa.Table, group: str, grouped: GroupedRows) -> None:
    """Raise if a column of dates goes back within a group: rows may not be in order of time."""
    for name in table.column_names:
        if name == group or not _may_be_dates(table.schema.field(name).type):
            continue
        column = combine_column(table, name)
        dates = None if column.null_count else _find_dates(column)  # nulls are refused when read
        if dates is None or not len(back := grouped.find_steps(dates, back=True)):
            continue
        before, row = grouped.rows[back[0] - 1 : back[0] + 1].tolist()
        raise DecodeError.at(
            f"table: the rows of {grouped.name_at(back[0])!r} must be in order of time, but column "
            f"{name!r} is {column[row]} in row {row} after {column[before]} in row {before} "
            f"({len(back)} rows go back like this). Pass `order={name!r}` to sort the rows of each "
            "group by it, or name the column that they are to be in order of; if they are in order "
            f"already, leave {name!r} out of the table",
            field=name, row=row,
        )  # fmt: skip


def _warn_of_equal_keys(order: str, column: Any, keys: NDArray[Any], grouped: GroupedRows) -> None:
    equal = grouped.find_steps(keys, back=False)
    if not len(equal):
        return
    row = int(grouped.rows[equal[0]])
    warn(
        f"table: column {order!r} has equal values within a group, first {column[row]} of "
        f"{grouped.name_at(equal[0])!r} ({len(equal)} rows have the value of the row before): "
        "such rows stay in the order of the table",
    )


def _may_be_dates(type_: pa.DataType) -> bool:
    from pyarrow import types

    type_ = type_.value_type if types.is_dictionary(type_) else type_
    return _is_string(type_) or types.is_timestamp(type_) or types.is_date(type_)


def _find_dates(column: Any) -> NDArray[np.int64] | None:
    """Return dates, or strings that are all dates, as numbers; None if a column holds others."""
    from pyarrow import types

    if types.is_timestamp(column.type) or types.is_date(column.type):
        return view_integers(column)
    are_likely = _parse_dates(column.slice(0, 1))[0] is not None
    return _parse_dates(column)[0] if are_likely else None


def _is_string(type_: pa.DataType) -> bool:
    from pyarrow import types

    return bool(
        types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_)
    )


def read_order_keys(name: str, column: Any, first_row: int = 0) -> NDArray[Any]:
    """Return numbers, (rows,), in the order of a column's values.

    Args:
        name: The name of the column.
        column: The column, or a part of it.
        first_row: The index of its first row in the table, for messages.

    Raises:
        ConfigError: If the column holds neither numbers, dates nor strings.
        DecodeError: If a value is missing, or a string is not a date.
    """
    from pyarrow import compute, types

    refuse_missing(name, column, first_row)
    type_ = column.type
    if _is_string(type_):
        dates, reason = _parse_dates(column)
        if dates is None:
            raise DecodeError.at(
                f"table: column {name!r} must hold {_ORDER_TYPES} to order rows, but holds other "
                f"strings ({reason}). Convert it to dates or numbers",
                field=name,
            )
        return dates
    if types.is_temporal(type_):
        return view_integers(column)
    if types.is_integer(type_) or types.is_floating(type_):
        return view_numbers(column)
    if types.is_decimal(type_):
        return np.asarray(compute.rank(column, tiebreaker="dense").to_numpy())
    raise ConfigError(
        f"table: column {name!r} must hold {_ORDER_TYPES} to order rows, but is of type {type_}. "
        "Name another column, or convert it"
    )


def _parse_dates(column: Any) -> tuple[NDArray[np.int64] | None, str]:
    """Return strings that are all dates as numbers; else None, and the reason."""
    import pyarrow as pa

    reason = ""
    for unit, zone in itertools.product(("us", "ns"), (None, "UTC")):
        try:
            return view_integers(column.cast(pa.string()).cast(pa.timestamp(unit, zone))), ""
        except pa.ArrowInvalid as error:
            reason = reason or str(error)
    return None, reason


def _refuse_changes(name: str, values: NDArray[Any] | EncodedValues, grouped: GroupedRows) -> None:
    if isinstance(values, EncodedValues):
        values = values.logical.decode(values.values)
    for index, (first, stop) in enumerate(itertools.pairwise(grouped.offsets.tolist())):
        group_values = values[first:stop]
        if (group_values != group_values[0]).any():
            raise DecodeError.at(
                f"table: column {name!r} must have one value per sequence, but in the rows of "
                f"{grouped.names[index]!r} it has {group_values[0]} and "
                f"{group_values[group_values != group_values[0]][0]}. Leave it out "
                "of `axes`, so that it has a value per timestep",
                field=name, sequence=index,
            )  # fmt: skip


def _encode_changing(name: str, column: Any, grouped: GroupedRows) -> EncodedValues | None:
    """Return the codes of strings by ``grouped.rows``; None if no group has more than one of them.

    A warning says that the caller drops bytes that change.
    """
    from pyarrow import compute

    encoded = compute.dictionary_encode(column)
    codes = view_numbers(encoded.indices)[grouped.rows]
    changes = np.flatnonzero(np.diff(codes)) + 1
    if np.isin(changes, grouped.offsets).all():
        return None
    values = encoded.dictionary.to_pylist()
    if isinstance(values[0], bytes):
        _warn_left_out(name, "bytes that change within a group")
    return EncodedValues(codes.astype(np.int32), Categories(tuple(values)))
