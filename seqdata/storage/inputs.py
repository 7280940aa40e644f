"""Conversion of the user's sequences to dicts: dicts, plain arrays, tables and data frames.

pyarrow, pandas and Polars objects are recognized without importing these libraries. The writer and
the memory store share this module.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqdata.errors import ConfigError, DecodeError, warn
from seqdata.logical_types import Categories
from seqdata.storage.arrow_columns import convert_column, find_vocabularies, has_nulls
from seqdata.storage.dataset_items import as_mapping, check_axes
from seqdata.storage.decoded_source import DecodedColumn
from seqdata.storage.logical_values import EncodedColumn, share_vocabularies

PLAIN_FIELD = "x"  # of sequences that are plain arrays
Axes = Mapping[str, str | None]
_MANY_ROWS, _FEW_COLUMNS = 100_000, 16  # from which shape on rows are more likely timesteps


def normalize_sequences(
    sequences: Iterable[Any], axes: Axes | None
) -> tuple[Iterator[Any], Axes | None]:
    """Return one dict per sequence; later items that are not dicts are refused by the packers.

    Args:
        sequences: Dicts; or plain arrays, which become the field ``x``; or a pandas or Polars
            DataFrame; or one pyarrow Table or RecordBatch, or several of them.
        axes: Field -> axis, as given by the user.

    Returns:
        The sequences, and ``axes``, extended by a table's vectors: lists of a fixed size are one
        value per sequence.

    Raises:
        ConfigError: If ``sequences`` is none of these, or ``axes`` is not a dict.
        DecodeError: If a table's column holds nulls or a type that cannot be stored.
    """
    check_axes(axes)
    library = find_frame_library(sequences)
    if library == "pandas":
        rows = share_vocabularies(_iter_frame_rows(sequences), _FrameRows(sequences))
        return _check_sequences(rows, axes), axes
    if library == "polars":
        sequences = to_arrow_table(sequences)
    if is_arrow_table(sequences):
        axes = _add_vector_axes(sequences, axes)
        rows = _iter_table_rows([sequences], _find_vocabularies([sequences]))
        return _check_sequences(rows, axes), axes
    if isinstance(sequences, Mapping | str | bytes) or not isinstance(sequences, Iterable):
        columns = "; if it holds columns, make a dict of each sequence"
        raise ConfigError(
            "`sequences` must be an iterable of dicts, arrays or Arrow tables, but is a "
            f"{type(sequences).__name__}. Put it in a list"
            f"{columns if isinstance(sequences, Mapping) else ''}"
        )
    _warn_of_timesteps(sequences)
    iterator = iter(sequences)
    try:
        first = next(iterator)
    except StopIteration:
        raise ConfigError(
            "`sequences` must hold at least one sequence, which determines the fields, but is "
            "empty. Check where they come from"
        ) from None
    all_items = itertools.chain([first], iterator)
    if is_arrow_table(first):
        axes = _add_vector_axes(first, axes)
        found = _find_vocabularies([first] if iterator is sequences else sequences)
        return _check_sequences(_iter_table_rows(all_items, found), axes), axes
    if isinstance(first, Mapping):
        items = None if iterator is sequences else sequences
        return share_vocabularies(all_items, items), axes
    _check_first_item(first)
    if isinstance(first, tuple) and any(np.ndim(part) or isinstance(part, str) for part in first):
        return (as_mapping(item, None) for item in all_items), axes
    return ({PLAIN_FIELD: item} for item in all_items), axes


def _warn_of_timesteps(sequences: Any) -> None:
    """Warn if the rows of an array are so many and so short that they may be timesteps."""
    shape: tuple[int, ...] = getattr(sequences, "shape", ())
    if len(shape) == 2 and shape[0] >= _MANY_ROWS and shape[1] <= _FEW_COLUMNS:
        warn(
            "`sequences`: each row of an array is a sequence, so an array of shape "
            f"{tuple(shape)} holds {shape[0]:,} sequences of {shape[1]} timesteps. If its rows are "
            "timesteps, pass it in a list: [array]"
        )


def _check_first_item(first: Any) -> None:
    """Raise if the first item of an iterable cannot be a sequence.

    Raises:
        ConfigError: If it is a number or a string.
    """
    if isinstance(first, str | os.PathLike):
        raise ConfigError(
            f"`sequences` must hold arrays or dicts, but holds a {type(first).__name__}: "
            f"{str(first)!r:.60}. Encode text as numbers, e.g. np.frombuffer(text.encode(), "
            "np.uint8); pass paths as a list of them"
        )
    if isinstance(first, int | float | np.number) or getattr(first, "ndim", None) == 0:
        raise ConfigError(
            f"`sequences` must hold arrays or dicts, but holds numbers, the first is {first!r:.40}."
            " One sequence of numbers is passed in a list: [[1, 2, 3]]"
        )


def _check_sequences(rows: Iterator[dict[str, Any]], axes: Axes | None) -> Iterator[dict[str, Any]]:
    """Return the rows of a table, if its rows are sequences and not timesteps.

    Raises:
        ConfigError: If no column holds arrays.
    """
    first = next(rows)
    if all(axis is None for axis in (axes or {}).values()) and not any(
        map(np.ndim, first.values())
    ):
        texts = [str(name) for name, value in first.items() if isinstance(value, str)]
        likely = next(iter([*texts, *map(str, first)]))
        raise ConfigError(
            f"table: a column must hold lists of numbers, a row per sequence, but "
            f"{', '.join(map(str, first))} hold one value per row. If a row is a timestep, name "
            f"the column whose equal values make a sequence: open_store(table, group={likely!r}), "
            f"or `seqdata write --group {likely}`"
        )
    return itertools.chain([first], rows)


def is_arrow_table(value: Any) -> bool:
    """Return whether a value is a pyarrow Table or RecordBatch; pyarrow is not imported."""
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(value, arrow.Table | arrow.RecordBatch)


def is_table(value: Any) -> bool:
    """Return whether a value is a whole table: of pyarrow, pandas or Polars."""
    return is_arrow_table(value) or find_frame_library(value) is not None


def find_frame_library(value: Any) -> str | None:
    """Return the library of a DataFrame, by its type's name, so that nothing is imported."""
    for base in type(value).__mro__:
        library = base.__module__.partition(".")[0]
        if base.__name__ == "DataFrame" and library in ("pandas", "polars"):
            return library
    return None


