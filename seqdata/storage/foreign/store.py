"""The store over Arrow, Feather and Parquet files that others wrote, which are read in place.

Numbers of uncompressed Arrow files are read in place; all else is decoded, a unit at a time. Place
in the flow: a location becomes a store. Reads: files, lengths, spans. Makes: columns.

Remote files are downloaded as a whole, and held while they are open.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seqdata.errors import CacheError, warn
from seqdata.storage.braces import JOINED, split_location
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import ID_FIELD, find_key
from seqdata.storage.find_files import FoundFiles, find_listed, warn_left_out
from seqdata.storage.foreign.file_discovery import (
    MAX_STATE_BYTES,
    STATE_FILE,
    check_kind,
    check_names,
    describe_gaps,
    has_table_suffix,
    is_data_file,
    parse_dataset_state,
)
from seqdata.storage.foreign.table_dataset import TableSet, make_fields, open_paths, open_tables
from seqdata.storage.foreign.table_file import digest_files, digest_versions
from seqdata.storage.integrity.verify import accept_unverified, check_verify_mode
from seqdata.storage.local_files import check_fingerprint, is_remote, local_path, refuse_remote
from seqdata.storage.remote.cache_folder import open_cache_file
from seqdata.storage.remote.file_cache import CachedFile, CacheRequest, FileCache, make_cache
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.remote_files import check_name
from seqdata.storage.remote.transport import ForkSafeThreadPool, make_remote_file, make_remote_files
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.split_names import DATASET_DICT, refuse_dataset_dict
from seqdata.storage.store import ShardStore, StoreInfo

_MAX_TRIES = 100  # attempts, if the folder of the cache is removed in between


class OpenCachedFile:
    """A file of the cache that stays open: it is read by a path that others may remove.

    Args:
        descriptor: Descriptor of the file; closed when this object is deleted.
        cached_file: The object that keeps it in the cache.
    """

    __slots__ = ("_cached_file", "_descriptor")

    def __init__(self, descriptor: int, cached_file: CachedFile) -> None:
        self._descriptor = descriptor
        self._cached_file = cached_file

    @property
    def path(self) -> Path:
        """A path that is valid while this object exists."""
        return Path(f"/dev/fd/{self._descriptor}")

    @property
    def version(self) -> str:
        """The name in the cache, which differs for other versions of the remote file."""
        return self._cached_file.path.name

    def __del__(self) -> None:
        os.close(self._descriptor)


def download_files(
    location: str, remote: Remote
) -> tuple[FoundFiles, dict[str, Path], tuple[OpenCachedFile, ...]]:
    """Download the file, or the files of the folder, at a URL.

    Returns:
        The files found; name -> local path, in the order of their sequences; and the open files.

    Raises:
        ConfigError: If the URL is invalid.
        MissingShardError: If a file that a saved dataset names does not exist.
        DataError: If there is no such file, or files do not fit together.
        RemoteReadError: If they cannot be read.
        CacheError: If the cache has no room for all of them.
    """
    dataset = redact_url(location)
    if has_table_suffix(dataset):
        files, name = make_remote_file(location, remote)
        found = FoundFiles(root=Path(), url=dataset, names=[name])
    else:
        files = make_remote_files(location, remote)
        existing = list(files.names())
        if DATASET_DICT in existing:
            content = files.read(DATASET_DICT, 0, files.stat(DATASET_DICT).size)
            refuse_dataset_dict(dataset, dataset, content, existing)
        names: Sequence[str] = []
        if STATE_FILE in existing and (size := files.stat(STATE_FILE).size) <= MAX_STATE_BYTES:
            names = parse_dataset_state(dataset, files.read(STATE_FILE, 0, size), existing)
            check_names(dataset, existing, names)
        found = find_listed(dataset, existing, files.folders(), is_data_file)
        found = replace(found, names=names or found.names)
        check_kind(dataset, found.names)
    for name in found.names:
        check_name(DataLocation(dataset=dataset, file=name), name)
    cache = make_cache(files)
    opened_files = ForkSafeThreadPool(remote.connections).map(
        lambda name: _open_cached(cache, name), found.names
    )
    paths = {name: file.path for name, file in zip(found.names, opened_files, strict=True)}
    return found, paths, tuple(opened_files)


def _open_cached(cache: FileCache, name: str) -> OpenCachedFile:
    for _ in range(_MAX_TRIES):
        cached = cache.acquire(CacheRequest(name))
        descriptor = open_cache_file(cached.path)
        if descriptor is not None:
            return OpenCachedFile(descriptor, cached)
    raise CacheError.at(
        f"{cache.remote.folder}: must exist while files are opened, but is removed repeatedly. Do "
        "not remove it",
        file=str(cache.remote.folder),
    )


def open_foreign(
    location: str | os.PathLike[str],
    *,
    verify: str | None = None,
    remote: str | Remote | None = None,
) -> ShardStore:
    """Open an Arrow, Feather 2 or Parquet file, or a folder of them: a row is a sequence.

    List columns are ragged. Columns of equal lengths share an axis: those as long as the first run
    on ``time``, others on an axis with the name of the first of them. Numbers, text and lists of a
    fixed size are per sequence; a column ``id`` of strings names the sequence.

    Args:
        location: A file, or a folder whose files have the same columns: a path or a URL.
        verify: ``"off"`` or None: such files have no checksums of sequences.
        remote: Options for a URL; such files are always downloaded whole.

    Raises:
        ConfigError: If nothing is there, or ``verify`` cannot be done.
        DataError: If the files do not go together, or no column holds lists.
        DecodeError: If a sequence is missing, naming column and row; if an id occurs twice, naming
            both sequences.
        CorruptShardError: If a file is damaged.
        MissingShardError: If a file that a saved dataset names does not exist.
        LimitError: If a file would need too much memory for its size.
        RemoteReadError: If a URL cannot be read.
        CacheError: If the cache has no room for all files at a URL.
    """
    name = redact_url(os.fspath(location)) if is_remote(location) else os.fspath(location)
    check_verify_mode(verify, name)
    if verify != "off":
        reason = "files that others wrote have no checksums of sequences"
        accept_unverified(verify, name, reason, "write a store from them with `seqdata write`")
    if is_remote(location):
        return _open(os.fspath(location), resolve_remote(remote), first=True)
    refuse_remote(location, remote)
    return _open(os.fspath(location), None, first=True)


def _open(location: str, remote: Remote | None, *, first: bool) -> ShardStore:
    cached_files: tuple[object, ...] = ()
    if remote is None:
        root = location = _from_root(location)
        tables, left_out = open_tables(root, unique_ids=first)
        found = tables.found
    else:
        found, paths, cached_files = download_files(location, remote)
        root = found.url
        versions = {cached.path: cached.version for cached in cached_files}
        tables, left_out = open_paths(
            root, remote.folder, paths, versions.__getitem__, unique_ids=first
        )
    if first and found is not None:
        warn_left_out([found])
    if left_out and first:
        columns = ", ".join(f"{name!r} ({reason})" for name, reason in left_out.items())
        warn(
            f"{root}: columns must be numbers, text, bytes, or lists of numbers or strings, in all "
            f"files, but others were found and dropped: {columns}",
        )
    gaps = describe_gaps([file.name for file in tables.files]) if first else ""
    if gaps:
        warn(
            f"{root}: {gaps}. Only the existing files are read",
        )
    digest = digest_files(tables.files, tables.fields)
    version_digest = digest_versions(tables.files, digest)
    ragged = [name for name, field in tables.fields.items() if field.axis is not None]
    is_decoded = not all(map(tables.is_in_place, ragged))
    info = StoreInfo(
        label="ForeignStore", location=root, fields=tables.fields,
        make_fingerprint=lambda: _make_fingerprint(tables, digest),
        reopen=lambda _: (_reopen, (location, remote, version_digest)),
        manifest=ForeignFiles(version_digest, cached_files, is_decoded),
    )  # fmt: skip
    fields = make_fields(root, tables, find_key(tables.fields, ID_FIELD))
    layout = replace(fields.layout, shards=[file.name for file in tables.files])
    return ShardStore(info, replace(fields, layout=layout))


def _from_root(location: str) -> str:
    """Return a local location that is valid in any working directory."""
    return JOINED.join(str(local_path(part)) for part in split_location(location))


@dataclass(frozen=True, slots=True, eq=False)
class ForeignFiles:
    """Versions of the foreign files that a store reads.

    Attributes:
        version_digest: Digest by which the same files are recognized when they are opened again.
        cached_files: Files that are held in the cache for as long as the store lives.
        is_decoded: Whether a timestep is read by decoding its record batch or row group.
    """

    version_digest: str
    cached_files: Sequence[object] = ()
    is_decoded: bool = False


def _make_fingerprint(tables: TableSet, digest_of_files: str) -> str:
    """Return the digest of schema, lengths, and each file's name, size and footer."""
    digest = hashlib.sha256(digest_of_files.encode())
    for axis, lengths in tables.lengths_of.items():
        digest.update(axis.encode())
        digest.update(lengths.data)
    return digest.hexdigest()[:32]


def _reopen(location: str, remote: Remote | None, version_digest: str) -> ShardStore:
    store = _open(location, remote, first=False)  # warned of and checked where it was opened first
    check_fingerprint(store.locate(-1), store.manifest.version_digest, version_digest)
    return store
