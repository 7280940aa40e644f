"""Formats ``csv``, ``jsonl`` and ``parquet``: a sequence per row or per group of rows.

All three become Arrow tables. A row's lists are its ragged fields, its other values stay per
sequence. With a group column the rows of one value, in order, make a sequence: numbers become
ragged, strings must not change.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DecodeError
from seqdata.readers.columns import (
    ListColumn,
    combine_column,
    convert_column,
    find_large_floats,
    parse_list_cells,
    refuse_inexact,
    refuse_missing,
    warn_left_out,
)
from seqdata.readers.source import ReadOptions, SourceFile
from seqdata.storage.fields import ID_FIELD, make_unknown_name_error
from seqdata.storage.inputs import check_unique_names, drop_index_columns

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 1 << 26  # of a CSV or JSON file that are parsed at once; a row must fit into it
_LONG_NUMBER = r"^\s*[+-]?\d{16,}\s*$"  # 2**53, up to which float64 has all, has 16 digits
_NOT_BLANK = re.compile(r"\S")


def read_csv(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Return the sequences of CSV files; a cell like ``[1, 2, 3]`` is a list.

    The columns of ids and groups are texts as the file has them: ``01`` is not ``1``.

    Raises:
        DecodeError: If a file is not CSV, a value is missing, a cell's list is wrong, or a number
            is held exactly by neither int64 nor float64.
        ConfigError: If a requested column does not exist.
    """
    return _iter_concatenated(files, options, _read_csv)


def _read_csv(files: Iterable[SourceFile], names: Sequence[str]) -> pa.Table:
    import pyarrow.compute as pc

    table = _read_concatenated("csv", files, partial(_read_csv_file, names=names))
    for name in names:
        if name in table.column_names:
            texts = table.column(name)
            refuse_missing(name, pc.if_else(pc.equal(texts, ""), None, texts))
    return parse_list_cells(table, names)


def _read_csv_file(path: str, names: Sequence[str]) -> pa.Table:
    import pyarrow.compute as pc

    table = _parse_csv(path, names)
    for name in find_large_floats(table):
        texts = _parse_csv(path, [name], only=[name]).column(name)
        for row in pc.indices_nonzero(pc.match_substring_regex(texts, _LONG_NUMBER)).to_pylist():
            refuse_inexact(name, row, texts[row].as_py().strip())
    return table


def _parse_csv(path: str, texts: Iterable[str], only: Sequence[str] = ()) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    return csv.read_csv(
        path,
        read_options=csv.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types={name: pa.string() for name in texts}, include_columns=list(only)
        ),
    )