def _add_vector_axes(table: Any, axes: Axes | None) -> Axes | None:
    is_fixed_size_list = sys.modules["pyarrow"].types.is_fixed_size_list
    vectors = {field.name: None for field in table.schema if is_fixed_size_list(field.type)}
    return {**vectors, **(axes or {})} if vectors else axes


@dataclass(frozen=True, slots=True)
class _FrameRows:
    """The rows of a pandas DataFrame; can be iterated repeatedly."""

    frame: Any

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return _iter_frame_rows(self.frame)


def _iter_frame_rows(frame: Any) -> Iterator[dict[str, Any]]:
    """Return the rows of a pandas DataFrame: object cells unchanged, other columns by Arrow."""
    frame = index_to_columns(frame)
    names = list(frame.columns)
    if not len(frame) or not names:
        raise _make_no_rows_error()
    columns = (
        cells.tolist() if cells.dtype == object else _iter_values(name, _to_arrow_array(cells))
        for name, cells in frame.items()
    )
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _to_arrow_array(cells: Any) -> Any:
    """Return a column of a pandas DataFrame as one Arrow array."""
    import pyarrow as pa

    with _translate_errors(cells.name):
        is_float = getattr(cells.dtype, "kind", "O") == "f"  # whose NaN is data
        column = pa.array(cells.to_numpy()) if is_float else pa.Array.from_pandas(cells)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def refuse_missing_values(table: Any, first_row: int = 0) -> None:
    """Raise if a pandas DataFrame or a record batch has missing values that cannot be stored.

    Args:
        table: The DataFrame, without a named index, or the record batch.
        first_row: The index of its first row among those of the table, for messages.

    Raises:
        DecodeError: If it does; the message names column and row.
    """
    if find_frame_library(table) == "pandas":
        columns = {
            name: _to_arrow_array(cells) for name, cells in table.items() if cells.dtype != object
        }
    else:
        columns = dict(zip(table.schema.names, table.columns, strict=True))
    for name, column in columns.items():
        if has_nulls(column):
            _iter_values(name, column, first_row)


def to_arrow_table(frame: Any) -> Any:
    """Return a pandas, Polars or Arrow table as an Arrow table; a named index becomes columns.

    An index of dates without a name becomes the column that pandas writes to files for it.

    Raises:
        DecodeError: If a column of pandas has no type of Arrow: mixed, complex or sparse values.
    """
    import pyarrow as pa

    if find_frame_library(frame) == "polars":
        with _translate_errors():
            return frame.to_arrow()
    if find_frame_library(frame) == "pandas":
        has_dates = getattr(frame.index.dtype, "kind", "O") == "M" and frame.index.name is None
        frame = frame if has_dates else index_to_columns(frame)
        with _translate_errors():
            return pa.Table.from_pandas(frame, preserve_index=has_dates)
    return frame if isinstance(frame, pa.Table) else pa.Table.from_batches([frame])


