"""One file of columns that somebody else wrote: Arrow IPC (file or stream), Feather 2, or Parquet.

A file is a row of units (record batches or row groups) that are read one by one. Place in the flow:
the foreign store opens its files here. Reads: files. Makes: columns of units, and a digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqdata.errors import CorruptShardError, DataError, FingerprintMismatch, LimitError
from seqdata.storage.data_location import Place
from seqdata.storage.foreign.untrusted_ipc import Blocks, batches_of, check_message, check_stream
from seqdata.storage.foreign.untrusted_parquet import Group, check_column, groups_of
from seqdata.storage.limits import MAX_FOOTER, check_size, refuse

if TYPE_CHECKING:
    import pyarrow as pa

_ARROW, _PARQUET, _FEATHER_1 = b"ARROW1", b"PAR1", b"FEA1"
_STREAM = (b"\xff\xff\xff\xff",)
_TAIL = 4096  # bytes that stand for a stream, which has no footer


@dataclass(frozen=True, slots=True, eq=False)
class TableFile:
    """One opened file.

    Attributes:
        place: The file among those of the data set.
        format: ``arrow``, ``stream`` or ``parquet``.
        schema: Its columns.
        mapped: Whether units lie decompressed in memory or in the mapped file.
        units: Number of record batches or row groups.
        column: Gives one column of a unit.
        digest: Of name, size and footer.
        size: Its bytes.
        stamp: What it has in common with no later version of the file.
    """

    place: Place
    format: str
    schema: pa.Schema
    mapped: bool
    units: int
    column: Callable[[int, str], pa.Array]
    digest: bytes
    size: int
    stamp: str

    @property
    def name(self) -> str:
        """Of the file."""
        return str(self.place.file)

    def place_of(self, unit: int, field: str | None = None) -> Place:
        """Give the place of a unit, or of one column of it."""
        return replace(self.place, unit=unit if self.units > 1 else None, field=field)


def format_of(path: Path, place: Place) -> str | None:
    """Give the format of a file by its first bytes; None where it is none that we read.

    Args:
        path: The file.
        place: The same, for messages.

    Raises:
        DataError: If it is of Feather's first version.
    """
    with open(path, "rb") as file:
        head = file.read(8)
    if head.startswith(_ARROW):
        return "arrow"
    if head.startswith(_PARQUET):
        return "parquet"
    if head.startswith(_FEATHER_1):
        raise place.error(
            DataError,
            "is a Feather file of version 1, must be of version 2; write it again with "
            "`pyarrow.feather.write_feather`",
        )
    return "stream" if head.startswith(_STREAM) else None


@dataclass(frozen=True, slots=True)
class SameFile:
    """A file that is opened, and opened again for each unit that is decoded.

    Attributes:
        path: Where it lies.
        place: The same, for messages.
        stamp_of: Gives the stamp of the file that lies at a path now.
        stamp: The one that it had when it was opened.
    """

    path: Path
    place: Place
    stamp_of: Callable[[Path], str]
    stamp: str

    def mapped(self) -> pa.Buffer:
        """Return its bytes, mapped.

        Raises:
            FingerprintMismatch: If it was replaced or changed since it was opened.
        """
        import pyarrow as pa

        source = pa.memory_map(str(self.path))
        found = self.stamp_of(self.path)
        if found != self.stamp:
            raise self.place.error(
                FingerprintMismatch,
                f"must be the file that was opened ({self.stamp}), but is another or was changed "
                f"({found}). Open the data again, or restore the file",
                expected=self.stamp, found=found,
            )  # fmt: skip
        return source.read_buffer(source.size())


def stamp_of_local(path: Path) -> str:
    """Return the size of a file and the time of its last change."""
    status = path.stat()
    return f"{status.st_size} bytes, mtime_ns {status.st_mtime_ns}"


def open_file(
    path: Path, place: Place, stamp_of: Callable[[Path], str] = stamp_of_local
) -> TableFile:
    """Open a file, decoding nothing that is compressed beyond the first unit.

    Args:
        path: The file.
        place: The same, for messages.
        stamp_of: Gives what a version of the file has for its own.

    Raises:
        DataError: If it is of no format that we read.
        CorruptShardError: If it is damaged.
    """
    source = SameFile(path, place, stamp_of, stamp_of(path))
    format = format_of(path, place)
    if format is None:
        raise place.error(
            DataError,
            "is no Arrow, Feather or Parquet file, must be one; turn other files into a store with "
            "`seqdata write`",
        )
    with guarded(place):
        digest = _digest(path, format, place)
        opener = {"parquet": _open_parquet, "stream": _open_stream, "arrow": _open_ipc}[format]
        made = opener(source, digest)
        made.schema.names  # noqa: B018 - decoded now, while damage still has a path
        return made


@contextmanager
def guarded(place: Place) -> Iterator[None]:
    """Turn what pyarrow says of a damaged file into our error.

    Raises:
        CorruptShardError: If it says so.
        LimitError: If memory did not suffice.
    """
    import pyarrow as pa

    try:
        yield
    except MemoryError as error:
        raise place.error(
            LimitError,
            f"asks for more memory than there is ({error}), must fit; write the file again in "
            "smaller units",
        ) from error
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise place.error(
            CorruptShardError,
            f"cannot be read ({reason}), must be as it was written; restore the file",
        ) from error


def _open_ipc(source: SameFile, digest: bytes) -> TableFile:
    import pyarrow as pa

    whole, place = source.mapped(), source.place
    blocks = batches_of(place, memoryview(whole))
    reader = pa.ipc.open_file(whole, options=pa.ipc.IpcReadOptions(use_threads=False))
    count, schema = len(blocks), reader.schema
    batches: list[pa.RecordBatch] = []
    while len(batches) < count:  # ends at the first batch that is compressed
        unit = len(batches)
        check_message(replace(place, unit=unit), memoryview(whole), *blocks[unit])
        batch = reader.get_batch(unit)
        if not _lies_in(batch, whole.address, whole.address + whole.size):
            column = _Ipc(source, schema, blocks)
            return TableFile(
                place, "arrow", schema, False, count, column, digest, whole.size, source.stamp
            )
        batches.append(batch)
    return _kept(source, "arrow", schema, batches, digest, whole.size)


def _open_stream(source: SameFile, digest: bytes) -> TableFile:
    import pyarrow as pa

    options = pa.ipc.IpcReadOptions(use_threads=False)
    whole = source.mapped()
    check_stream(source.place, memoryview(whole))
    reader = pa.ipc.open_stream(whole, options=options)
    return _kept(source, "stream", reader.schema, list(reader), digest, whole.size)


def _kept(
    source: SameFile,
    format: str,
    schema: pa.Schema,
    batches: list[pa.RecordBatch],
    digest: bytes,
    size: int,
) -> TableFile:
    for batch in batches:
        batch.validate()

    def column(unit: int, name: str) -> pa.Array:
        return batches[unit].column(schema.get_field_index(name))

    return TableFile(
        source.place, format, schema, True, len(batches), column, digest, size, source.stamp
    )


def _lies_in(batch: pa.RecordBatch, begin: int, end: int) -> bool:
    return all(
        begin <= buffer.address and buffer.address + buffer.size <= end
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Ipc:
    """Reads one column of a compressed record batch, decompressing no other."""

    source: SameFile
    schema: pa.Schema
    blocks: Blocks

    def __call__(self, unit: int, name: str) -> pa.Array:
        import pyarrow as pa

        place = replace(self.source.place, unit=unit)
        with guarded(replace(place, field=name)):
            whole = self.source.mapped()
            check_message(place, memoryview(whole), *self.blocks[unit])
            options = pa.ipc.IpcReadOptions(
                use_threads=False, included_fields=[self.schema.get_field_index(name)]
            )
            reader = pa.ipc.open_file(whole, options=options)
            batch = reader.get_batch(unit)
            batch.validate()
            return batch.column(0)


def _open_parquet(source: SameFile, digest: bytes) -> TableFile:
    import pyarrow as pa
    from pyarrow import parquet

    whole = source.mapped()
    groups = groups_of(source.place, memoryview(whole).cast("B"))
    opened = parquet.ParquetFile(pa.BufferReader(whole))
    column = _Parquet(source, opened.metadata, groups)
    return TableFile(
        source.place, "parquet", opened.schema_arrow, False, len(groups), column, digest,
        whole.size, source.stamp,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Parquet:
    """Reads one column of a row group; opened anew each time, so that threads and forks may."""

    source: SameFile
    about: Any
    groups: Sequence[Group]

    def __call__(self, unit: int, name: str) -> pa.Array:
        import pyarrow as pa
        from pyarrow import parquet

        place = replace(self.source.place, unit=unit, field=name)
        with guarded(place):
            whole, group = self.source.mapped(), self.groups[unit]
            rows = check_column(place, memoryview(whole).cast("B"), group, name)
            file = parquet.ParquetFile(pa.BufferReader(whole), metadata=self.about)
            if rows >= group.rows:
                table = file.read_row_group(unit, columns=[name], use_threads=False)
                return table.column(name).combine_chunks()
            return self._by_pieces(place, file, rows, whole.size)

    def _by_pieces(self, place: Place, file: Any, rows: int, size: int) -> pa.Array:
        """Read texts that may be very much longer than the file, and count their bytes."""
        import pyarrow as pa

        pieces, needed = [], 0
        chosen = {"row_groups": [place.unit or 0], "columns": [place.field]}
        for batch in file.iter_batches(rows, **chosen, use_threads=False):
            pieces.append(batch.column(0))
            needed += batch.nbytes
            check_size(place, size, needed)
        return pa.chunked_array(pieces).combine_chunks()


def _digest(path: Path, format: str, place: Place) -> bytes:
    """Digest a file's name, size and footer; of a stream, which has none, its end.

    Raises:
        LimitError: If the footer is too large.
    """
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        ends = {"arrow": 10, "parquet": 8}
        tail = _TAIL
        if format in ends:
            file.seek(-min(size, ends[format]), os.SEEK_END)
            tail = ends[format] + int.from_bytes(file.read(4), "little")
        tail = min(size, tail)
        if tail > MAX_FOOTER:
            must = f"have at most {MAX_FOOTER}"
            refuse(place, f"has a footer of {tail} bytes", must, tail, MAX_FOOTER)
        file.seek(-tail, os.SEEK_END)
        footer = file.read()
    made = hashlib.sha256(f"{place.file}\0{size}\0{format}\0".encode())
    made.update(footer)
    return made.digest()


def digest_of(files: Sequence[TableFile], about: Mapping[str, Any]) -> str:
    """Digest files and what is taken of them, 32 hex digits."""
    made = hashlib.sha256(repr(sorted(about.items())).encode())
    for file in files:
        made.update(file.digest)
    return made.hexdigest()[:32]


def mark_of(files: Sequence[TableFile], digest: str) -> str:
    """Digest what files have in common with no later version of them, 32 hex digits.

    Files that others wrote have no digest of their content, and two of equal size may have equal
    footers. So the time of the last change counts where the same files must be found again; a copy
    of them elsewhere has another mark, and the same digest.
    """
    made = hashlib.sha256(digest.encode())
    for file in files:
        made.update(f"{file.stamp}\n".encode())
    return made.hexdigest()[:32]
