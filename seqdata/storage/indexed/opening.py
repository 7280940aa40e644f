"""From a location to a store: files and their indexes are found, compared, and mapped.

Place in the flow: backends of files with an index. Reads: index files, size and both ends of each
file. Makes: a store.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be
from seqdata.storage.data_location import DataLocation
from seqdata.storage.digest_trailer import read_with_digest
from seqdata.storage.find_files import warn_left_out
from seqdata.storage.indexed.audit import audit_files
from seqdata.storage.indexed.build_index import build, describe_indexes
from seqdata.storage.indexed.file_fields import FileFields, make_file_fields
from seqdata.storage.indexed.file_format import FileFormat
from seqdata.storage.indexed.find_files import (
    FoundShards,
    Location,
    find_shards,
    format_location,
)
from seqdata.storage.indexed.index_folder import DataIndex
from seqdata.storage.indexed.indexed_format import IndexedField, IndexedFormat
from seqdata.storage.indexed.load_indexes import load_indexes, load_known_indexes, make_unique_ids
from seqdata.storage.indexed.opened_files import OpenedFiles
from seqdata.storage.indexed.shard_index import (
    ListedShard,
    ShardIndex,
    add_ids,
    digest_extents,
)
from seqdata.storage.indexed.shards import (
    MANY,
    LocalShard,
    Shard,
    has_many_files,
    save_with_digest,
)
from seqdata.storage.indexed.small_files import SmallFiles
from seqdata.storage.indexed.user_format import UserFormat
from seqdata.storage.integrity.audit import AuditReport
from seqdata.storage.integrity.checksums import ChecksumSpec
from seqdata.storage.integrity.verify import check_verify_mode, resolve_verify_mode
from seqdata.storage.local_files import check_fingerprint
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.shards_on_demand import ShardsOnDemand
from seqdata.storage.shared_memory import SharedBits
from seqdata.storage.store import ShardReader, ShardStore, StoreInfo
from seqdata.storage.writing.progress import ProgressFn, progress_bar

INDEX_MODES = (None, "build")
KEY_MODES = ("unique", "by_shard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options by which a store is opened; they are pickled with it.

    Attributes:
        location: Location of the files, with its credentials.
        file_format: Format of the files.
        verify: When checksums are compared; None: at the first read.
        keys: ``unique``, or ``by_shard``: an id is unique in its file only.
        remote: How URLs are read.
    """

    location: str = field(repr=False)
    file_format: IndexedFormat
    verify: str | None = None
    keys: str = "unique"
    remote: Remote | None = None


def open_files(
    location: Location,
    file_format: IndexedFormat,
    *,
    verify: str | None = None,
    index: str | None = None,
    keys: str = "unique",
    remote: str | Remote | None = None,
    progress: bool | None = None,
) -> ShardStore:
    """Open files of a format; see ``FormatBackend.__call__``.

    Raises:
        ConfigError: If the location names no files, there is no index, or an argument is invalid.
        MissingShardError: If a file is missing.
        CorruptShardError: If a file is damaged or not as long as its index says.
        FingerprintMismatch: If a file is not the one that was indexed, or an index is not of
            the file that was written.
        IncompleteDatasetError: If writing was never finished.
        DataError: If files are not of the format.
    """
    text, remote = format_location(location, file_format), resolve_remote(remote)
    check_arguments(redact_url(text), verify, index, keys)
    found = find_shards(text, file_format, remote, probe=True)
    known: list[ShardIndex | None] | None = None
    if index == "build" or not file_format.needs_command:
        known = load_known_indexes(redact_url(text), found.shards, found.index, file_format)
        have = None if known is None else [each is not None for each in known]
        build(
            redact_url(text), found.shards, found.index, file_format, progress=progress, have=have
        )
    options = Options(
        location=text, file_format=file_format, verify=verify, keys=keys, remote=remote
    )
    store = open_shards(options, None, found, progress, known)
    warn_left_out(found.places, (name for each in store.manifest for name in each.siblings))
    return store


def check_arguments(where: str, verify: str | None, index: str | None, keys: str) -> None:
    """Raise if an argument is invalid.

    Raises:
        ConfigError: If one is.
    """
    check_verify_mode(verify, where)
    if index not in INDEX_MODES:
        raise ConfigError(
            must_be(f"{where}: `index`", "'build' or None", repr(index), "Leave it out")
        )
    if keys not in KEY_MODES:
        needed = f"one of {', '.join(KEY_MODES)}"
        raise ConfigError(must_be(f"{where}: `keys`", needed, repr(keys), "Leave it out"))


def _reopen(options: Options, bits: SharedBits | None, fingerprint: str) -> ShardStore:
    file_format = options.file_format
    found = find_shards(options.location, file_format, options.remote)
    store = open_shards(options, bits, found, False)
    check_fingerprint(store.locate(-1), store.fingerprint, fingerprint)
    return store