@contextmanager
def _translate_errors(column: Any = None) -> Iterator[None]:
    """Turn errors of a conversion to Arrow into ours.

    Raises:
        DecodeError: If a value cannot be converted.
    """
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, TypeError, OverflowError) as error:
        reason = "; ".join(map(str, error.args))
        where = "each column" if column is None else f"column {column!r}"
        raise DecodeError.at(
            f"table: {where} must hold values of one type that Arrow has, but does not ({reason}). "
            "Convert the column, or leave it out",
            field=None if column is None else str(column),
        ) from error


def index_to_columns(frame: Any) -> Any:
    """Return a pandas DataFrame with its named index as columns.

    Raises:
        ConfigError: If two columns have the same name.
    """
    index = frame.index
    named = [name for name in index.names if name is not None]
    names = [*named, *frame.columns]
    check_unique_names(names)
    if named:
        return frame.reset_index(level=named)[names]
    if getattr(index.dtype, "kind", "O") not in "iu":
        warn_left_out("the index", "it has no name; keep it with frame.rename_axis('id')")
    return frame


def warn_left_out(column: str, reason: str) -> None:
    """Warn that a column of a table is dropped."""
    warn(f"table: {column} is dropped: {reason}")


def _make_no_rows_error() -> ConfigError:
    return ConfigError(
        "`sequences` must have at least one row and column, but is a table without rows or "
        "columns. Check it"
    )


def _find_vocabularies(tables: Iterable[Any]) -> dict[str, Categories]:
    """Return the vocabularies of columns of lists of strings; see ``find_vocabularies``."""
    return find_vocabularies(
        (name, 0, chunk)
        for table in tables
        if is_arrow_table(table)
        for name, column in zip(table.schema.names, table.columns, strict=True)
        for chunk in getattr(column, "chunks", [column])
    )


def _iter_table_rows(
    tables: Iterable[Any], vocabularies: Mapping[str, Categories]
) -> Iterator[dict[str, Any]]:
    has_rows = False
    for table in tables:
        if not is_arrow_table(table):
            raise ConfigError(
                f"`sequences` must be tables throughout, but holds a {type(table).__name__} after "
                "an Arrow table. Convert it"
            )
        first_row = 0
        batches = table.to_batches() if isinstance(table, sys.modules["pyarrow"].Table) else [table]
        for batch in batches:
            check_unique_names(batch.schema.names)
            columns = {
                name: _iter_values(name, batch.column(name), first_row, vocabularies.get(name))
                for name in drop_index_columns(batch.schema.names)
            }
            first_row += batch.num_rows
            for row in zip(*columns.values(), strict=True):
                has_rows = True
                yield dict(zip(columns, row, strict=True))
    if not has_rows:
        raise _make_no_rows_error()


def check_unique_names(names: Sequence[Any]) -> None:
    """Raise if two columns of a table have the same name.

    Raises:
        ConfigError: If a name occurs twice.
    """
    if len(set(names)) < len(names):
        repeated = next(name for number, name in enumerate(names) if name in names[:number])
        raise ConfigError(
            f"table: must have columns of different names, but has two of the name {repeated!r}. "
            "Rename one (a named index of pandas is a column, too)"
        )


def is_pandas_index(name: str) -> bool:
    """Return whether a column is an unnamed index that pandas wrote to a file."""
    return not name or (name.startswith("__index_level_") and name.endswith("__"))


def drop_index_columns(names: Iterable[str]) -> list[str]:
    """Return the names of columns except an unnamed index, which is dropped with a warning."""
    columns = []
    for name in names:
        if is_pandas_index(name):
            warn_left_out(f"column {name!r}", "it is an index of pandas without a name")
        else:
            columns.append(name)
    return columns


def _iter_values(
    name: str, column: Any, first_row: int = 0, categories: Categories | None = None
) -> Iterable[Any]:
    """Return the values of a table's column, sequence by sequence.

    Raises:
        DecodeError: If a value is missing, or the column cannot be a field.
    """
    values = convert_column(name, column, first_row, categories)
    if values is None:
        raise DecodeError.at(
            f"table: column {name!r} must be numbers, text, bytes, or lists of numbers, but has "
            f"type {column.type}. Cast it",
            field=name,
        )
    if isinstance(values, EncodedColumn):
        return map(values.__getitem__, range(len(values)))
    if not isinstance(values, DecodedColumn):
        return values
    offsets = [] if values.offsets is None else values.offsets.tolist()
    return (values.values[start:stop] for start, stop in itertools.pairwise(offsets))
