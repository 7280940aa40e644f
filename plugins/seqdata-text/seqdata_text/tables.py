"""Columns of text in Parquet and Arrow files, a row group or record batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seqdata.backends import DataLocation, make_unknown_name_error
from seqdata.errors import CorruptShardError, DecodeError

_ROWS = 1024


def iter_batch_sizes(root: Path, name: str, kind: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield number of rows and bytes of text of each row group or record batch of a file.

    Args:
        root: The folder of the corpus.
        name: Path of the file below it.
        kind: ``parquet`` or ``arrow``.
        text: The column of text.

    Raises:
        CorruptShardError: If the file is not a valid file of this kind.
        ConfigError: If it has no such column.
    """
    with _open(root, name, kind) as table:
        at = _find_columns(root, name, table.schema, [text])[0]
        if kind == "parquet":
            for number in range(table.num_row_groups):
                group = table.metadata.row_group(number)
                sizes = [
                    group.column(each).total_uncompressed_size
                    for each in range(group.num_columns)
                    if group.column(each).path_in_schema == text
                ]
                yield group.num_rows, sum(sizes)
            return
        for batch in _iter_batches(table):
            yield batch.num_rows, batch.column(at).nbytes


def read_columns(
    root: Path, name: str, kind: str, columns: Sequence[str], start: int, stop: int
) -> Iterator[list[Any]]:
    """Yield columns of some row groups or record batches, as lists of Arrow arrays.

    Args:
        root: The folder of the corpus.
        name: Path of the file below it.
        kind: ``parquet`` or ``arrow``.
        columns: Names of columns.
        start: First row group or record batch.
        stop: One past the last.

    Raises:
        CorruptShardError: If the file is damaged.
        ConfigError: If it has no such column.
    """
    with _open(root, name, kind) as table:
        places = _find_columns(root, name, table.schema, columns)
        if kind == "parquet":
            batches = table.iter_batches(_ROWS, row_groups=range(start, stop), columns=[*columns])
            for batch in batches:
                yield [batch.column(batch.schema.get_field_index(each)) for each in columns]
            return
        for number, batch in enumerate(_iter_batches(table)):
            if number >= stop:
                return
            for first in range(0, batch.num_rows if number >= start else 0, _ROWS):
                rows = batch.slice(first, _ROWS)
                yield [rows.column(place) for place in places]


def as_strings(root: Path, name: str, column: str, values: Any, first: int) -> list[str]:
    """Return a column of text as strings.

    Args:
        root: The folder of the corpus.
        name: Path of the file below it.
        column: Name of the column.
        values: The values, an Arrow array.
        first: Index of the first row, for messages.

    Raises:
        DecodeError: If the column is not of strings or not UTF-8, or a value is missing.
    """
    import pyarrow as pa

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not is_text and not pa.types.is_string_view(kind):
        raise DataLocation(dataset=str(root), file=name, field=column).make_error(
            DecodeError,
            f"must be a column of strings, but is {kind}. Pass the name of the text column as "
            "`text`",
        )
    if values.null_count:
        row = first + int(values.is_null().index(True).as_py())
        raise DataLocation(dataset=str(root), file=name, field=column).make_error(
            DecodeError,
            f"must have a string in every row, but row {row} has none. Remove such rows, or fill "
            "them",
        )
    try:
        texts: list[str] = values.to_pylist()
    except UnicodeDecodeError as error:
        raise DataLocation(dataset=str(root), file=name, field=column).make_error(
            DecodeError,
            f"must be UTF-8, but is not, in one of the rows from {first} on. Convert the column",
        ) from error
    return texts


def _find_columns(root: Path, name: str, schema: Any, columns: Sequence[str]) -> list[int]:
    for column in columns:
        if column not in schema.names:
            where = f"{DataLocation(dataset=str(root), file=name)}: columns"
            raise make_unknown_name_error(where, "column", column, schema.names)
    return [schema.names.index(column) for column in columns]


@contextmanager
def _open(root: Path, name: str, kind: str) -> Iterator[Any]:
    """Yield a ``ParquetFile`` or an Arrow reader, which is valid within the block.

    Raises:
        CorruptShardError: If the file is damaged.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with pa.memory_map(str(root / name)) as file:
            if kind == "parquet":
                yield parquet.ParquetFile(file)
                return
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            yield pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
    except pa.ArrowException as error:
        raise DataLocation(dataset=str(root), file=name).make_error(
            CorruptShardError,
            f"must be a whole {kind.title()} file, but is not ({str(error).splitlines()[0]}). "
            "Restore it",
        ) from error


def _iter_batches(table: Any) -> Iterator[Any]:
    """Yield the record batches of a reader of Arrow's file or stream."""
    if hasattr(table, "num_record_batches"):
        for number in range(table.num_record_batches):
            yield table.get_batch(number)
    else:
        yield from table
