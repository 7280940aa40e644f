"""Formats ``csv``, ``jsonl``, ``parquet`` and ``arrow``: a sequence per row or group of rows.

All become Arrow tables. A row's lists are its ragged fields, its other values stay per
sequence. With a group column the rows of one value make a sequence (``groups``): numbers become
ragged, strings must not change.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqdata.errors import ConfigError, DecodeError
from seqdata.readers.groups import (
    convert_columns,
    drop_id_column,
    has_lists,
    iter_groups,
    refuse_missing,
    refuse_order_alone,
)
from seqdata.readers.source import ReadOptions, SourceFile
from seqdata.readers.text_numbers import (
    find_doubtful_columns,
    find_large_floats,
    parse_list_cells,
    refuse_doubtful,
    refuse_inexact,
    warn_of_number_texts,
)
from seqdata.storage.arrow_columns import Values
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import ID_FIELD, make_unknown_name_error
from seqdata.storage.foreign.table_file import (
    TableFile,
    open_table_file,
    unify_list_types,
)
from seqdata.storage.inputs import check_unique_names, drop_index_columns
from seqdata.storage.writing.table_files import find_table_kind

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 1 << 26  # of a CSV or JSON file that are parsed at once; a row must fit into it
_HEAD_BYTES = 1 << 12  # bytes of a text file by which its encoding is detected
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_DELIMITER = ","
_DELIMITERS = (_DELIMITER, ";", "\t", "|")
_NOT_JSON = object()


class _Digits(str):
    """A number as a JSON file has it."""

    __slots__ = ()


_JSON_KINDS = {
    _Digits: "number", float: "number", bool: "boolean", str: "string", dict: "object",
    list: "list", type(None): "null",
}  # fmt: skip
_NOT_BLANK = re.compile(r"\S")


def find_table_format(files: Iterable[SourceFile]) -> str | None:
    """Return the name of the reader of files that are tables of one kind; None if they are not."""
    found = {find_table_kind(file.path) for file in files}
    return found.pop() if len(found) == 1 else None


def read_csv(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Return the sequences of CSV files; a cell like ``[1, 2, 3]`` is a list.

    The columns of ids and groups are strings as the file has them: ``01`` is not ``1``.

    Raises:
        DecodeError: If a file is not CSV, a value is missing, a cell's list is wrong, a number is
            held exactly by neither int64 nor float64, or numbers stand among booleans.
        ConfigError: If a requested column does not exist, or columns are separated otherwise.
    """
    return _iter_concatenated(files, options, _read_csv)


def _read_csv(files: Sequence[SourceFile], options: ReadOptions) -> pa.Table:
    import pyarrow.compute as pc

    names = options.naming_columns
    tables = _read_each("csv", files, partial(_read_csv_file, options=options))
    table = _concatenate("csv", tables)
    for name in names:
        if name in table.column_names:
            texts = table.column(name)
            refuse_missing(name, pc.if_else(pc.equal(texts, ""), None, texts))
    with _name_lines(files, tables, partial(_find_csv_line, options=options)):
        table = parse_list_cells(table, names)
    warn_of_number_texts(table, names)
    return table


def _read_csv_file(path: str, options: ReadOptions) -> pa.Table:
    _check_delimiter(path, options)
    table = _parse_csv(path, options, options.naming_columns)
    with _name_lines(
        [SourceFile(Path(path), path)], [table], partial(_find_csv_line, options=options)
    ):
        for name in find_doubtful_columns(table):
            texts = _parse_csv(path, options, [name], only=[name]).column(name)
            refuse_doubtful(name, table.column(name), texts)
    return table


def _parse_csv(
    path: str, options: ReadOptions, texts: Iterable[str], only: Sequence[str] = ()
) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    return arrow_csv.read_csv(
        path,
        read_options=arrow_csv.ReadOptions(
            block_size=_BLOCK_BYTES, encoding=_detect_encoding(path)
        ),
        parse_options=arrow_csv.ParseOptions(
            newlines_in_values=True, delimiter=options.delimiter or _DELIMITER
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types={name: pa.string() for name in texts},
            include_columns=list(only),
            decimal_point=options.decimal or ".",
        ),
    )


