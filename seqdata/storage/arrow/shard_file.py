"""Writing the files of an Arrow store: its shards, then all lengths, unique ids, the manifest.

A shard is an ordinary Arrow IPC file with one record batch. It is uncompressed and has no nulls, so
any Arrow reader can use it and our reader needs no pyarrow. The checksums of its sequences are in a
file next to it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError
from seqdata.kernel.dispatch import get_kernel
from seqdata.linked_axes import Axis
from seqdata.protocols import Field
from seqdata.storage.arrow.manifest import (
    MANIFEST,
    VERSION,
    ArrowShard,
    LengthsFile,
    Manifest,
    dump_manifest,
)
from seqdata.storage.data_location import _UINT32_VALUES
from seqdata.storage.fields import field_width, find_key, kind_of, list_axes
from seqdata.storage.hashing import check_unique_ids, hash_texts
from seqdata.storage.integrity.checksums import (
    CHECKSUM_BYTES,
    ChecksumSpec,
    ComputedChecksums,
    choose_algorithm,
    compute_checksums,
    write_checksums,
)
from seqdata.storage.linking import resolve_clocks
from seqdata.storage.local_files import sync_file, write_synced
from seqdata.storage.schema import PackedFields
from seqdata.storage.writing.shards import FinishedShard, ResumeKey, explain_full_disk
from seqdata.storage.writing.staging_dir import FACTS_SUFFIX

_MAGIC = b"ARROW1"
_TAIL_BYTES = 4 + len(_MAGIC)  # the footer's size, and the magic
_COPY_BYTES = 1 << 22  # bytes
_LENGTH_BYTES = 8  # maximum bytes of a length
_MANIFEST_BYTES_PER_SHARD = 4096  # approximate bytes of a shard's entry in a manifest


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
        timesteps: Axis -> number of timesteps of all its sequences.
        note: Numbers that differ between shards, stored in the schema.
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
    for of_field in checksums.values():
        checksum = zlib.crc32(of_field.values.astype("<u4", copy=False).data, checksum)
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


def finalize(
    folder: Path,
    fields: Mapping[str, Field],
    shards: Sequence[FinishedShard[ArrowShard]],
    scheme: ResumeKey,
    clocks: Mapping[str, Axis] | None = None,
) -> dict[str, str]:
    """Write everything that a store needs in addition to its shards.

    Args:
        folder: The staging directory.
        fields: Name -> field.
        shards: All shards in order.
        scheme: The options that they were written by.
        clocks: Axis or field -> its sampling rate and offset.

    Returns:
        Name of a file in the staging directory -> its name in the store.

    Raises:
        DecodeError: If two sequences have one id.
        IncompleteDatasetError: If the disk is full.
    """
    key = find_key(fields, scheme.key)
    if key is not None and len(shards) > 1:
        _check_unique_ids(folder, shards, key)
    count = sum(finished.shard.sequences for finished in shards)
    lengths = {}
    for axis in list_axes(fields):
        with explain_full_disk(folder / f"lengths-{axis}", count * _LENGTH_BYTES):
            lengths[axis] = _write_lengths(folder, axis, fields, shards)
    final_shards = [_rename_files(finished.shard, number) for number, finished in enumerate(shards)]
    manifest = Manifest(
        fields=fields,
        key=key,
        sequences=count,
        lengths=lengths,
        shards=tuple(final_shards),
        checksums=ChecksumSpec(algorithm=scheme.algorithm, bytes_per_checksum=CHECKSUM_BYTES),
        shuffle=scheme.shuffle,
        linked_axes=resolve_clocks(fields, lengths, clocks or {}),
    )
    with explain_full_disk(folder / MANIFEST, len(shards) * _MANIFEST_BYTES_PER_SHARD):
        write_synced(folder / MANIFEST, dump_manifest(manifest))
    pairs = zip(shards, final_shards, strict=True)
    moves = itertools.chain.from_iterable(_list_moves(finished.shard, to) for finished, to in pairs)
    return dict(moves) | {finished.file: finished.file for finished in lengths.values()}


def _rename_files(shard: ArrowShard, number: int) -> ArrowShard:
    """Return a shard's entry with the file names of the store."""
    name = f"part-{number:05d}"
    checksums = shard.checksums and replace(shard.checksums, file=f"{name}.crc")
    return replace(shard, file=f"{name}.arrow", checksums=checksums)