def open_shards(
    options: Options,
    bits: SharedBits | None,
    found: FoundShards,
    progress: bool | None,
    known: Sequence[ShardIndex | None] | None = None,
) -> ShardStore:
    """Open files that were found; raises as ``open_files`` does.

    Args:
        options: Options of opening.
        bits: Bits of the process that sent the store here.
        found: The files.
        progress: Whether to show bars.
        known: Indexes that were read already.
    """
    location, file_format = redact_url(options.location), options.file_format
    shards = found.shards
    indexes = load_indexes(location, shards, found.index, file_format, known)
    spec = ChecksumSpec(algorithm=indexes[0].algorithm, bytes_per_checksum=indexes[0].block)
    files = OpenedFiles(
        location, shards, indexes, file_format,
        make_unique_ids(location, [shard.name for shard in shards], indexes, options.keys),
        resolve_verify_mode(options.verify, spec, location), options.remote,
    )  # fmt: skip
    indexed_fields = file_format.fields(files)
    digest = _digest(indexes, indexed_fields)
    measure_lengths = partial(_count, shards[0], digest, progress)
    fields = make_file_fields(files, indexed_fields, bits, measure_lengths, digest)
    return ShardStore(_describe(options, fields), _make_reader(fields))


def _make_reader(fields: FileFields) -> ShardReader:
    """Return the reader of the files: all mapped, opened for each batch, or read on demand."""
    files = fields.files
    if has_many_files(files.shards, files.file_format):
        return SmallFiles(fields)
    if all(shard.is_local for shard in files.shards):
        return fields.map_all()
    return ShardsOnDemand(files, fields)


def _describe(options: Options, fields: FileFields) -> StoreInfo:
    """Return the metadata of a store of files."""
    return StoreInfo(
        label="IndexedStore", location=fields.files.location, fields=fields.fields,
        verify=fields.files.verify,
        bits=fields.bits, manifest=fields.files.indexes,
        make_fingerprint=lambda: _make_fingerprint(fields, options.keys),
        reopen=lambda store: (_reopen, (options, fields.bits, store.fingerprint)),
        find_missing=fields.files.find_missing,
    )  # fmt: skip


def _make_fingerprint(fields: FileFields, keys: str) -> str:
    """Return the digest of schema and content, from the indexes."""
    text = repr((sorted(fields.fields.items()), keys))
    digest = hashlib.sha256(text.encode())
    are_many = len(fields.files.indexes) > MANY  # whose generated ids have always been part of it
    for index in fields.files.indexes:
        digest.update(f"{index.sha256}\n".encode())
        if index.format_identity:  # the same bytes may be divided in another way
            digest.update(digest_extents(add_ids(index) if are_many else index))
    return digest.hexdigest()[:32]


def _digest(indexes: Sequence[ShardIndex], indexed_fields: Sequence[IndexedField]) -> str:
    facts = [
        (field.name, field.member, field.field, field.access, field.is_named)
        for field in indexed_fields
    ]
    digest = hashlib.sha256(repr(facts).encode())
    for index in indexes:
        digest.update(f"{index.sha256}{index.format_identity}\n".encode())
    return digest.hexdigest()[:32]


def _count(
    shard: Shard,
    digest: str,
    progress: bool | None,
    field: IndexedField,
    open_file: Callable[[int], Callable[[int], int]],
    counts: list[int],
) -> NDArray[np.int64]:
    """Return the timesteps of values that must be decoded for it, counted once and kept."""
    name = hashlib.sha256(f"{digest}\n{field.name}".encode()).hexdigest()[:32]
    places, count = shard.list_side_files(f"lengths-{name}.npy"), sum(counts)
    for content in filter(None, map(read_with_digest, places)):
        with suppress(ValueError, EOFError):
            saved: NDArray[np.int64] = np.load(io.BytesIO(content), allow_pickle=False)
            if (
                saved.shape == (count,)
                and saved.dtype == np.int64
                and int(saved.min(initial=0)) >= 0
            ):
                return saved
    found: list[int] = []
    with progress_bar(progress, f"measuring {field.name}", count) as bar:
        for number, many in enumerate(counts):
            measure = open_file(number)
            for at in range(many):
                found.append(measure(at))
                if bar is not None and at % 256 == 0:
                    bar.update(len(found), 0)
    lengths = np.array(found, dtype=np.int64)
    file = io.BytesIO()
    np.save(file, lengths, allow_pickle=False)
    save_with_digest(places, file.getvalue())
    return lengths


def open_once(path: Path, file_format: IndexedFormat) -> ShardStore:
    """Open a local file with an index that is built now and not written.

    Raises:
        DataError: If it is damaged, or not of the format.
    """
    shard = _FileWithoutIndex.at(path)
    location = DataLocation(dataset=str(path), shard=0, file=shard.name)
    content = shard.content(location, ahead=True)
    index = file_format.make_index(content, shard.name, location, shard.read_sibling)
    options = Options(location=str(path), file_format=file_format)
    found = FoundShards([shard], _NoIndex(file_format), [])
    return open_shards(options, None, found, False, [index])