def _check_delimiter(path: str, options: ReadOptions) -> None:
    """Raise if the first line of a CSV file is one column, but several by another delimiter.

    Raises:
        ConfigError: If so.
    """
    with open(path, encoding=_detect_encoding(path), errors="replace", newline="") as file:
        line = next((line for line in file if line.strip()), "").strip("\r\n")
    if line.startswith("[") or '"[' in line:
        raise ConfigError.at(
            f"file {path!r}: must have the names of its columns in the first line, but has a list: "
            f"{line!r:.60}. Add a line with names",
            file=path,
        )
    counts = {mark: len(next(csv.reader([line], delimiter=mark), ())) for mark in _DELIMITERS}
    found = max(counts, key=lambda mark: counts[mark])
    used = options.delimiter or _DELIMITER
    if len(next(csv.reader([line], delimiter=used), ())) > 1 or counts[found] < 2:
        return
    raise ConfigError.at(
        f"file {path!r}: must have columns separated by {used!r}, but its first line is "
        f"{line!r:.60}, with {counts[found]} columns separated by {found!r}. Pass "
        f"`delimiter`={found!r} to `seqdata write` (and `decimal`=',' where numbers have a comma), "
        "or convert the file",
        file=path,
    )


def _detect_encoding(path: str) -> str:
    """Return the encoding of a text file: UTF-8, or the one that its first bytes mark.

    Raises:
        DecodeError: If it has bytes of zero, as UTF-16 without a mark and binary files do.
    """
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    for mark, encoding in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return encoding
    if b"\0" not in head:
        return "utf8"
    raise DecodeError.at(
        f"file {path!r}: must be text in UTF-8, but has bytes of zero at its beginning: UTF-16, or "
        "a binary file. Convert it, for example by `iconv -f UTF-16LE -t UTF-8`",
        file=path,
    )


def _find_csv_line(path: str, row: int, options: ReadOptions) -> int:
    """Return the line of a file, counted from 1, in which a row of its table ends."""
    with open(path, encoding=_detect_encoding(path), errors="replace", newline="") as file:
        reader = csv.reader(file, delimiter=options.delimiter or _DELIMITER)
        rows = (cells for cells in reader if cells)
        next(itertools.islice(rows, row + 1, None), None)  # the first one has the names
        return reader.line_num