def _list_moves(shard: ArrowShard, target: ArrowShard) -> list[tuple[str, str]]:
    moves = [(shard.file, target.file)]
    if shard.checksums is not None and target.checksums is not None:
        moves.append((shard.checksums.file, target.checksums.file))
    return moves


def _write_lengths(
    folder: Path,
    axis: str,
    fields: Mapping[str, Field],
    shards: Sequence[FinishedShard[ArrowShard]],
) -> LengthsFile:
    """Write the lengths along an axis, by the offsets in the shards."""
    name = next(name for name, field in fields.items() if field.axis == axis)
    writer = LengthsWriter(folder, axis)
    for finished in shards:
        writer.add(np.diff(_read_offsets(folder, finished.shard, name)))
    return writer.finish()


def _check_unique_ids(folder: Path, shards: Sequence[FinishedShard[ArrowShard]], key: str) -> None:
    """Raise if an id occurs twice; no shard counts as finished then: one must be rewritten."""
    hashes = [hash_texts(*_read_texts(folder, finished.shard, key)) for finished in shards]
    shard_offsets = [0, *itertools.accumulate(finished.shard.sequences for finished in shards)]

    def id_for(number: int) -> str:
        at = int(np.searchsorted(shard_offsets, number, side="right")) - 1
        values, offsets = _read_texts(folder, shards[at].shard, key)
        first, stop = offsets[number - shard_offsets[at]], offsets[number - shard_offsets[at] + 1]
        return str(values[first:stop].tobytes(), "utf-8")

    try:
        check_unique_ids(np.concatenate(hashes), id_for)
    except BaseException:
        for path in folder.glob(f"*{FACTS_SUFFIX}"):
            path.unlink()
        raise


def _read_texts(
    folder: Path, shard: ArrowShard, name: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    at, size = shard.buffers[name][0]
    values: NDArray[Any] = np.fromfile(folder / shard.file, dtype=np.uint8, count=size, offset=at)
    return values, _read_offsets(folder, shard, name)


def _read_offsets(folder: Path, shard: ArrowShard, name: str) -> NDArray[np.int64]:
    at = shard.buffers[name][1][0]
    count = shard.sequences + 1
    return np.fromfile(folder / shard.file, dtype=np.int64, count=count, offset=at)


class LengthsWriter:
    """Writes the lengths along one axis: uint32, or uint64 if a length needs it.

    Args:
        folder: The folder to write to.
        axis: Axis of the lengths, a part of the file's name.
    """

    __slots__ = ("_axis", "_bytes", "_folder")

    def __init__(self, folder: Path, axis: str) -> None:
        self._folder = folder
        self._axis = axis
        for self._bytes in (8, 4):
            self._path.unlink(missing_ok=True)  # left by a killed writer
        self._path.touch()

    @property
    def _path(self) -> Path:
        return self._folder / f"lengths-{self._axis}.u{8 * self._bytes}"

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Append the lengths of more sequences, int64 (n,)."""
        if self._bytes == 4 and int(lengths.max(initial=0)) >= _UINT32_VALUES:
            self._widen()
        with open(self._path, "ab") as file:
            file.write(lengths.astype(f"<u{self._bytes}").data)

    def _widen(self) -> None:
        before = self._path
        self._bytes = 8
        with open(before, "rb") as old, open(self._path, "wb") as new:
            while piece := old.read(_COPY_BYTES):
                new.write(np.frombuffer(piece, dtype="<u4").astype("<u8").data)
        before.unlink()

    def finish(self) -> LengthsFile:
        """Flush the file to the disk and return its entry for the manifest."""
        sync_file(self._path)
        content = np.fromfile(self._path, dtype=np.uint8)
        return LengthsFile(
            file=self._path.name,
            dtype=f"uint{8 * self._bytes}",
            sha256=hashlib.sha256(content.data).hexdigest(),
            checksum=compute_checksum(content),
        )


def compute_checksum(content: NDArray[np.uint8]) -> int:
    """Return one checksum of all bytes."""
    checksum = np.empty(1, dtype=np.uint32)
    get_kernel().checksums(content, np.array([0, len(content)]), checksum, choose_algorithm())
    return int(checksum[0])
