"""Rows that are written as one file of a table: Parquet, Arrow, Feather, JSON lines or CSV.

The suffix of a path says which. The file is at its path once it is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from seqdata.errors import ConfigError, must_be
from seqdata.protocols import Field
from seqdata.storage.fields import is_text, kind_of
from seqdata.storage.local_files import open_atomically
from seqdata.storage.remote.urls import redact_url

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_KINDS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".csv": "csv",
}
"""Suffix -> kind of table, which is the name of its reader."""
_CHUNK_ROWS = 4096
_CHUNK_BYTES = 32 << 20


def find_table_kind(location: str | os.PathLike[str]) -> str | None:
    """Return the kind of table that a suffix stands for; None if it is not one of a table."""
    return TABLE_KINDS.get(os.path.splitext(os.fspath(location).rstrip("/"))[1].lower())


def check_suffix(argument: str, path: str | os.PathLike[str], suffix: str) -> None:
    """Raise if a path has the suffix of another kind of table than the one to be written.

    Args:
        argument: The argument that gives the path, for the message.
        path: The path.
        suffix: The suffix that it must have.

    Raises:
        ConfigError: If the suffix is that of a different kind of table.
    """
    if find_table_kind(path) not in (None, TABLE_KINDS.get(suffix)):
        text, needed = os.fspath(path), f"a path that ends in {suffix}, the format that is written"
        raise ConfigError(must_be(argument, needed, repr(text), "Choose another"))


def refuse_table_name(name: str, location: str | os.PathLike[str]) -> None:
    """Raise if a store would be written to a location that is named as the file of a table.

    Args:
        name: The function, for the message.
        location: The location.

    Raises:
        ConfigError: If the location has the suffix of a table.
    """
    if find_table_kind(location) is not None:
        text = redact_url(os.fspath(location))
        suffix = os.path.splitext(text.rstrip("/"))[1]
        raise ConfigError(
            f"{name}: {text} must name a folder, since a store is a folder, but has the suffix "
            f"of a table file, and no reader of {suffix} could open it. Leave {suffix} out; the "
            "files of a store are Arrow files, which pandas, Polars and PyArrow read"
        )


def check_table_target(path: Path, *, overwrite: bool) -> None:
    """Raise if a table cannot be written to a path.

    Raises:
        ConfigError: If it is a folder, or a file that may not be replaced.
    """
    if path.is_dir():
        needed = "a file, as its suffix says, or missing"
        remedy = "Choose another path, without such a suffix for a store"
        raise ConfigError(must_be(f"{path}:", needed, "a folder", remedy))
    if path.exists() and not overwrite:
        remedy = "Pass `overwrite=True` to replace it, or choose another path"
        raise ConfigError(f"{path}: must not exist, but does. {remedy}.")


def write_table_file(
    path: Path, rows: Iterable[Mapping[str, Any]], fields: Mapping[str, Field]
) -> None:
    """Write rows to a file, whole or not at all; an existing file is replaced.

    Args:
        path: The file; its suffix is one of a table.
        rows: Field -> value: a ``str``, a number, or an array.
        fields: All fields, in the order of columns. Those with an axis become lists; shapes become
            lists of a fixed size.

    Raises:
        OSError: If the file cannot be written; it names the path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write = {"parquet": _write_parquet, "arrow": _write_arrow, "csv": _write_csv}
    kind = find_table_kind(path)
    with open_atomically(path) as file:
        if kind == "jsonl":
            _write_jsonl(file, rows)
        else:
            write[str(kind)](file, _make_schema(fields), _make_batches(rows, fields))


def _write_parquet(file: BinaryIO, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    from pyarrow import parquet

    with parquet.ParquetWriter(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_arrow(file: BinaryIO, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    import pyarrow as pa

    with pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_csv(file: BinaryIO, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    from pyarrow import csv

    with csv.CSVWriter(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_jsonl(file: BinaryIO, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        plain = {name: getattr(value, "tolist", lambda v=value: v)() for name, value in row.items()}
        file.write(json.dumps(plain, ensure_ascii=False).encode() + b"\n")


def _make_schema(fields: Mapping[str, Field]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, _make_array([], field).type) for name, field in fields.items()])


def _make_batches(
    rows: Iterable[Mapping[str, Any]], fields: Mapping[str, Field]
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = _make_schema(fields)
    for chunk in _split_rows(rows):
        columns = [
            _make_array([row[name] for row in chunk], field) for name, field in fields.items()
        ]
        yield pa.record_batch(columns, schema=schema)


def _split_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    chunk: list[Mapping[str, Any]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += sum(getattr(value, "nbytes", 0) for value in row.values())
        if len(chunk) == _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _make_array(values: Sequence[Any], field: Field) -> pa.Array:
    """Return one column of a batch."""
    import pyarrow as pa

    if not kind_of(field).is_array:
        return pa.array(values, pa.string() if is_text(field) else pa.binary())
    shape = (-1, *field.shape)
    arrays = [np.asarray(value, field.dtype).reshape(shape) for value in values]
    flat = np.concatenate([np.empty((0, *field.shape), field.dtype), *arrays])
    column = pa.array(flat.reshape(-1))
    for size in reversed(field.shape):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    if field.axis is None:
        return column
    offsets = np.cumsum([0, *map(len, arrays)])
    return pa.LargeListArray.from_arrays(offsets, column)