def read_jsonl(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Return the sequences of files with a JSON object per line; raises as ``read_csv`` does."""
    _refuse_csv_options("jsonl", options)
    return _iter_concatenated(files, options, _read_jsonl)


def _read_jsonl(files: Sequence[SourceFile], options: ReadOptions) -> pa.Table:
    tables = _read_each("jsonl", files, partial(_read_json_file, names=options.naming_columns))
    return _concatenate("jsonl", tables)


def _read_json_file(path: str, names: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    if (encoding := _detect_encoding(path)) != "utf8":
        raise DecodeError.at(
            f"file {path!r}: must be text in UTF-8, but is in {encoding.upper()}. Convert it, for "
            "example by `iconv -t UTF-8`",
            file=path,
        )
    try:
        table = _parse_json(path, names)
        large = find_large_floats(table)
    except pa.ArrowException:
        _refuse_json_line(path)
        raise
    with _name_lines([SourceFile(Path(path), path)], [table], _find_json_line):
        for row, (parsed, _) in enumerate(_iter_json(path) if large else ()):
            for name in large:
                refuse_inexact(name, row, parsed.get(name, 0))
    return table


def _iter_json(path: str) -> Iterator[tuple[Any, int]]:
    """Yield the objects of a file, with numbers as strings, and the line of each."""
    text = Path(path).read_text("utf-8-sig")
    at, line, counted = 0, 1, 0
    decoder = json.JSONDecoder(parse_int=_Digits, parse_float=_Digits, strict=False)
    while (found := _NOT_BLANK.search(text, at)) is not None:
        line, counted = line + text.count("\n", counted, found.start()), found.start()
        try:
            parsed, at = decoder.raw_decode(text, found.start())
        except ValueError:
            parsed, at = _NOT_JSON, len(text)
        yield parsed, line


def _find_json_line(path: str, row: int) -> int:
    return next(itertools.islice(_iter_json(path), row, None))[1]


def _refuse_json_line(path: str) -> None:
    """Raise if a line is of a kind that PyArrow does not read, with a reason in terms of the file.

    Raises:
        DecodeError: If a line is not an object, a list holds null, a number is out of range, or a
            column holds values of two kinds.
    """
    first: dict[str, tuple[str, int]] = {}  # by column: the kind of its values, and its first line
    for parsed, line in _iter_json(path):
        reason = ""
        if not isinstance(parsed, dict):
            found = "no JSON" if parsed is _NOT_JSON else f"a {_JSON_KINDS[type(parsed)]}"
            reason = f"must be a JSON object, but is {found}. Write an object per line"
        for name, value in parsed.items() if not reason else ():
            kinds = set(_iter_kinds(value))
            if isinstance(value, list) and "null" in kinds:
                reason = f"must have values in column {name!r}, but has null in a list. Fill it"
            elif "number out of range" in kinds:
                reason = (
                    f"must have numbers that float64 holds in column {name!r}, but has a larger "
                    "one. Write such numbers as text"
                )
            elif kinds := kinds - {"null"}:
                kind, earlier = first.setdefault(name, (min(kinds), line))
                others = kinds - {kind}
                reason = reason or (
                    f"must have values of one kind in column {name!r}, but has a {min(others)} "
                    f"besides a {kind} of line {earlier}. Write one of them throughout"
                    if others
                    else ""
                )
        if reason:
            raise DecodeError.at(f"file {path!r}: line {line} {reason}", file=path)


def _iter_kinds(value: Any) -> Iterator[str]:
    """Yield the kind of a JSON value, or of each value in a list."""
    if isinstance(value, list):
        for part in value:
            yield from _iter_kinds(part)
    elif isinstance(value, _Digits) and not np.isfinite(float(value)):
        yield "number out of range"
    else:
        yield _JSON_KINDS[type(value)]


def _parse_json(path: str, names: Sequence[str]) -> pa.Table:
    """Return the table of a file; columns of names are strings, also where they look like dates."""
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
        DataError: If a file is not Parquet or is damaged, or a value is missing.
        ConfigError: If a requested column does not exist.
    """
    _refuse_csv_options("parquet", options)
    if options.group is not None:
        return _iter_concatenated(files, options, partial(_read_units, "parquet"))
    return _iter_units(files, options)


def read_arrow(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Return the sequences of Arrow and Feather files; raises as ``read_parquet`` does."""
    _refuse_csv_options("arrow", options)
    return _iter_concatenated(files, options, partial(_read_units, "arrow"))


def _read_units(format_name: str, files: Sequence[SourceFile], options: ReadOptions) -> pa.Table:
    """Return all record batches or row groups of files as one table."""
    import pyarrow as pa

    del options  # its columns have types
    tables = [
        pa.concat_tables([_add_partition(opened.schema.empty_table(), file), *units])
        for file, opened, units in _open_tables(files)
    ]
    return _concatenate(format_name, tables)


def _iter_units(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Yield the sequences of files, of which one unit after the other is read."""
    for file, _, units in _open_tables(files):
        first_row = 0
        with _name_files([file]):
            for table in units:
                yield from _iter_sequences(table, options, first_row)
                first_row += table.num_rows


def _open_tables(
    files: Iterable[SourceFile],
) -> list[tuple[SourceFile, TableFile, Iterator[pa.Table]]]:
    """Open files as stores of tables do; return each with the tables of its units."""
    files = list(files)
    opened = [open_table_file(file.path, DataLocation(dataset=str(file.path))) for file in files]
    for file, table_file in zip(files, opened, strict=True):
        with _name_files([file]):
            check_unique_names(table_file.schema.names)
    pairs = zip(files, unify_list_types(opened), strict=True)
    return [(file, table_file, _iter_tables(file, table_file)) for file, table_file in pairs]


def _iter_tables(file: SourceFile, opened: TableFile) -> Iterator[pa.Table]:
    import pyarrow as pa

    for unit in range(opened.units):
        columns = opened.read(unit, opened.schema.names)
        yield _add_partition(pa.table(columns, schema=opened.schema), file)


def _refuse_csv_options(format_name: str, options: ReadOptions) -> None:
    for name, value in (("delimiter", options.delimiter), ("decimal", options.decimal)):
        if value is not None:
            raise ConfigError(
                f"format {format_name!r}: `{name}` must be left out, but is {value!r}: it is for "
                "CSV files"
            )


def _iter_concatenated(
    files: Iterable[SourceFile],
    options: ReadOptions,
    read: Callable[[Sequence[SourceFile], ReadOptions], pa.Table],
) -> Iterator[dict[str, Any]]:
    """Yield the sequences of files that are one table, of the function that reads it."""
    files = list(files)
    with _name_files(files):
        yield from _iter_sequences(read(files, options), options)


@contextmanager
def _name_files(files: Sequence[SourceFile]) -> Iterator[None]:
    """Add the files that a table is read from to errors about it."""
    try:
        yield
    except (ConfigError, DecodeError) as error:
        if "file" in error.details or not files:
            raise
        first, rest = str(files[0].path), f" and {len(files) - 1} more" if files[1:] else ""
        raise error.with_place(f"in the file {first!r}{rest}", file=first) from error


@contextmanager
def _name_lines(
    files: Sequence[SourceFile], tables: Sequence[pa.Table], find_line: Callable[[str, int], int]
) -> Iterator[None]:
    """Add the file and the line to errors about a row.

    Args:
        files: The files.
        tables: The table of each; rows of errors are those of all tables, one after the other.
        find_line: Returns the line of a file in which a row of its table is.
    """
    try:
        yield
    except DecodeError as error:
        row = error.details.get("row")
        if not isinstance(row, int):
            raise
        stops = np.cumsum([table.num_rows for table in tables])
        number = int(np.searchsorted(stops, row, side="right"))
        path = str(files[number].path)
        line = find_line(path, row - int(stops[number]) + tables[number].num_rows)
        place = f"in line {line} of the file {path!r}"
        raise error.with_place(place, file=path) from error


def _read_each(
    format_name: str, files: Iterable[SourceFile], read: Callable[[str], pa.Table]
) -> list[pa.Table]:
    tables = [
        _add_partition(_read_checked(format_name, file, partial(read, str(file.path))), file)
        for file in files
    ]
    for table in tables:
        check_unique_names(table.column_names)
    return tables


def _concatenate(format_name: str, tables: Sequence[pa.Table]) -> pa.Table:
    import pyarrow as pa

    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DecodeError(
            f"{format_name}: the files' columns do not match ({error}). Write them one by one."
        ) from error


def _add_partition(table: pa.Table, file: SourceFile) -> pa.Table:
    """Return the table of a file with the columns that the folders above it name."""
    import pyarrow as pa

    for name, value in file.partition.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))
    return table


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


