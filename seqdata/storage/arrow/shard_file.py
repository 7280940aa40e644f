"""Writing one shard: an ordinary Arrow IPC file with one record batch.

It is uncompressed and has no nulls, so any Arrow reader can use it and our reader needs no pyarrow.
The checksums of its sequences are in a file next to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError
from seqdata.protocols import Field
from seqdata.storage.arrow.manifest import VERSION, ArrowShard
from seqdata.storage.fields import field_width, kind_of
from seqdata.storage.integrity.checksums import (
    ComputedChecksums,
    compute_checksums,
    write_checksums,
)
from seqdata.storage.schema import PackedFields

_MAGIC = b"ARROW1"
_TAIL_BYTES = 4 + len(_MAGIC)  # the footer's size, and the magic


def write_shard(
    path: Path,
    fields: Mapping[str, Field],
    packed: PackedFields,
    timesteps: Mapping[str, int],
    note: Mapping[str, int],
    algorithm: str,
) -> ArrowShard:
    """Write one shard and its checksums, flushed to the disk; return its entry for the manifest.

    Args:
        path: The file to write; its checksums are written next to it.
        fields: Name -> field.
        packed: Name -> (values, offsets or None).
        timesteps: Axis -> timesteps of all its sequences.
        note: Text that differs between shards, stored in the schema.
        algorithm: The algorithm of the checksums.
    """
    import pyarrow as pa

    checksums = {
        name: compute_checksums(*packed[name], field_width(field), algorithm)
        for name, field in fields.items()
    }
    arrays = [_to_arrow(field, *packed[name]) for name, field in fields.items()]
    count = len(arrays[0])
    columns = [
        pa.field(name, array.type, nullable=False)
        for name, array in zip(fields, arrays, strict=True)
    ]
    schema = pa.schema(columns, metadata={"seqdata": _make_note(fields, checksums, note)})
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    with open(path, "w+b") as file, ThreadPoolExecutor(1, "seqdata-digest") as thread:
        digesting = _DigestingFile(file, thread)
        long = pa.ipc.IpcWriteOptions(allow_64bit=True)  # one sequence may have 2^31 timesteps
        with (
            pa.PythonFile(digesting, "w") as sink,
            pa.ipc.new_file(sink, schema, options=long) as writer,
        ):
            writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        footer = read_footer(file.fileno(), size, str(path))
        digest = digesting.hexdigest()
    return ArrowShard(
        file=path.name, sequences=count, bytes=size, sha256=digest,
        footer_bytes=len(footer), footer_sha256=hashlib.sha256(footer).hexdigest(),
        timesteps=dict(timesteps), buffers=_find_buffers(path, fields, packed),
        checksums=write_checksums(path.with_suffix(".crc"), checksums),
    )  # fmt: skip


class _DigestingFile:
    """A file that Arrow writes to while a thread computes its digest: both take about as long.

    Args:
        file: The file that bytes are written to.
        thread: The thread that computes the digest, in order.
    """

    def __init__(self, file: BinaryIO, thread: ThreadPoolExecutor) -> None:
        self._file = file
        self._thread = thread
        self._digest = hashlib.sha256()
        self.closed = False

    def write(self, piece: Any) -> int:
        """Write a buffer, which must not change before it is digested."""
        self._thread.submit(self._digest.update, piece)
        return self._file.write(piece)

    def close(self) -> None:
        """Refuse further writes; the file stays open."""
        self.closed = True

    def hexdigest(self) -> str:
        """Return the sha256 of the written bytes."""
        return self._thread.submit(self._digest.hexdigest).result()  # ends: hashing takes a moment


def read_footer(descriptor: int, size: int, file_name: str) -> bytes:
    """Return the footer of an Arrow file with its size and the magic at the end.

    Raises:
        CorruptShardError: If it is not an Arrow file.
    """
    tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    bytes_ = int.from_bytes(tail[:4], "little", signed=True) + _TAIL_BYTES
    if len(tail) < _TAIL_BYTES or not tail.endswith(_MAGIC) or not _TAIL_BYTES < bytes_ <= size:
        raise CorruptShardError.at(
            f"{file_name}: must end with a footer and {_MAGIC!r}, but does not. Restore it, or "
            "write the store again",
            file=file_name,
        )
    return os.pread(descriptor, bytes_, size - bytes_)


def _make_note(
    fields: Mapping[str, Field],
    checksums: Mapping[str, ComputedChecksums],
    about: Mapping[str, int],
) -> str:
    """Return the note in a shard's schema; the checksum makes every shard's footer its own."""
    checksum = 0
    for one in checksums.values():
        checksum = zlib.crc32(one.values.astype("<u4", copy=False).data, checksum)
    kinds = {name: [field.dtype, list(field.shape), field.axis] for name, field in fields.items()}
    return json.dumps({"version": VERSION, **about, "crc32": checksum, "fields": kinds})


def _to_arrow(field: Field, values: NDArray[Any], offsets: NDArray[np.int64] | None) -> Any:
    """Return an Arrow array over a packed field; nothing is copied."""
    import pyarrow as pa

    arrow_type = kind_of(field).arrow_type
    if offsets is not None and arrow_type is not None:
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
        return pa.Array.from_buffers(
            getattr(pa, arrow_type)(), len(offsets) - 1, buffers, null_count=0
        )
    if values.dtype == np.bool_:
        values = values.view(np.uint8)
    flat = values.reshape(-1)
    inner = pa.Array.from_buffers(
        pa.from_numpy_dtype(flat.dtype), len(flat), [None, pa.py_buffer(flat)], null_count=0
    )
    for size in reversed(field.shape):
        kind = pa.list_(pa.field("item", inner.type, nullable=False), size)
        inner = pa.Array.from_buffers(
            kind, len(inner) // size, [None], null_count=0, children=[inner]
        )
    if offsets is None:
        return inner
    kind = pa.large_list(pa.field("item", inner.type, nullable=False))
    return pa.Array.from_buffers(
        kind, len(offsets) - 1, [None, pa.py_buffer(offsets)], null_count=0, children=[inner]
    )


def _find_buffers(
    path: Path, fields: Mapping[str, Field], packed: PackedFields
) -> dict[str, tuple[tuple[int, int], ...]]:
    """Find the positions of the buffers in a written file, by the addresses of a reader."""
    import pyarrow as pa

    ranges_of_fields = {}
    with pa.memory_map(str(path)) as file:
        base = file.read_buffer().address
        file.seek(0)
        batch = pa.ipc.open_file(file).get_batch(0)
        for (name, field), column in zip(fields.items(), batch.columns, strict=True):
            values, offsets = packed[name]
            buffers = [buffer for buffer in column.buffers() if buffer is not None]
            size = len(values) * field_width(field)
            ranges = [(buffers[-1].address - base, size) if size else (0, 0)]
            if offsets is not None:
                ranges.append((buffers[0].address - base, offsets.nbytes))
            ranges_of_fields[name] = tuple(ranges)
    return ranges_of_fields
