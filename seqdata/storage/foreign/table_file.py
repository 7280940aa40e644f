"""One foreign file of columns: Arrow IPC (file or stream), Feather 2, or Parquet.

A file consists of units (record batches or row groups) that are read one by one.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqdata.errors import CorruptShardError, DataError, FingerprintMismatch, LimitError
from seqdata.storage.arrow_columns import find_list_types, is_untyped_list
from seqdata.storage.data_location import DataLocation
from seqdata.storage.foreign.untrusted_ipc import (
    MessageExtents,
    check_message,
    check_stream,
    find_batches,
)
from seqdata.storage.foreign.untrusted_parquet import (
    RowGroupInfo,
    check_column,
    make_encrypted_error,
    read_row_groups,
)
from seqdata.storage.limits import MAX_FOOTER, check_size, raise_limit_error

if TYPE_CHECKING:
    import pyarrow as pa

    ReadColumns = Callable[[int, Sequence[str]], list[pa.Array]]

_ARROW_MAGIC, _PARQUET_MAGIC, _FEATHER_1_MAGIC = b"ARROW1", b"PAR1", b"FEA1"
_ENCRYPTED_MAGIC = b"PARE"
_STREAM_MAGICS = (b"\xff\xff\xff\xff",)
_MAX_OLD_SCHEMA = 1 << 20  # bytes of the first message of a stream without a magic
_STREAM_TAIL_BYTES = 4096  # bytes that identify a stream, which has no footer
_UNSUPPORTED = re.compile(
    r"not (currently |yet )?(implemented|supported)|unsupported|unrecognized type|not built|"
    r"unknown (encoding|compression|codec|type)|decrypt|encrypted|metadata version",
    re.I,
)
_END_BYTES = 4096  # at each end of a file: part of its version


@dataclass(frozen=True, slots=True, eq=False)
class TableFile:
    """One opened file.

    Attributes:
        location: The file among those of the dataset.
        format: ``arrow``, ``stream`` or ``parquet``.
        schema: The columns.
        is_mapped: Whether units are uncompressed in memory or in the mapped file.
        units: Number of record batches or row groups.
        read: Returns columns of a unit, by their names.
        digest: Digest of name, size and footer.
        size: Size in bytes.
        version: A string that differs from that of any later version of the file.
        read_encoded: Returns columns of strings as dictionaries and codes; None: the format does
            not support that.
    """

    location: DataLocation
    format: str
    schema: pa.Schema
    is_mapped: bool
    units: int
    read: ReadColumns
    digest: bytes
    size: int
    version: str
    read_encoded: ReadColumns | None = None

    @property
    def name(self) -> str:
        """The name of the file."""
        return str(self.location.file)

    def read_column(self, unit: int, name: str) -> pa.Array:
        """Return one column of a unit."""
        return self.read(unit, [name])[0]

    def locate_unit(self, unit: int, field: str | None = None) -> DataLocation:
        """Return the location of a unit, or of one column of it."""
        return replace(self.location, unit=unit if self.units > 1 else None, field=field)


def detect_format(path: Path, location: DataLocation) -> str | None:
    """Return the format of a file by its first bytes; None if it is not supported.

    Args:
        path: The file.
        location: Location of the file, for messages.

    Raises:
        DataError: If it is a Feather file of version 1, or an encrypted Parquet file.
    """
    with open(path, "rb") as file:
        first_bytes = file.read(8)
    if first_bytes.startswith(_ARROW_MAGIC):
        return "arrow"
    if first_bytes.startswith(_PARQUET_MAGIC):
        return "parquet"
    if first_bytes.startswith(_FEATHER_1_MAGIC):
        raise location.make_error(
            DataError,
            "must be a Feather file of version 2, but is of version 1. Write it again with "
            "`pyarrow.feather.write_feather`",
        )
    if first_bytes.startswith(_ENCRYPTED_MAGIC):
        raise make_encrypted_error(location)
    is_stream = first_bytes.startswith(_STREAM_MAGICS) or _is_old_stream(first_bytes)
    return "stream" if is_stream else None


def _is_old_stream(first_bytes: bytes) -> bool:
    """Return whether a file starts like an Arrow stream before 0.15: the size of a flatbuffer.

    Read as such sizes, the bytes of text are far larger.
    """
    size, root = struct.unpack("<ii", first_bytes) if len(first_bytes) == 8 else (0, 0)
    return bool(0 < root < size < _MAX_OLD_SCHEMA and root % 4 == 0)


@dataclass(frozen=True, slots=True)
class VersionedFile:
    """A file that is opened once, and again for each unit that is decoded.

    Attributes:
        path: The path.
        location: Location of the file, for messages.
        read_version: Returns the version string of the file that is at a path now.
        version: The version string when it was opened.
    """

    path: Path
    location: DataLocation
    read_version: Callable[[Path], str]
    version: str

    def map(self) -> pa.Buffer:
        """Return its bytes, mapped.

        Raises:
            FingerprintMismatch: If it was replaced or changed since it was opened.
        """
        import pyarrow as pa

        source = pa.memory_map(str(self.path))
        found = self.read_version(self.path)
        if found != self.version:
            raise self.location.make_error(
                FingerprintMismatch,
                f"must be the file that was opened ({self.version}), but is another or was changed "
                f"({found}). Open the data again, or restore the file",
                expected=self.version, found=found,
            )  # fmt: skip
        return source.read_buffer(source.size())


def read_local_version(path: Path) -> str:
    """Return the size of a file, the time of its last change, and the digest of both its ends.

    A copy that keeps the time (``cp -p``) may have the size, too.
    """
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        ends = file.read(_END_BYTES)
        file.seek(max(0, status.st_size - _END_BYTES))
        ends += file.read(_END_BYTES)
    digest = hashlib.sha256(ends).hexdigest()[:16]
    return f"{status.st_size} bytes, mtime_ns {status.st_mtime_ns}, ends {digest}"


def open_table_file(
    path: Path, location: DataLocation, read_version: Callable[[Path], str] = read_local_version
) -> TableFile:
    """Open a file, decoding nothing that is compressed beyond the first unit.

    Args:
        path: The file.
        location: Location of the file, for messages.
        read_version: Returns a string that differs between versions of the file.

    Raises:
        DataError: If its format is not supported.
        CorruptShardError: If it is damaged.
    """
    source = VersionedFile(path, location, read_version, read_version(path))
    format = detect_format(path, location)
    if format is None:
        raise location.make_error(
            DataError,
            "must be an Arrow, Feather or Parquet file, but is not. Convert other files to a "
            "store with `seqdata write`",
        )
    with translate_errors(location):
        digest = _digest_file(path, format, location)
        opener = {"parquet": _open_parquet, "stream": _open_stream, "arrow": _open_ipc}[format]
        table_file = opener(source, digest)
        table_file.schema.names  # noqa: B018 - decoded now, while damage still has a path
        return table_file


@contextmanager
def translate_errors(location: DataLocation) -> Iterator[None]:
    """Turn pyarrow's errors about a file into ours.

    Raises:
        CorruptShardError: If the file is damaged.
        DataError: If it has a type, codec, encoding or version that pyarrow does not read.
        LimitError: If there is not enough memory.
    """
    import pyarrow as pa

    try:
        yield
    except MemoryError as error:
        raise location.make_error(
            LimitError,
            f"must fit into memory, but needs more than there is ({error}). Write the file again "
            "with smaller row groups or record batches",
        ) from error
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        if _is_unsupported(error):
            raise location.make_error(DataError, _describe_unsupported(error)) from error
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise location.make_error(
            CorruptShardError,
            f"must be unchanged since it was written, but cannot be read ({reason}). Restore the "
            "file",
        ) from error


def unify_list_types(files: Sequence[TableFile]) -> list[TableFile]:
    """Return files whose columns of empty lists without a type have that of another file."""
    types = find_list_types(file.schema for file in files)
    return [_with_list_types(file, types) for file in files]


def _with_list_types(file: TableFile, types: Mapping[str, pa.DataType]) -> TableFile:
    untyped = [column.name for column in file.schema if is_untyped_list(column.type)]
    given = {name: types[name] for name in untyped if name in types}
    if not given:
        return file

    def read(unit: int, names: Sequence[str]) -> list[pa.Array]:
        columns = zip(names, file.read(unit, names), strict=True)
        return [column.cast(given[name]) if name in given else column for name, column in columns]

    schema = file.schema
    for name, type_ in given.items():
        number = schema.get_field_index(name)
        schema = schema.set(number, schema.field(number).with_type(type_))
    return replace(file, schema=schema, read=read)


def _is_unsupported(error: Exception) -> bool:
    """Return whether pyarrow says that it lacks what a file needs, not that the file is damaged."""
    import pyarrow as pa

    return isinstance(error, pa.ArrowNotImplementedError) or bool(_UNSUPPORTED.search(str(error)))


def _describe_unsupported(error: Exception) -> str:
    """Return the requirement on a file that needs more than this pyarrow supports."""
    import pyarrow as pa

    reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    return (
        f"must hold what pyarrow {pa.__version__} reads, but does not ({reason}). It need not be "
        "damaged: newer, older and other writers make such files. Update pyarrow, or write the "
        "file again without this type, codec or version"
    )


def _open_ipc(source: VersionedFile, digest: bytes) -> TableFile:
    import pyarrow as pa

    buffer, location = source.map(), source.location
    blocks = find_batches(location, memoryview(buffer))
    reader = pa.ipc.open_file(buffer, options=pa.ipc.IpcReadOptions(use_threads=False))
    count, schema = len(blocks), reader.schema
    batches: list[pa.RecordBatch] = []
    while len(batches) < count:  # stops at the first compressed batch
        unit = len(batches)
        check_message(replace(location, unit=unit), memoryview(buffer), *blocks[unit])
        batch = reader.get_batch(unit)
        if not _is_inside(batch, buffer.address, buffer.address + buffer.size):
            read = _IpcReader(source, schema, blocks)
            return TableFile(
                location, "arrow", schema, False, count, read, digest, buffer.size, source.version
            )
        batches.append(batch)
    return _make_mapped_file(source, "arrow", schema, batches, digest, buffer.size)


def _open_stream(source: VersionedFile, digest: bytes) -> TableFile:
    import pyarrow as pa

    options = pa.ipc.IpcReadOptions(use_threads=False)
    buffer = source.map()
    check_stream(source.location, memoryview(buffer))
    reader = pa.ipc.open_stream(buffer, options=options)
    return _make_mapped_file(source, "stream", reader.schema, list(reader), digest, buffer.size)


def _make_mapped_file(
    source: VersionedFile,
    format: str,
    schema: pa.Schema,
    batches: list[pa.RecordBatch],
    digest: bytes,
    size: int,
) -> TableFile:
    for batch in batches:
        batch.validate()

    def read(unit: int, names: Sequence[str]) -> list[pa.Array]:
        return [batches[unit].column(schema.get_field_index(name)) for name in names]

    return TableFile(
        source.location, format, schema, True, len(batches), read, digest, size, source.version
    )


def _is_inside(batch: pa.RecordBatch, begin: int, end: int) -> bool:
    return all(
        begin <= buffer.address and buffer.address + buffer.size <= end
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size
    )


@dataclass(frozen=True, slots=True, eq=False)
class _IpcReader:
    """Reads columns of a compressed record batch, decompressing no other."""

    source: VersionedFile
    schema: pa.Schema
    blocks: MessageExtents

    def __call__(self, unit: int, names: Sequence[str]) -> list[pa.Array]:
        import pyarrow as pa

        location = replace(self.source.location, unit=unit)
        with translate_errors(_locate_columns(location, names)):
            buffer = self.source.map()
            check_message(location, memoryview(buffer), *self.blocks[unit])
            fields = [self.schema.get_field_index(name) for name in names]
            options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
            reader = pa.ipc.open_file(buffer, options=options)
            batch = reader.get_batch(unit)
            batch.validate()
            return [batch.column(name) for name in names]


def _open_parquet(source: VersionedFile, digest: bytes) -> TableFile:
    import pyarrow as pa
    from pyarrow import parquet

    buffer = source.map()
    groups = read_row_groups(source.location, memoryview(buffer).cast("B"))
    opened = parquet.ParquetFile(pa.BufferReader(buffer))  # its footer only
    read = _ParquetReader(source, opened.metadata, groups)
    return TableFile(
        source.location, "parquet", opened.schema_arrow, False, len(groups), read, digest,
        buffer.size, source.version, read.read_encoded,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _ParquetReader:
    """Reads columns of a row group; reopens the file each time, for threads and forks."""

    source: VersionedFile
    metadata: Any
    groups: Sequence[RowGroupInfo]

    def __call__(self, unit: int, names: Sequence[str]) -> list[pa.Array]:
        import pyarrow as pa
        from pyarrow import parquet

        location = replace(self.source.location, unit=unit)
        with translate_errors(_locate_columns(location, names)):
            buffer, group = self.source.map(), self.groups[unit]
            data = memoryview(buffer).cast("B")
            locations = {name: replace(location, field=name) for name in names}
            rows = {name: check_column(locations[name], data, group, name) for name in names}
            file = parquet.ParquetFile(
                pa.BufferReader(buffer), metadata=self.metadata, page_checksum_verification=True
            )
            at_once = [name for name in names if rows[name] >= group.rows]
            several = len(at_once) > 1  # one is read without threads, also in processes that fork
            table = file.read_row_group(unit, columns=at_once, use_threads=several)
            columns = {name: _join_chunks(table.column(name)) for name in at_once}
            for name in names:
                if name not in columns:
                    columns[name] = _read_in_batches(locations[name], file, rows[name], buffer.size)
                _check_rows(locations[name], columns[name], group.rows)
        return [columns[name] for name in names]

    def read_encoded(self, unit: int, names: Sequence[str]) -> list[pa.Array]:
        """Return columns of strings as dictionaries and codes, which no string makes larger."""
        import pyarrow as pa
        from pyarrow import parquet

        location = replace(self.source.location, unit=unit)
        with translate_errors(_locate_columns(location, names)):
            buffer, group = self.source.map(), self.groups[unit]
            locations = {name: replace(location, field=name) for name in names}
            for name in names:
                check_column(locations[name], memoryview(buffer).cast("B"), group, name)
            file = parquet.ParquetFile(
                pa.BufferReader(buffer), metadata=self.metadata, read_dictionary=list(names),
                page_checksum_verification=True,
            )  # fmt: skip
            table = file.read_row_group(unit, columns=list(names), use_threads=False)
            columns = [_join_chunks(table.column(name)) for name in names]
            for name, column in zip(names, columns, strict=True):
                column.validate(full=True)
                _check_rows(locations[name], column, group.rows)
        return columns


def _join_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Return a decoded column in one piece; one chunk, which is the rule, is not copied."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _locate_columns(location: DataLocation, names: Sequence[str]) -> DataLocation:
    """Return the location of a unit, and of its column if only one is read."""
    return replace(location, field=names[0]) if len(names) == 1 else location


def _read_in_batches(location: DataLocation, file: Any, rows: int, size: int) -> pa.Array:
    """Read strings that may be very much longer than the file, and count their bytes."""
    import pyarrow as pa

    arrays, needed = [], 0
    chosen = {"row_groups": [location.unit or 0], "columns": [location.field]}
    for batch in file.iter_batches(rows, **chosen, use_threads=False):
        arrays.append(batch.column(location.field))
        needed += batch.nbytes
        check_size(location, size, needed)
    return pa.chunked_array(arrays).combine_chunks()


def _check_rows(location: DataLocation, values: pa.Array, rows: int) -> None:
    """Raise if a column lacks rows: PyArrow skips or cuts damaged pages without an error."""
    if len(values) != rows:
        raise location.make_error(
            CorruptShardError,
            f"must have {rows} rows as its footer says, but {len(values)} can be read: it is "
            "damaged. Restore it",
            expected=rows, found=len(values),
        )  # fmt: skip


def _digest_file(path: Path, format: str, location: DataLocation) -> bytes:
    """Return the digest of a file's name, size and footer, or of the end of a stream.

    Raises:
        LimitError: If the footer is too large.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        tail_bytes = {"arrow": 10, "parquet": 8}
        tail = _STREAM_TAIL_BYTES
        if format in tail_bytes:
            file.seek(-min(size, tail_bytes[format]), os.SEEK_END)
            tail = tail_bytes[format] + int.from_bytes(file.read(4), "little")
        tail = min(size, tail)
        if tail > MAX_FOOTER:
            must = f"have at most {MAX_FOOTER}"
            raise_limit_error(location, f"has a footer of {tail} bytes", must, tail, MAX_FOOTER)
        file.seek(-tail, os.SEEK_END)
        footer = file.read()
    digest = hashlib.sha256(f"{location.file}\0{size}\0{format}\0".encode())
    digest.update(footer)
    return digest.digest()


def digest_files(files: Sequence[TableFile], contents: Mapping[str, Any]) -> str:
    """Return the digest of files and of their used columns, 32 hex digits."""
    digest = hashlib.sha256(repr(sorted(contents.items())).encode())
    for file in files:
        digest.update(file.digest)
    return digest.hexdigest()[:32]


def digest_versions(files: Sequence[TableFile], digest: str) -> str:
    """Return the digest of the versions of files, 32 hex digits.

    Foreign files have no digest of their content, and two of equal size may have equal footers. So
    the modification time counts if the same files must be recognized again; a copy of them
    elsewhere has another version, but the same digest.
    """
    hasher = hashlib.sha256(digest.encode())
    for file in files:
        hasher.update(f"{file.version}\n".encode())
    return hasher.hexdigest()[:32]
