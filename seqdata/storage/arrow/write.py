"""Writing an Arrow store: any iterable of sequences, all of it or nothing.

At a remote location the manifest is uploaded last.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from seqdata.errors import ConfigError
from seqdata.kernel.dispatch import get_kernel
from seqdata.linked_axes import Axis
from seqdata.protocols import Field, Store
from seqdata.storage.arrow.manifest import MANIFEST, STORE_FILES, ArrowShard, load_manifest
from seqdata.storage.arrow.open_remote import file_exists, open_remote
from seqdata.storage.arrow.shard_file import finalize, write_shard
from seqdata.storage.arrow.shuffled import open_shuffled
from seqdata.storage.arrow.store import open_local
from seqdata.storage.fields import list_axes, make_packer
from seqdata.storage.inputs import Axes, is_table, normalize_sequences
from seqdata.storage.integrity.checksums import ChecksumFile, choose_algorithm
from seqdata.storage.linking import resolve_clocks
from seqdata.storage.local_files import has_digest, is_remote, local_path, refuse_remote
from seqdata.storage.packing import pack_sequence, pack_sequences
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.remote_files import WritableFiles
from seqdata.storage.remote.upload import upload_store
from seqdata.storage.schema import (
    PackedFields,
    check_axis_lengths,
    check_packed_ids,
    infer_fields,
)
from seqdata.storage.writing.progress import ProgressFn
from seqdata.storage.writing.sharded_writer import (
    ShardedWriter,
    check_arguments,
    is_part_list,
    open_sharded_writer,
)
from seqdata.storage.writing.shards import FinishedShard, PackedShard, PackFn, ResumeKey
from seqdata.storage.writing.staging_dir import commit

SHARD_BYTES = 256 << 20
_PROGRESS_SEQUENCES = 1024  # maximum sequences between two reports of progress
_PROGRESS_BYTES = 1 << 24
_COUNT_BYTES = 8  # of a count in a digest


def write_remote(
    location: str | os.PathLike[str],
    remote: str | Remote | None,
    write: Callable[[Path, bool], object],
    *,
    resume: bool,
    overwrite: bool,
) -> Store:
    """Write a store to a URL and open it; raises as ``upload_store`` does.

    Args:
        location: The URL of its folder.
        remote: The options for reading and writing.
        write: Called as ``write(folder, overwrite)``; writes a local store.
        resume: Whether to resume what an earlier call wrote or uploaded.
        overwrite: Whether an existing store is replaced.
    """
    options = resolve_remote(remote)
    upload_store(
        os.fspath(location), options, _ArrowUpload(write), resume=resume, overwrite=overwrite
    )
    return open_remote(location, remote=options)


@dataclass(frozen=True, slots=True)
class _ArrowUpload:
    """Upload of Arrow shards, lengths and a manifest.

    Implements ``UploadPlan``.
    """

    make: Callable[[Path, bool], object]

    @property
    def last(self) -> str:
        return MANIFEST

    def check(self, files: WritableFiles, sent: Collection[str], *, overwrite: bool) -> None:
        del sent
        if not overwrite and file_exists(files, MANIFEST):
            raise ConfigError(
                f"{files.location}: already contains a store. Choose another location, or pass "
                "`overwrite=True`"
            )

    def write(self, folder: Path, *, overwrite: bool) -> object:
        return self.make(folder, overwrite)

    def digests(self, folder: Path) -> Sequence[Mapping[str, str]]:
        manifest = load_manifest(folder)
        found = {
            lengths_file.file: lengths_file.sha256 for lengths_file in manifest.lengths.values()
        }
        for shard in manifest.shards:
            found[shard.file] = shard.sha256
            if shard.checksums is not None:
                found[shard.checksums.file] = shard.checksums.sha256
        return [found]

    def old(self, files: WritableFiles) -> Iterable[str]:
        return [name for name in files.names() if STORE_FILES.names.fullmatch(name)]


def write_arrow(  # noqa: PLR0913
    location: str | os.PathLike[str],
    sequences: Iterable[Any],
    *,
    axes: Mapping[str, str | None] | None = None,
    shard_bytes: int = SHARD_BYTES,
    key: str = "id",
    executor: Executor | None = None,
    resume: bool = True,
    progress: bool | ProgressFn | None = None,
    overwrite: bool = False,
    remote: str | Remote | None = None,
    shuffle: int | None = None,
    rates: Mapping[str, Axis] | None = None,
) -> Store:
    """Write sequences as a store and open it; its arguments are those of ``api.write_store``.

    The first sequence determines the fields. The store appears once it is complete. A writer that
    fails leaves its finished shards, and the same call continues after them, to the same bytes.

    Raises:
        ConfigError: If an argument is invalid, or does not fit the existing files.
        DecodeError: If a sequence is not like the first one, or not what was written before.
        IncompleteDatasetError: If the disk is full.
        WorkerDiedError: If the executor broke.
    """
    check_arguments(shard_bytes, executor)
    if is_remote(location):
        write_local = partial(
            write_arrow, sequences=sequences, axes=axes, shard_bytes=shard_bytes, key=key,
            executor=executor, resume=resume, progress=progress, shuffle=shuffle, rates=rates,
        )  # fmt: skip
        return _write_and_upload(location, write_local, remote, resume=resume, overwrite=overwrite)
    refuse_remote(location, remote)
    root = local_path(location)
    parts = list(sequences) if is_part_list(sequences) else None
    resume_key = ResumeKey(
        axes=None if axes is None else dict(axes), shard_bytes=shard_bytes, key=key,
        algorithm=choose_algorithm(), parts=None if parts is None else len(parts), shuffle=shuffle,
    )  # fmt: skip
    in_order = parts is None and shuffle is None
    rows, axes = normalize_sequences(sequences, axes) if in_order else (iter(()), axes)
    total = None if parts and shuffle is not None else count_sequences(sequences)
    with open_sharded_writer(
        root, STORE_FILES, resume_key, executor=executor, progress=progress, total=total,
        overwrite=overwrite, resume=resume,
    ) as writer:  # fmt: skip
        if shuffle is not None:
            found = open_shuffled(writer, parts or sequences, axes, seed=shuffle)
            fields, shards = _write_rows(writer, found.rows, found.axes, rates, found.first)
        elif parts is not None:
            fields, shards = writer.write_parts(parts, ArrowFormat)
        else:
            fields, shards = _write_rows(writer, rows, axes, rates)
        moves = finalize(writer.folder, fields, shards, resume_key, rates)
        count = sum(finished.shard.sequences for finished in shards)
        writer.report(count, sum(finished.size for finished in shards), total)
        commit(root, writer.folder, STORE_FILES, moves)
    return open_local(root)


def _write_rows(
    writer: ShardedWriter,
    rows: Iterator[Any],
    axes: Axes | None,
    rates: Mapping[str, Axis] | None,
    first: Mapping[str, Any] | None = None,
) -> tuple[Mapping[str, Field], list[FinishedShard[ArrowShard]]]:
    """Write sequences; return their fields, and the shards in their order.

    Args:
        writer: The writer.
        rows: The sequences, at least one.
        axes: Field -> axis.
        rates: Axis or field -> its clock.
        first: The sequence that determines the fields; None: the first one of ``rows``.
    """
    if first is None:
        first = next(rows)
        rows = itertools.chain([first], rows)
    fields = infer_fields(first, axes)
    resolve_clocks(fields, list_axes(fields), rates or {})  # raises before anything is written
    return fields, writer.write_rows(rows, ArrowFormat(fields, writer.resume_key))


def _write_and_upload(
    location: str | os.PathLike[str],
    write_local: Callable[..., Store],
    remote: str | Remote | None,
    *,
    resume: bool,
    overwrite: bool,
) -> Store:
    def write(folder: Path, replaces: bool) -> object:
        return write_local(folder, overwrite=replaces)

    return write_remote(location, remote, write, resume=resume, overwrite=overwrite)


def count_sequences(sequences: object) -> int | None:
    """Return the number of sequences or parts; None if it is not known."""
    if not isinstance(sequences, Sized):
        return None
    if isinstance(sequences, Sequence) and sequences and is_table(sequences[0]):
        return sum(map(len, sequences))
    return len(sequences)


@dataclass(frozen=True, slots=True)
class ArrowFormat:
    """Format of Arrow shards.

    Implements ``ShardFormat``.

    Attributes:
        fields: Name -> field.
        resume_key: Options that determine how sequences become shards.
    """

    fields: Mapping[str, Field]
    resume_key: ResumeKey

    suffix: ClassVar[str] = ".arrow"

    def make_packer(self) -> PackFn:
        """Return a packer of shards, one after the other."""
        return _ArrowPacker(self.fields, self.resume_key).pack

    def digest(self, sequence: Any, number: int) -> str:
        """Return the digest of a sequence; see ``ShardFormat``."""
        packer = _ArrowPacker(self.fields, self.resume_key)
        pack_sequence(packer.packers, sequence, number, self.resume_key.key)
        return digest_sequence(self.fields, packer.take(), 0)

    def write(self, folder: Path, packed: PackedShard) -> tuple[ArrowShard, str, str]:
        """Write a shard and its checksums; see ``ShardFormat``."""
        content, timesteps = packed.content
        path = folder / f"{packed.stem}{self.suffix}"
        note = {"part": packed.part, "shard": packed.number}
        algorithm = self.resume_key.algorithm
        shard = write_shard(path, self.fields, content, timesteps, note, algorithm)
        first, last = (digest_sequence(self.fields, content, i) for i in (0, shard.sequences - 1))
        return shard, first, last

    def parse(self, record: dict[str, Any]) -> ArrowShard:
        """Return a shard from its JSON."""
        checksums = dict(record["checksums"])
        checksums["places"] = _parse_ranges(checksums["places"])
        shard = {**record, "buffers": _parse_ranges(record["buffers"])}
        return ArrowShard(**{**shard, "checksums": ChecksumFile(**checksums)})

    def is_intact(self, folder: Path, files: ArrowShard) -> bool:
        """Return whether the files of a shard are unchanged."""
        checksums = files.checksums
        return (
            checksums is not None
            and has_digest(folder / files.file, files.bytes, files.sha256)
            and has_digest(folder / checksums.file, checksums.bytes, checksums.sha256)
        )


class _ArrowPacker:
    """Packs one shard after the other, into one buffer per field.

    Args:
        fields: Name -> field.
        resume_key: The options that decide where a shard ends.
    """

    __slots__ = ("_fields", "_key", "_limit", "packers")

    def __init__(self, fields: Mapping[str, Field], resume_key: ResumeKey) -> None:
        key = resume_key.key
        self.packers = {
            name: make_packer(field, is_key=name == key) for name, field in fields.items()
        }
        self._fields = fields
        self._key = key
        self._limit = resume_key.shard_bytes

    def take(self) -> PackedFields:
        """Return the packed shard, and start the next one."""
        return {name: packer.take() for name, packer in self.packers.items()}

    def pack(
        self, rows: Iterator[Any], first: int, on_progress: ProgressFn
    ) -> tuple[int, int, Any] | None:
        """Pack the sequences of one more shard; see ``PackFn``."""
        limit, key, kernel = self._limit, self._key, get_kernel()
        count, size, stop = first, 0, min(limit, _PROGRESS_BYTES)
        unpacked: tuple[Any, ...] | None = ()
        while unpacked is not None and size < limit:
            max_rows = _PROGRESS_SEQUENCES - count % _PROGRESS_SEQUENCES
            packed, bytes_, unpacked = pack_sequences(
                kernel, self.packers, rows, max_rows, stop - size
            )
            count, size = count + packed, size + bytes_
            # not plain, or no room: packed alone; also the next ones if none was plain
            if unpacked:
                next_rows = itertools.islice(rows, 0 if packed else max_rows - 1)
                for sequence in itertools.chain(unpacked, next_rows):
                    size += pack_sequence(self.packers, sequence, count, key)
                    count += 1
                    if size >= stop:
                        break
            if count % _PROGRESS_SEQUENCES == 0 or size >= stop:
                on_progress(count, size)
                stop = min(limit, size + _PROGRESS_BYTES)
        if count == first:
            return None
        content = self.take()
        lengths = check_axis_lengths(self._fields, content, first, key)
        check_packed_ids(self._fields, content, key, first)
        timesteps = {axis: int(along.sum()) for axis, along in lengths.items()}
        return count - first, size, (content, timesteps)


def digest_sequence(fields: Mapping[str, Field], packed: PackedFields, i: int) -> str:
    """Return the digest of the i-th packed sequence and of its fields."""
    digest = hashlib.sha256(repr(list(fields.items())).encode())
    for name in fields:
        values, offsets = packed[name]
        first, stop = (i, i + 1) if offsets is None else (int(offsets[i]), int(offsets[i + 1]))
        digest.update((stop - first).to_bytes(_COUNT_BYTES, "little"))
        digest.update(np.ascontiguousarray(values[first:stop]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _parse_ranges(ranges_json: Mapping[str, Any]) -> dict[str, tuple[tuple[int, int], ...]]:
    return {
        name: tuple((offset, size) for offset, size in pairs) for name, pairs in ranges_json.items()
    }
