"""Formats of tables: a sequence per row or group of rows; here of ``parquet`` and ``arrow``.

All become Arrow tables. A row's lists are its ragged fields, its other values stay per
sequence. With a group column the rows of one value make a sequence (``groups``): numbers, dates and
strings that change become ragged. ``text_tables`` has the formats ``csv`` and ``jsonl``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from seqdata.errors import ConfigError, DecodeError
from seqdata.logical_types import Categories
from seqdata.readers.groups import (
    convert_columns,
    drop_id_column,
    has_lists,
    iter_groups,
    refuse_order_alone,
)
from seqdata.readers.missing import refuse_missing_alone
from seqdata.readers.source import CSV_OPTIONS, ReadOptions, SourceFile, find_file_kind
from seqdata.storage.arrow_columns import Values, find_vocabularies, has_string_lists
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import ID_FIELD, make_unknown_name_error
from seqdata.storage.foreign.table_file import TableFile, open_table_file, unify_list_types
from seqdata.storage.inputs import check_unique_names, drop_index_columns
from seqdata.storage.logical_values import EncodedColumn

if TYPE_CHECKING:
    import pyarrow as pa


def find_table_format(files: Iterable[SourceFile]) -> str | None:
    """Return the name of the reader of files that are tables of one kind; None if they are not."""
    found = {find_file_kind(file.path) for file in files}
    return found.pop() if len(found) == 1 else None


def read_parquet(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Return the sequences of Parquet files; without ``group``, one row group is read at a time.

    Raises:
        DataError: If a file is not Parquet or is damaged, or a value is missing.
        ConfigError: If a requested column does not exist, or an option for other files is given.
    """
    refuse_csv_options("parquet", options)
    if options.group is not None:
        return iter_concatenated(files, options, partial(_read_units, "parquet"))
    return _iter_units(files, options)


def read_arrow(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Return the sequences of Arrow and Feather files; raises as ``read_parquet`` does."""
    refuse_csv_options("arrow", options)
    return iter_concatenated(files, options, partial(_read_units, "arrow"))


def _read_units(format_name: str, files: Sequence[SourceFile], options: ReadOptions) -> pa.Table:
    """Return all record batches or row groups of files as one table.

    Raises:
        DecodeError: If a file is damaged, or columns of files do not match.
    """
    import pyarrow as pa

    del options  # its columns have types
    tables = [
        pa.concat_tables([add_partition(opened.schema.empty_table(), file), *units])
        for file, opened, units in _open_tables(files)
    ]
    return concatenate(format_name, tables)


def _iter_units(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Yield the sequences of files, whose row groups or record batches are read one by one."""
    opened_tables = _open_tables(files)
    vocabularies = _count_vocabularies(opened_tables)
    for file, _, units in opened_tables:
        first_row = 0
        with _name_files([file]):
            for table in units:
                yield from _iter_sequences(table, options, first_row, vocabularies)
                first_row += table.num_rows


def _count_vocabularies(
    opened_tables: list[tuple[SourceFile, TableFile, Iterator[pa.Table]]],
) -> dict[str, Categories]:
    """Return column -> vocabulary, of columns of lists of strings; reads these columns once."""

    def iter_columns() -> Iterator[tuple[str, int, pa.Array]]:
        for file, opened, _ in opened_tables:
            names = [column.name for column in opened.schema if has_string_lists(column.type)]
            first_row = 0
            for unit in range(opened.units if names else 0):
                with _name_files([file]):
                    columns = opened.read(unit, names)
                    for name, column in zip(names, columns, strict=True):
                        yield name, first_row, column
                    first_row += len(columns[0])

    return find_vocabularies(iter_columns())


def _open_tables(
    files: Iterable[SourceFile],
) -> list[tuple[SourceFile, TableFile, Iterator[pa.Table]]]:
    """Return each file, opened, with an iterator over its row groups or record batches.

    Raises:
        DataError: If a file is damaged.
        ConfigError: If two columns of a file have the same name.
    """
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
        yield add_partition(pa.table(columns, schema=opened.schema), file)


def refuse_csv_options(format_name: str, options: ReadOptions) -> None:
    """Raise if an option for CSV files is given for another format.

    Raises:
        ConfigError: If an option for CSV files is given.
    """
    for name in CSV_OPTIONS:
        if (value := getattr(options, name)) is not None:
            raise ConfigError(
                f"format {format_name!r}: `{name}` must be left out, but is {value!r}: it is for "
                "CSV files"
            )


def iter_concatenated(
    files: Iterable[SourceFile],
    options: ReadOptions,
    read: Callable[[Sequence[SourceFile], ReadOptions], pa.Table],
) -> Iterator[dict[str, Any]]:
    """Yield the sequences of files that are one table, which ``read`` returns."""
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


def concatenate(format_name: str, tables: Sequence[pa.Table]) -> pa.Table:
    """Return the tables of files as one.

    Raises:
        DecodeError: If their columns do not match.
    """
    import pyarrow as pa

    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DecodeError(
            f"{format_name}: the files' columns do not match ({error}). Write them one by one."
        ) from error


def add_partition(table: pa.Table, file: SourceFile) -> pa.Table:
    """Return the table of a file with the columns that the folders above it name."""
    import pyarrow as pa

    for name, value in file.partition.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))
    return table


def _iter_sequences(
    table: pa.Table,
    options: ReadOptions,
    first_row: int = 0,
    vocabularies: Mapping[str, Categories] = MappingProxyType({}),
) -> Iterator[dict[str, Any]]:
    if options.field is not None:
        raise ConfigError(
            f"table: `field` is for files of one array, but is {options.field!r}. Leave it out: "
            "columns name the fields."
        )
    check_unique_names(table.column_names)
    refuse_order_alone(options.order, options.group)
    refuse_missing_alone(options.missing, options.group)
    for name in (options.group, options.id):
        if name is not None and name not in table.column_names:
            raise make_unknown_name_error("table", "column", name, table.column_names)
    if options.group is None:
        return _iter_rows(table, options.id, first_row, vocabularies)
    if options.id is not None:
        raise ConfigError(
            "table: `id` and `group` cannot be combined: a group names its sequence. Leave `id` out"
        )
    return iter_groups(table, options.group, options.per_sequence, options.order, options.missing)


def _iter_rows(
    table: pa.Table, key: str | None, first_row: int, vocabularies: Mapping[str, Categories]
) -> Iterator[dict[str, Any]]:
    names = drop_id_column(drop_index_columns(table.column_names), key)
    columns = convert_columns(table, names, first_row, vocabularies)
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
    if isinstance(column, EncodedColumn) or has_lists(column):
        return False
    return not (len(column) and isinstance(column[0], bytes))