class _FileWithoutIndex(LocalShard):
    __slots__ = ()

    def list_side_files(self, name: str) -> list[Path]:
        del name
        return []


class _NoIndex(DataIndex):
    def listed(self, shard: Shard) -> ListedShard | None:
        del shard
        return None


@dataclass(frozen=True, slots=True)
class FormatBackend:
    """Opener of files of a format.

    Attributes:
        format: Format that locates values: a ``FileFormat``, or an ``IndexedFormat``, which makes
            whole indexes.

    Examples:
        >>> backend = FormatBackend(my_format)  # doctest: +SKIP
        >>> store = backend("recordings/")  # doctest: +SKIP
    """

    format: FileFormat | IndexedFormat

    @property
    def indexed_format(self) -> IndexedFormat:
        """Format in the form that the engine reads."""
        return UserFormat(self.format) if isinstance(self.format, FileFormat) else self.format

    def __call__(
        self,
        location: Location,
        *,
        verify: str | None = None,
        index: str | None = None,
        remote: str | Remote | None = None,
        keys: str = "unique",
        progress: bool | None = None,
    ) -> ShardStore:
        """Open files; those without an index are read once for it, with a progress bar.

        Args:
            location: A file, a folder (with those below it), a glob, braces (``x-{00..17}.bin``),
                a URL, or a list of these.
            verify: When checksums are compared: ``"first_read"`` (None), ``"always"``, ``"off"``.
            index: ``"build"``: build missing indexes. None: also, unless the format builds them
                only on request (``IndexedFormat.needs_command``).
            remote: How URLs are read: ``"cache"`` (None), ``"ranges"``, or a ``Remote``.
            keys: ``unique``: each id occurs once; ``by_shard``: ids are unique within each file
                only, and become ``file/id``.
            progress: Whether to show bars; None: where standard error is a terminal.

        Raises:
            ConfigError: If the location names no files, there is no index, or an argument is
                invalid.
            DataError: If a file is missing, damaged, or not of the format.
            PluginError: If the format returns an invalid index.
            RemoteReadError: If a URL cannot be read.
        """
        return open_files(
            location, self.indexed_format, verify=verify, index=index, keys=keys,
            remote=remote, progress=progress,
        )  # fmt: skip

    def build_index(
        self,
        location: Location,
        *,
        rebuild: bool = False,
        executor: Executor | None = None,
        progress: bool | ProgressFn | None = None,
        remote: str | Remote | None = None,
    ) -> Mapping[str, Any]:
        """Build missing indexes, or those of all files; see ``protocols.SupportsIndexing``."""
        return index_files(
            location, self.indexed_format, rebuild=rebuild, executor=executor, progress=progress,
            remote=remote,
        )  # fmt: skip

    def audit(
        self, location: str, *, shard: int | None, repair: bool, on_progress: Callable[[int], None]
    ) -> tuple[int, Iterator[AuditReport]]:
        """Return the bytes to check and an iterator of reports; see ``protocols.SupportsAudit``."""
        file_format = self.indexed_format
        return audit_files(
            format_location(location, file_format),
            file_format,
            shard=shard,
            repair=repair,
            on_progress=on_progress,
        )


def index_files(
    location: Location,
    file_format: IndexedFormat,
    *,
    rebuild: bool = False,
    executor: Executor | None = None,
    progress: bool | ProgressFn | None = None,
    remote: str | Remote | None = None,
) -> dict[str, Any]:
    """Build the indexes of files: the extents of all values, with checksums.

    Args:
        location: A file, a folder of them, a glob, braces, or a list of these.
        file_format: Format of the files.
        rebuild: Whether to rebuild existing indexes.
        executor: Where files are read; None: some threads.
        progress: Whether to show a bar; None: where standard error is a terminal. Or a function
            of (sequences, bytes).
        remote: How URLs are read; None: through the cache.

    Returns:
        ``shards``, ``indexed`` (now), ``sequences``, ``bytes`` (of all files), ``folders``.

    Raises:
        ConfigError: If the location names no files, or the indexes can be saved nowhere.
        DataError: If a file is missing, damaged, or not of the format.
        PluginError: If the format returns an invalid index.
        RemoteReadError: If a URL cannot be read.
    """
    text = format_location(location, file_format)
    where = redact_url(text)
    found = find_shards(text, file_format, resolve_remote(remote), probe=True, forget_gone=True)
    known = None if rebuild else load_known_indexes(where, found.shards, found.index, file_format)
    have = None if known is None else [index is not None for index in known]
    folders = build(
        where, found.shards, found.index, file_format, rebuild=rebuild, executor=executor,
        progress=progress, have=have,
    )  # fmt: skip
    return describe_indexes(found.shards, folders, found.index)
