"""Writing of sequences as files of a format with an index of all: all of them or none.

The sharded writer writes shards to a staging directory, each with its index; they are renamed into
place when all are complete, then the index of all, and the list of shards last. They are uploaded
to a bucket after their index, and the list last. Place in the flow: below ``write_store``. Reads:
sequences. Makes: a store.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DecodeError, MissingShardError
from seqdata.protocols import Field
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.arrow.write import StoreWriter, WriteOptions
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import find_key, make_packer
from seqdata.storage.hashing import check_unique_ids, hash_texts
from seqdata.storage.indexed.file_fields import make_ids
from seqdata.storage.indexed.index_file import (
    dump_index_files,
    dump_list,
    load_index_file,
    load_list,
)
from seqdata.storage.indexed.index_folder import LIST_FILE, OLD_SUFFIX, name_index_file
from seqdata.storage.indexed.indexed_format import IndexedFormat
from seqdata.storage.indexed.opening import FormatBackend
from seqdata.storage.indexed.shard_index import DeclaredFields, ShardIndex
from seqdata.storage.indexed.shards import INDEX_FOLDER, RemoteShard
from seqdata.storage.local_files import (
    has_digest,
    local_path,
    write_synced,
)
from seqdata.storage.packing import Packer, pack_sequence
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.remote_files import RemoteFiles, WritableFiles
from seqdata.storage.remote.transport import make_remote_files
from seqdata.storage.schema import check_axis_lengths
from seqdata.storage.store import ShardStore
from seqdata.storage.writing.progress import ProgressFn
from seqdata.storage.writing.sharded_writer import Fields, ShardedWriter
from seqdata.storage.writing.shards import FinishedShard, PackedShard, PackFn, ResumeKey
from seqdata.storage.writing.staging_dir import FACTS_SUFFIX, StoreFiles, commit, find_staging_dirs

_PROGRESS_SEQUENCES = 1024  # sequences between two reports of progress
_KEY_DIGITS = 9  # of a sequence that is only numbered
_INDEX_FILE = f"{INDEX_FOLDER}/{name_index_file()}"


class ShardEncoder(Protocol):
    """Encoder of the sequences of a dataset into the bytes of its files."""

    @property
    def declared(self) -> DeclaredFields:
        """Member -> name, dtype, shape and axis of the field as it will be read."""
        ...

    @property
    def end(self) -> bytes:
        """Bytes after the last sequence of a file."""
        ...

    def encode(self, number: int, key: str, values: Mapping[str, NDArray[Any]]) -> list[bytes]:
        """Return the bytes of a sequence, in pieces that are written one after the other.

        Args:
            number: Index of the sequence, for messages.
            key: Id of the sequence, or its index with leading zeros if it has no id.
            values: Field -> (timesteps, *shape), or (1, *shape) without an axis; uint8 for strings.

        Raises:
            DecodeError: If the id cannot be written.
        """
        ...


class WritableFormat(IndexedFormat, Protocol):
    """An ``IndexedFormat`` whose files can be written; the first suffix is that of new files."""

    def make_encoder(self, fields: Mapping[str, Field]) -> ShardEncoder:
        """Return the encoder of sequences with these fields, without that of ids.

        Raises:
            ConfigError: If a field cannot be written.
        """
        ...


def write_files(  # noqa: PLR0913
    location: str | os.PathLike[str],
    sequences: Iterable[Any],
    backend: FormatBackend,
    *,
    axes: Mapping[str, str | None] | None = None,
    shard_bytes: int,
    key: str = "id",
    executor: Executor | None = None,
    resume: bool = True,
    progress: bool | ProgressFn | None = None,
    overwrite: bool = False,
    remote: str | Remote | None = None,
    shuffle: int | None = None,
) -> ShardStore:
    """Write sequences as files with indexes, and open them; see ``seqdata.write_store``.

    Args:
        location: Folder, created if needed, or a URL. Files for a URL are first written on this
            machine and then uploaded.
        sequences: Dicts, plain arrays, tables, or a list of functions that return such sequences.
        backend: Backend that opens the files; its format has ``make_encoder``.
        axes: Field -> axis, or None for one vector per sequence. Other arrays run along ``time``.
        shard_bytes: Size in bytes at which a new file begins.
        key: Field of ``str`` with the ids; without such a field, sequences are numbered.
        executor: Executor that indexes and writes files; None: threads of this process.
        resume: Whether to continue after the complete files of a stopped writer; otherwise these
            files are removed.
        progress: Function that is called with (sequences, bytes), or True for a progress bar; None:
            a bar if standard error is a terminal.
        overwrite: Whether to replace existing files of this writer.
        remote: Options for a URL; None: the defaults.
        shuffle: Seed of a random order of writing; None: the given order.

    Raises:
        ConfigError: If an argument is invalid, or does not match the existing files.
        DecodeError: If a sequence does not match the first one, or the one that was written before.
        IncompleteDatasetError: If the disk is full.
        RemoteReadError: If a URL cannot be reached.
        WorkerDiedError: If the executor failed.
    """
    options = WriteOptions(
        axes=axes, shard_bytes=shard_bytes, key=key, executor=executor, resume=resume,
        progress=progress, overwrite=overwrite, remote=remote, shuffle=shuffle,
    )  # fmt: skip
    file_format: Any = backend.format
    writer = _FilesWriter(
        sequences=sequences, options=options, format=file_format.name, file_format=file_format,
        files=StoreFiles(LIST_FILE, _own_names(file_format.suffixes[0])),
    )  # fmt: skip
    resolved = writer.save(location)
    if resolved is None:
        return backend(local_path(location))
    _remove_cached(os.fspath(location), resolved)
    return backend(os.fspath(location), remote=resolved)


def _refuse_logical_types(fields: Mapping[str, Field], file_format: WritableFormat) -> None:
    """Raise if a field holds dates or strings per timestep, which would become bare integers.

    Raises:
        ConfigError: If a field has a logical type that the format cannot store.
    """
    for name, field in fields.items():
        if field.logical is not None:
            raise ConfigError(
                f"write_store: field {name!r} must hold numbers or bytes to be written to files of "
                f"{file_format.suffixes[0]!r}, but holds {field.logical}, which they do not keep. "
                "Write an Arrow store (`format='arrow'`), or convert the field to integers"
            )


def _check_target(root: Path, suffix: str, *, overwrite: bool) -> None:
    """Raise if a folder holds other files, or files that must not be replaced."""
    if not root.is_dir():
        return
    if (root / MANIFEST).exists():
        raise ConfigError(f"{root}: already holds a store. Choose another folder")
    names = sorted(path.name for path in root.glob(f"*{suffix}"))
    others = [name for name in names if not _is_own(name, suffix)]
    # interrupted in its commit
    begun = find_staging_dirs(root) and not (root / LIST_FILE).exists()
    if others or (names and not overwrite and not begun):
        raise _make_target_error(str(root), others, names)


def _make_target_error(location: str, others: list[str], names: list[str]) -> ConfigError:
    advice = "Choose one" if others else "Choose one, or pass `overwrite=True`"
    return ConfigError(
        f"{location}: must be an empty folder, but holds {(others or names)[0]!r}. {advice}"
    )


def _own_names(suffix: str) -> re.Pattern[str]:
    """Return the pattern of the names that this writer gives to files, and of their indexes."""
    index = f"{re.escape(INDEX_FOLDER)}/[^/]+{re.escape(OLD_SUFFIX)}"
    return re.compile(rf"shard-\d{{6,}}{re.escape(suffix)}|{index}")


def _is_own(name: str, suffix: str) -> bool:
    return _own_names(suffix).fullmatch(name) is not None


def _name_shard(number: int, suffix: str) -> str:
    return f"shard-{number:06d}{suffix}"


def _number_key(number: int) -> str:
    return f"{number:0{_KEY_DIGITS}d}"


def _load_indexes(paths: Iterable[Path]) -> Iterator[ShardIndex]:
    """Yield the indexes of shards that were just written.

    Raises:
        CorruptShardError: If one was damaged since.
    """
    for path in paths:
        location = DataLocation(dataset=str(path.parent), file=path.name)
        (group,) = load_index_file(path.read_bytes(), location)
        yield group.take(0)


def _check_keys(folder: Path, shards: Sequence[FinishedShard[_WrittenFile]]) -> None:
    """Raise if an id occurs twice; the write cannot be resumed then.

    Raises:
        DecodeError: If it does.
    """
    indexes = list(_load_indexes(folder / finished.shard.index for finished in shards))
    ids = make_ids(str(folder), indexes, [index.shard for index in indexes])
    hashes = np.concatenate([hash_texts(index.keys, index.key_ends) for index in indexes])
    try:
        check_unique_ids(hashes, lambda number: str(ids.take([number])[0]))
    except DecodeError:
        for path in folder.glob(f"*{FACTS_SUFFIX}"):
            path.unlink()
        raise


@dataclass(frozen=True, slots=True)
class _WrittenFile:
    """A file in the staging directory.

    Attributes:
        file: Name of the file.
        sequences: Number of its sequences.
        bytes: Its size in bytes.
        sha256: Digest of its content, in hex.
    """

    file: str
    sequences: int
    bytes: int
    sha256: str

    @property
    def index(self) -> str:
        """The name of its index."""
        return Path(self.file).stem + OLD_SUFFIX


@dataclass(frozen=True, slots=True, eq=False)
class _SequenceEncoder:
    """Checks sequences and turns them into bytes, as for any store.

    Attributes:
        fields: Name -> field, of all sequences.
        key: The field of ids; None: sequences are numbered.
        packers: The packers that check and convert values.
        shard_encoder: The encoder of the format.
    """

    fields: Mapping[str, Field]
    key: str | None
    packers: Mapping[str, Packer]
    shard_encoder: ShardEncoder

    def encode(self, sequence: Any, number: int) -> list[bytes]:
        """Return the bytes of a sequence.

        Raises:
            DecodeError: If it does not match the first one, or its id cannot be written.
        """
        pack_sequence(self.packers, sequence, number, self.key or "")
        packed = {name: packer.take() for name, packer in self.packers.items()}
        check_axis_lengths(self.fields, packed, number, self.key or "")
        key = _number_key(number)
        if self.key is not None:
            key = packed.pop(self.key)[0].tobytes().decode()
        values = {name: values for name, (values, _) in packed.items()}
        return self.shard_encoder.encode(number, key, values)


@dataclass(frozen=True, slots=True)
class _ShardFormat:
    """Format of files with indexes.

    Implements ``ShardFormat``.

    Attributes:
        fields: Name -> field.
        resume_key: Options that determine how sequences become files.
        file_format: The format of the files.
    """

    fields: Mapping[str, Field]
    resume_key: ResumeKey
    file_format: WritableFormat

    @property
    def suffix(self) -> str:
        return self.file_format.suffixes[0]

    def make_packer(self) -> PackFn:
        return partial(_pack, self, self.make_encoder())

    def make_encoder(self) -> _SequenceEncoder:
        """Return the encoder of sequences; raises as ``WritableFormat.make_encoder`` does."""
        key = self.resume_key.key
        found = find_key(self.fields, key)
        encoder = self.file_format.make_encoder(
            {name: field for name, field in self.fields.items() if name != found}
        )
        packers = {
            name: make_packer(field, is_key=name == key) for name, field in self.fields.items()
        }
        return _SequenceEncoder(self.fields, found, packers, encoder)

    def digest(self, sequence: Any, number: int) -> str:
        return self.digest_bytes(self.make_encoder().encode(sequence, number))

    def digest_bytes(self, encoded: list[bytes]) -> str:
        """Return the digest of a sequence's bytes and of its fields."""
        digest = hashlib.sha256(repr(sorted(self.fields.items())).encode())
        for piece in encoded:
            digest.update(piece)
        return digest.hexdigest()

    def write(self, folder: Path, packed: PackedShard) -> tuple[_WrittenFile, str, str]:
        pieces, first, last = packed.content
        encoder = self.make_encoder().shard_encoder
        path, name = folder / f"{packed.stem}{self.suffix}", _name_shard(packed.number, self.suffix)
        written_bytes = b"".join([*pieces, encoder.end])
        write_synced(path, written_bytes)
        content = np.frombuffer(written_bytes, dtype=np.uint8)
        place = DataLocation(dataset=str(folder), file=name)
        index = self.file_format.make_index(content, name, place)
        written = _WrittenFile(path.name, packed.sequences, len(content), index.sha256)
        (dumped,) = dump_index_files([replace(index, declared=encoder.declared)])
        write_synced(folder / written.index, dumped)
        return written, first, last

    def parse(self, facts: dict[str, Any]) -> _WrittenFile:
        return _WrittenFile(**facts)

    def is_intact(self, folder: Path, files: _WrittenFile) -> bool:
        has_index = (folder / files.index).is_file()
        return has_index and has_digest(folder / files.file, files.bytes, files.sha256)