def read_jsonl(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Return the sequences of files with a JSON object per line; raises as ``read_csv`` does."""
    return _iter_concatenated(files, options, _read_jsonl)


def _read_jsonl(files: Iterable[SourceFile], names: Sequence[str]) -> pa.Table:
    return _read_concatenated("jsonl", files, partial(_read_json_file, names=names))


def _read_json_file(path: str, names: Sequence[str]) -> pa.Table:
    table = _parse_json(path, names)
    large = find_large_floats(table)
    for row, parsed in enumerate(_iter_json(path) if large else ()):
        for name in large:
            refuse_inexact(name, row, parsed.get(name, 0))
    return table


def _iter_json(path: str) -> Iterator[Any]:
    """Yield the objects of a file, with whole numbers as texts."""
    text = Path(path).read_text("utf-8")
    decoder, at = json.JSONDecoder(parse_int=str, strict=False), 0
    while (found := _NOT_BLANK.search(text, at)) is not None:
        parsed, at = decoder.raw_decode(text, found.start())
        yield parsed


def _parse_json(path: str, names: Sequence[str]) -> pa.Table:
    """Return the table of a file; what names sequences stays text where it looks like a date."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    block = arrow_json.ReadOptions(block_size=_BLOCK_BYTES)
    table = arrow_json.read_json(path, read_options=block)
    types = {name: table.schema.field(name).type for name in names if name in table.column_names}
    dates = [name for name, type_ in types.items() if pa.types.is_timestamp(type_)]
    if not dates:
        return table
    texts = arrow_json.ParseOptions(explicit_schema=pa.schema([(n, pa.string()) for n in dates]))
    return arrow_json.read_json(path, read_options=block, parse_options=texts)


def read_parquet(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Return the sequences of Parquet files, by row group where rows are sequences.

    Raises:
        DecodeError: If a file is not Parquet or is damaged, or a value is missing.
        ConfigError: If a requested column does not exist.
    """
    if options.group is not None:
        return _iter_concatenated(files, options, _read_parquet)
    return _iter_row_groups(files, options)


def _read_parquet(files: Iterable[SourceFile], names: Sequence[str]) -> pa.Table:
    del names  # its columns have types
    return _read_concatenated("parquet", files, _read_parquet_file)


def _iter_row_groups(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    for file in files:
        opened = _read_checked("parquet", file, partial(_open_parquet, str(file.path)))
        for number in range(opened.num_row_groups):
            table = _read_checked("parquet", file, partial(_read_row_group, opened, number))
            with _name_files([file]):
                yield from _iter_sequences(table, options)


def _open_parquet(path: str) -> Any:
    """Return an opened file whose pages' checksums are compared, if it has any."""
    import pyarrow as pa
    from pyarrow import parquet

    opened = parquet.ParquetFile(path, page_checksum_verification=True)
    metadata = opened.metadata
    rows = sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    if rows != metadata.num_rows:
        raise pa.ArrowInvalid(
            f"{metadata.num_rows} rows by the footer, but {rows} in its row groups"
        )
    return opened


def _read_parquet_file(path: str) -> pa.Table:
    opened = _open_parquet(path)
    return _check_rows(opened.read(), opened.metadata.num_rows)


def _read_row_group(opened: Any, number: int) -> pa.Table:
    return _check_rows(opened.read_row_group(number), opened.metadata.row_group(number).num_rows)


def _check_rows(table: pa.Table, rows: int) -> pa.Table:
    """Return a table if it has all rows: PyArrow skips damaged pages without an error."""
    import pyarrow as pa

    if table.num_rows != rows:
        raise pa.ArrowInvalid(f"{rows} rows by the footer, but {table.num_rows} can be read")
    return table


def _iter_concatenated(
    files: Iterable[SourceFile],
    options: ReadOptions,
    read: Callable[[Iterable[SourceFile], Sequence[str]], pa.Table],
) -> Iterator[dict[str, Any]]:
    """Yield the sequences of files that are one table, of the function that reads it."""
    files = list(files)
    names = [name for name in (options.group, options.id) if name is not None]
    with _name_files(files):
        yield from _iter_sequences(read(files, names), options)


@contextmanager
def _name_files(files: Sequence[SourceFile]) -> Iterator[None]:
    """Add the files that a table is read from to errors about it."""
    try:
        yield
    except (ConfigError, DecodeError) as error:
        if "file" in error.facts or not files:
            raise
        first, rest = str(files[0].path), f" and {len(files) - 1} more" if files[1:] else ""
        raise error.with_place(f"in the file {first!r}{rest}", file=first) from error


def _read_concatenated(
    format_name: str, files: Iterable[SourceFile], read: Callable[[str], pa.Table]
) -> pa.Table:
    import pyarrow as pa

    tables = [_read_checked(format_name, file, partial(read, str(file.path))) for file in files]
    for table in tables:
        check_unique_names(table.column_names)
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DecodeError(
            f"{format_name}: the files' columns do not match ({error}). Write them one by one."
        ) from error


def _read_checked(format_name: str, file: SourceFile, read: Callable[[], Any]) -> Any:
    import pyarrow as pa

    try:
        return read()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise DecodeError.at(
            f"file {str(file.path)!r}: cannot be read as {format_name} ({reason}); check it or "
            "pass `--format`",
            file=str(file.path),
        ) from error


def _iter_sequences(table: pa.Table, options: ReadOptions) -> Iterator[dict[str, Any]]:
    if options.field is not None:
        raise ConfigError(
            f"table: `field` is for files of one array, but is {options.field!r}. Leave it out: "
            "columns name the fields."
        )
    check_unique_names(table.column_names)
    for name in (options.group, options.id):
        if name is not None and name not in table.column_names:
            raise make_unknown_name_error("table", "column", name, table.column_names)
    if options.group is None:
        return _iter_rows(table, options.id)
    if options.id is not None:
        raise ConfigError("table: `id` and `group` cannot be combined: a group names its sequence")
    return iter_groups(table, options.group)


def _iter_rows(table: pa.Table, key: str | None) -> Iterator[dict[str, Any]]:
    names = _drop_id_column(drop_index_columns(table.column_names), key)
    columns = {name: convert_column(table, name) for name in names}
    id_column = columns.pop(key, None) if key is not None else None
    if key is not None and (id_column is None or isinstance(id_column, ListColumn)):
        raise ConfigError(
            f"table: column {key!r} must hold texts or numbers to be ids, but is of type "
            f"{table.schema.field(key).type}. Name another column"
        )
    usable_columns = {name: column for name, column in columns.items() if column is not None}
    if not any(isinstance(column, ListColumn) for column in usable_columns.values()):
        raise ConfigError(
            "table: no column holds lists of numbers, so that no row is a sequence. Pass `--group "
            "COLUMN` to make a sequence of the rows of each value"
        )
    for row in range(table.num_rows):
        sequence = {name: column[row] for name, column in usable_columns.items()}
        if id_column is not None:
            sequence[ID_FIELD] = str(id_column[row])
        yield sequence


def _drop_id_column(names: list[str], key: str | None) -> list[str]:
    """Return the names of columns except ``id``, with a warning, where another one names sequences.

    Args:
        names: The columns.
        key: The column whose values become the field ``id``; None: there is none.
    """
    if key in (None, ID_FIELD) or ID_FIELD not in names:
        return names
    warn_left_out(
        ID_FIELD,
        f"sequences are named by column {key!r}, and their names are the field {ID_FIELD!r}",
        "rename the column to keep it",
    )
    return [name for name in names if name != ID_FIELD]


def iter_groups(
    table: pa.Table, group: str, per_sequence: Iterable[str] = ()
) -> Iterator[dict[str, Any]]:
    """Return a sequence for the rows of each value of a column, in the order of the rows.

    Args:
        table: A row per timestep.
        group: The column; its values become ids. Another column called ``id`` is left out with a
            warning.
        per_sequence: Columns of numbers that must not change within a group, with one value each.

    Raises:
        ConfigError: If the column does not exist, or no other column holds numbers.
        DecodeError: If a value is missing, or changes where it must not.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if group not in table.column_names:
        raise make_unknown_name_error("table", "column", group, table.column_names)
    column = combine_column(table, group)
    refuse_missing(group, column)
    if pa.types.is_nested(column.type):
        raise ConfigError(
            f"table: column {group!r} must hold a text or a number per row to make groups, but is "
            f"of type {column.type}. Name another column"
        )
    codes = pc.dictionary_encode(column)
    names = codes.dictionary.to_pylist()
    numbers = codes.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")  # groups in order of appearance, rows in file order
    offsets = np.searchsorted(numbers[order], np.arange(len(names) + 1))
    others = drop_index_columns(name for name in table.column_names if name != group)
    columns = {name: convert_column(table, name) for name in _drop_id_column(others, group)}
    for name, column in columns.items():
        if isinstance(column, ListColumn):
            warn_left_out(name, "lists, of which a row of a group has one each")
    ragged = {name: c[order] for name, c in columns.items() if isinstance(c, np.ndarray)}
    texts = {name: column for name, column in columns.items() if isinstance(column, list)}
    constant_texts = {
        name: c for name, c in texts.items() if _is_constant_within(name, c, order, offsets)
    }
    if not ragged.keys() - set(per_sequence):
        left_out = f" and {ID_FIELD!r}" if ID_FIELD in others else ""
        raise ConfigError(
            f"table: no column but {group!r}{left_out} holds numbers, so that a group has no "
            "timesteps"
        )
    single = {name: ragged.pop(name) for name in per_sequence if name in ragged}
    for name, values in single.items():
        _refuse_changes(name, values, names, offsets)
    for number, name in enumerate(names):
        first, stop = int(offsets[number]), int(offsets[number + 1])
        sequence: dict[str, Any] = {ID_FIELD: str(name)}
        sequence.update({field: values[first:stop] for field, values in ragged.items()})
        sequence.update({field: values[first] for field, values in single.items()})
        sequence.update({field: values[order[first]] for field, values in constant_texts.items()})
        yield sequence


def _refuse_changes(
    name: str, values: NDArray[Any], names: list[Any], offsets: NDArray[np.int64]
) -> None:
    for number, (first, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        group_values = values[first:stop]
        if (group_values != group_values[0]).any():
            raise DecodeError.at(
                f"table: column {name!r} must have one value per sequence, but in the rows of "
                f"{names[number]!r} it has {group_values[0]} and "
                f"{group_values[group_values != group_values[0]][0]}. Leave it out "
                "of `axes`, so that it has a value per timestep",
                field=name, sequence=number,
            )  # fmt: skip


def _is_constant_within(
    name: str, values: list[str], order: NDArray[np.int64], offsets: NDArray[np.int64]
) -> bool:
    for first, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        if len({values[row] for row in order[first:stop].tolist()}) > 1:
            warn_left_out(name, "a string that changes within a group")
            return False
    return True
