"""Writing stores: any iterable of sequences, all of it or nothing.

``StoreWriter`` writes files of any format; ``write_arrow`` writes Arrow files. At a remote location
the manifest is uploaded last.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic

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
from seqdata.storage.remote.upload import UploadPlan, upload_store
from seqdata.storage.schema import (
    PackedFields,
    check_axis_lengths,
    check_packed_ids,
    infer_fields,
)
from seqdata.storage.writing.progress import ProgressFn
from seqdata.storage.writing.sharded_writer import (
    Fields,
    MakeFormat,
    ShardedWriter,
    chain_parts,
    check_arguments,
    is_part_list,
    open_sharded_writer,
)
from seqdata.storage.writing.shards import (
    FilesT,
    FinishedShard,
    PackedShard,
    PackFn,
    ResumeKey,
    ShardFormat,
)
from seqdata.storage.writing.staging_dir import StoreFiles, commit

SHARD_BYTES = 256 << 20
_PROGRESS_SEQUENCES = 1024  # maximum sequences between two reports of progress
_PROGRESS_BYTES = 1 << 24
_COUNT_BYTES = 8  # of a count in a digest


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Arguments of ``api.write_store`` for files of any format.

    Attributes:
        axes: Field -> axis, as given.
        shard_bytes: Size in bytes at which a shard is closed.
        key: The field of ids.
        executor: The executor that writes shards; None: threads of this process.
        resume: Whether to continue where an earlier call stopped.
        progress: Called with (sequences, bytes); True: a bar; None: a bar on a terminal.
        overwrite: Whether an existing store is replaced.
        remote: Options for a URL; None: the defaults.
        shuffle: Seed of a random order of writing; None: the given order.
    """

    axes: Axes | None
    shard_bytes: int
    key: str
    executor: Executor | None
    resume: bool
    progress: bool | ProgressFn | None
    overwrite: bool
    remote: str | Remote | None
    shuffle: int | None