def _iter_sequences(
    table: pa.Table, options: ReadOptions, first_row: int = 0
) -> Iterator[dict[str, Any]]:
    if options.field is not None:
        raise ConfigError(
            f"table: `field` is for files of one array, but is {options.field!r}. Leave it out: "
            "columns name the fields."
        )
    check_unique_names(table.column_names)
    refuse_order_alone(options.order, options.group)
    for name in (options.group, options.id):
        if name is not None and name not in table.column_names:
            raise make_unknown_name_error("table", "column", name, table.column_names)
    if options.group is None:
        return _iter_rows(table, options.id, first_row)
    if options.id is not None:
        raise ConfigError("table: `id` and `group` cannot be combined: a group names its sequence")
    return iter_groups(table, options.group, options.per_sequence, options.order)


def _iter_rows(table: pa.Table, key: str | None, first_row: int) -> Iterator[dict[str, Any]]:
    names = drop_id_column(drop_index_columns(table.column_names), key)
    columns = convert_columns(table, names, first_row)
    id_column = columns.pop(key, None) if key is not None else None
    if key is not None and (id_column is None or not _can_name(id_column)):
        raise ConfigError(
            f"table: column {key!r} must hold strings or numbers to be ids, but is of type "
            f"{table.schema.field(key).type}. Name another column"
        )
    if not any(map(has_lists, columns.values())):
        raise ConfigError(
            "table: no column holds lists of numbers, so that no row is a sequence. Pass `--group "
            "COLUMN` to make a sequence of the rows of each value"
        )
    for row in range(table.num_rows):
        sequence = {name: column[row] for name, column in columns.items()}
        if id_column is not None:
            sequence[ID_FIELD] = str(id_column[row])
        yield sequence


def _can_name(column: Values) -> bool:
    """Return whether the values of a column can be ids: strings or numbers."""
    return not has_lists(column) and not (len(column) and isinstance(column[0], bytes))
