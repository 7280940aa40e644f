"""Formats ``csv``, ``jsonl``, ``parquet`` and ``arrow``: a sequence per row or group of rows.

All become Arrow tables. A row's lists are its ragged fields, its other values stay per
sequence. With a group column the rows of one value make a sequence (``groups``): numbers become
ragged, strings must not change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqdata.errors import ConfigError, DecodeError
from seqdata.readers.columns import (
    ListColumn,
    convert_column,
    find_large_floats,
    parse_list_cells,
    refuse_inexact,
    refuse_missing,
)
from seqdata.readers.groups import drop_id_column, iter_groups, refuse_order_alone
from seqdata.readers.source import ReadOptions, SourceFile
from seqdata.storage.fields import ID_FIELD, make_unknown_name_error
from seqdata.storage.foreign.untrusted_ipc import MAGIC as IPC_MAGIC
from seqdata.storage.inputs import check_unique_names, drop_index_columns

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_FORMATS = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
"""Suffix -> reader of the files that are tables."""

_BLOCK_BYTES = 1 << 26  # of a CSV or JSON file that are parsed at once; a row must fit into it
_LONG_NUMBER = r"^\s*[+-]?\d{16,}\s*$"  # 2**53, up to which float64 has all, has 16 digits
_NOT_BLANK = re.compile(r"\S")


def find_table_format(files: Iterable[SourceFile]) -> str | None:
    """Return the name of the reader of files that are tables of one kind; None if they are not."""
    found = {TABLE_FORMATS.get(file.path.suffix.lower()) for file in files}
    return found.pop() if len(found) == 1 else None


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


def read_arrow(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Return the sequences of Arrow and Feather files; raises as ``read_parquet`` does."""
    return _iter_concatenated(files, options, _read_arrow)


def _read_arrow(files: Iterable[SourceFile], names: Sequence[str]) -> pa.Table:
    del names  # its columns have types
    return _read_concatenated("arrow", files, _read_arrow_file)


def _read_arrow_file(path: str) -> pa.Table:
    import pyarrow as pa

    with pa.memory_map(path) as source:
        is_file = source.read(len(IPC_MAGIC)) == IPC_MAGIC
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        table = reader.read_all()
    table.validate(full=True)
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
    refuse_order_alone(options.order, options.group)
    for name in (options.group, options.id):
        if name is not None and name not in table.column_names:
            raise make_unknown_name_error("table", "column", name, table.column_names)
    if options.group is None:
        return _iter_rows(table, options.id)
    if options.id is not None:
        raise ConfigError("table: `id` and `group` cannot be combined: a group names its sequence")
    return iter_groups(table, options.group, options.per_sequence, options.order)


def _iter_rows(table: pa.Table, key: str | None) -> Iterator[dict[str, Any]]:
    names = drop_id_column(drop_index_columns(table.column_names), key)
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