@dataclass(frozen=True, kw_only=True)
class StoreWriter(UploadPlan, ABC, Generic[FilesT]):
    """Writer of sequences as a store, in files of any format.

    Attributes:
        sequences: Sequences, a table, or a list of functions that return sequences.
        options: The options.
        format: Name of the format.
        files: Names of the files of a store.
        part_format: Returns the format of the shards of a part; None: all parts are one iterable.
    """

    sequences: Any
    options: WriteOptions
    format: str
    files: StoreFiles
    part_format: MakeFormat[FilesT] | None = None

    @property
    def last(self) -> str:
        """Name of the file that is written last."""
        return self.files.last

    def save(self, location: str | os.PathLike[str]) -> Remote | None:
        """Write to a folder or a URL; return the options of the URL, None for a folder.

        Raises:
            ConfigError: If an argument is invalid, or does not fit the existing files.
            DecodeError: If a sequence is not like the first one, or not what was written before.
            IncompleteDatasetError: If the disk is full.
            RemoteReadError: If the URL cannot be reached.
            CacheError: If the local folder for writing to a URL cannot be used.
            WorkerDiedError: If the executor broke.
        """
        options = self.options
        check_arguments(options.shard_bytes, options.executor)
        if not is_remote(location):
            refuse_remote(location, options.remote)
            self.write(local_path(location), overwrite=options.overwrite)
            return None
        remote = resolve_remote(options.remote)
        upload_store(
            os.fspath(location), remote, self, resume=options.resume, overwrite=options.overwrite
        )
        return remote

    def write(self, folder: Path, *, overwrite: bool) -> None:
        """Write the store to a local folder; see ``save``."""
        options, sequences, axes = self.options, self.sequences, self.options.axes
        rows: Iterator[Any] = iter(())
        shuffle, has_parts = options.shuffle, is_part_list(sequences)
        part_format = self.part_format if has_parts else None
        by_part = part_format if shuffle is None else None
        resume_key = ResumeKey(
            axes=None if axes is None else dict(axes), shard_bytes=options.shard_bytes,
            key=options.key, algorithm=choose_algorithm(), format=self.format, shuffle=shuffle,
            parts=len(sequences) if part_format else None,
        )  # fmt: skip
        if shuffle is None and by_part is None:
            rows, axes = normalize_sequences(chain_parts(sequences), axes)
        total = count_sequences(sequences) if by_part or not has_parts else None
        with open_sharded_writer(
            folder, self.files, resume_key, executor=options.executor, progress=options.progress,
            total=total, overwrite=overwrite, resume=options.resume,
        ) as writer:  # fmt: skip
            if by_part is not None:
                fields, shards = writer.write_parts(sequences, by_part)
            else:
                if shuffle is None:
                    first = next(rows)
                    rows = itertools.chain([first], rows)
                else:
                    found = open_shuffled(
                        writer, sequences, axes, seed=shuffle, make_id=self.make_id
                    )
                    first, rows, axes = found.first, found.rows, found.axes
                fields = infer_fields(first, axes)
                shards = writer.write_rows(rows, self.make_format(fields, resume_key))
            count = sum(finished.shard.sequences for finished in shards)
            writer.report(count, sum(finished.size for finished in shards), total)
            self.commit(folder, writer, fields, shards)

    def make_id(self, number: int) -> str:
        """Return the id of a sequence without one, where the order is random."""
        return str(number)

    @abstractmethod
    def make_format(self, fields: Fields, resume_key: ResumeKey) -> ShardFormat[FilesT]:
        """Return the format of shards.

        Raises:
            ConfigError: If sequences with these fields cannot be written.
        """

    @abstractmethod
    def commit(
        self,
        root: Path,
        writer: ShardedWriter,
        fields: Fields,
        shards: Sequence[FinishedShard[FilesT]],
    ) -> None:
        """Write what a store has besides its shards, and rename all files into place.

        Args:
            root: The folder of the store.
            writer: The writer of the shards.
            fields: Name -> field.
            shards: All shards in order.

        Raises:
            DecodeError: If two sequences have one id.
            IncompleteDatasetError: If the disk is full.
        """


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
    It raises as ``StoreWriter.save`` does.
    """
    options = WriteOptions(
        axes=axes, shard_bytes=shard_bytes, key=key, executor=executor, resume=resume,
        progress=progress, overwrite=overwrite, remote=remote, shuffle=shuffle,
    )  # fmt: skip
    writer = _ArrowWriter(
        sequences=sequences, options=options, format="arrow", files=STORE_FILES,
        part_format=ArrowFormat, rates=rates or {},
    )  # fmt: skip
    resolved = writer.save(location)
    if resolved is None:
        return open_local(local_path(location))
    return open_remote(location, remote=resolved)


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


@dataclass(frozen=True, kw_only=True)
class _ArrowWriter(StoreWriter[ArrowShard]):
    """Writer of an Arrow store.

    Attributes:
        rates: Axis or field -> its clock.
    """

    rates: Mapping[str, Axis]

    def make_format(self, fields: Fields, resume_key: ResumeKey) -> ArrowFormat:
        resolve_clocks(fields, list_axes(fields), self.rates)  # raises before anything is written
        return ArrowFormat(fields, resume_key)

    def commit(
        self,
        root: Path,
        writer: ShardedWriter,
        fields: Fields,
        shards: Sequence[FinishedShard[ArrowShard]],
    ) -> None:
        moves = finalize(writer.folder, fields, shards, writer.resume_key, self.rates)
        commit(root, writer.folder, self.files, moves)

    def check(self, files: WritableFiles, sent: Collection[str], *, overwrite: bool) -> None:
        del sent
        if not overwrite and file_exists(files, MANIFEST):
            raise ConfigError(
                f"{files.location}: already contains a store. Choose another location, or pass "
                "`overwrite=True`"
            )

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
        return [name for name in files.names() if self.files.names.fullmatch(name)]


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