def _pack(
    shard_format: _ShardFormat,
    encoder: _SequenceEncoder,
    rows: Iterator[Any],
    first: int,
    on_progress: ProgressFn,
) -> tuple[int, int, Any] | None:
    """Pack the sequences of one more file; see ``PackFn``."""
    pieces: list[bytes] = []
    ends: list[list[bytes]] = []  # the first sequence and the last
    count, size = first, 0
    for sequence in rows:
        encoded = encoder.encode(sequence, count)
        ends = [*ends[:1], encoded]
        pieces += encoded
        size += sum(map(len, encoded))
        count += 1
        is_full = size >= shard_format.resume_key.shard_bytes
        if is_full or count % _PROGRESS_SEQUENCES == 0:
            on_progress(count, size)
        if is_full:
            break
    if count == first:
        return None
    digests = shard_format.digest_bytes(ends[0]), shard_format.digest_bytes(ends[-1])
    return count - first, size, (pieces, *digests)


@dataclass(frozen=True, kw_only=True)
class _FilesWriter(StoreWriter[_WrittenFile]):
    """Writer of files, their index and the list of them.

    In a bucket the index comes first: without the list it says that writing was not finished.

    Attributes:
        file_format: The format of the files.
    """

    file_format: WritableFormat

    @property
    def suffix(self) -> str:
        """Suffix of the files."""
        return self.file_format.suffixes[0]

    def write(self, folder: Path, *, overwrite: bool) -> None:
        _check_target(folder, self.suffix, overwrite=overwrite)
        super().write(folder, overwrite=overwrite)

    def make_id(self, number: int) -> str:
        return _number_key(number)

    def make_format(self, fields: Fields, resume_key: ResumeKey) -> _ShardFormat:
        _refuse_logical_types(fields, self.file_format)
        return _ShardFormat(fields, resume_key, self.file_format)

    def commit(
        self,
        root: Path,
        writer: ShardedWriter,
        fields: Fields,
        shards: Sequence[FinishedShard[_WrittenFile]],
    ) -> None:
        folder = writer.folder
        encoder = _ShardFormat(fields, writer.resume_key, self.file_format).make_encoder()
        if encoder.key is not None:
            _check_keys(folder, shards)
        named = {
            finished.shard.file: _name_shard(number, self.suffix)
            for number, finished in enumerate(shards)
        }
        moves = dict(named)
        (folder / INDEX_FOLDER).mkdir(exist_ok=True)
        indexes = _load_indexes(folder / finished.shard.index for finished in shards)
        for number, content in enumerate(dump_index_files(indexes)):
            name = f"{INDEX_FOLDER}/{name_index_file(number)}"
            write_synced(folder / name, content)
            moves[name] = name
        listed = [(named[finished.shard.file], finished.shard.sha256) for finished in shards]
        declared = encoder.shard_encoder.declared
        write_synced(folder / LIST_FILE, dump_list(listed, declared))
        commit(root, folder, self.files, moves)

    def check(self, files: WritableFiles, sent: Collection[str], *, overwrite: bool) -> None:
        found = _list_names(files)
        if MANIFEST in found:
            raise ConfigError(
                f"{files.location}: already contains a store. Choose another location"
            )
        names = [name for name in found if name.endswith(self.suffix)]
        others = [name for name in names if not _is_own(name, self.suffix)]
        if others or (names and not overwrite and _INDEX_FILE not in sent):
            raise _make_target_error(files.location, others, names)

    def digests(self, folder: Path) -> Sequence[Mapping[str, str]]:
        indexes = {
            f"{INDEX_FOLDER}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((folder / INDEX_FOLDER).glob(f"*{OLD_SUFFIX}"))
        }
        listed = load_list((folder / self.last).read_bytes(), str(folder))
        return [indexes, {name: file.sha256 for name, file in listed.items()}]

    def old(self, files: WritableFiles) -> Iterable[str]:
        names = _list_names(make_remote_files(files.url(INDEX_FOLDER), files.remote))
        return [
            *(name for name in _list_names(files) if _is_own(name, self.suffix)),
            *(f"{INDEX_FOLDER}/{name}" for name in names if name.endswith(OLD_SUFFIX)),
        ]


def _list_names(files: RemoteFiles) -> list[str]:
    try:
        return files.names()
    except MissingShardError:  # there is no such folder yet
        return []


def _remove_cached(url: str, remote: Remote) -> None:
    """Remove the cached indexes of older files from this machine."""
    for path in RemoteShard(url, "", remote).cached.glob(f"*{OLD_SUFFIX}"):
        path.unlink(missing_ok=True)
