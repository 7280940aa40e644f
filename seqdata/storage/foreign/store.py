"""The store over Arrow, Feather and Parquet files that others wrote: read as they lie.

Numbers of uncompressed Arrow files are read in place; all else is decoded, a unit at a time. Place
in the flow: a location becomes a store. Reads: files, lengths, spans. Makes: columns.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seqdata.errors import SeqDataWarning
from seqdata.storage.fields import find_key
from seqdata.storage.foreign.file_discovery import describe_gaps
from seqdata.storage.foreign.table_dataset import TableSet, make_fields, open_paths, open_tables
from seqdata.storage.foreign.table_file import digest_files, digest_versions
from seqdata.storage.integrity.verify import accept_unverified, check_verify_mode
from seqdata.storage.local_files import check_fingerprint, local_path
from seqdata.storage.remote.location import (
    Remote,
    is_remote,
    redact_url,
    refuse_remote,
    resolve_remote,
)
from seqdata.storage.store import ShardStore, StoreFacts

ID_FIELD = "id"


def open_foreign(
    location: str | os.PathLike[str],
    *,
    verify: str | None = None,
    remote: str | Remote | None = None,
) -> ShardStore:
    """Open an Arrow, Feather 2 or Parquet file, or a folder of them: a row is a sequence.

    List columns are ragged: those as long as the first run on ``time``, others each on an axis of
    its own name. Numbers, text and lists of a fixed size are per sequence; a text column ``id``
    names the sequence.

    Args:
        location: A file, or a folder whose files have the same columns: a path or ``file://`` URL.
        verify: ``"off"`` or None: such files have no checksums of sequences.
        remote: How a URL is read; such files always come whole.

    Raises:
        ConfigError: If nothing is there, or ``verify`` cannot be done.
        DataError: If the files do not go together, or no column holds lists of numbers.
        DecodeError: If a sequence is missing; naming column and row.
        CorruptShardError: If a file is damaged.
    """
    name = redact_url(os.fspath(location)) if is_remote(location) else os.fspath(location)
    check_verify_mode(verify, name)
    if verify != "off":
        reason = "files that others wrote have no checksums of sequences"
        accept_unverified(verify, name, reason, "write a store from them with `seqdata write`")
    if is_remote(location):
        return _open(os.fspath(location), resolve_remote(remote), warn=True)
    refuse_remote(location, remote)
    return _open(os.fspath(location), None, warn=True)


def _open(location: str, remote: Remote | None, *, warn: bool) -> ShardStore:
    cached_files: tuple[object, ...] = ()
    if remote is None:
        root = location = str(local_path(location))
        tables, left_out = open_tables(Path(root))
    else:
        from seqdata.storage.foreign.remote_files import download_files  # local files do without

        root, paths, cached_files = download_files(location, remote)
        versions = {one.path: one.version for one in cached_files}
        tables, left_out = open_paths(root, remote.folder, paths, versions.__getitem__)
    if left_out and warn:
        columns = ", ".join(f"{name!r} ({why})" for name, why in left_out.items())
        warnings.warn(
            f"{root}: columns left out: {columns}; must be numbers, text, bytes, or lists of "
            "numbers",
            SeqDataWarning,
            stacklevel=3,
        )
    gaps = describe_gaps([file.name for file in tables.files]) if warn else ""
    if gaps:
        warnings.warn(f"{root}: {gaps}. Only what is there is read", SeqDataWarning, stacklevel=3)
    digest = digest_files(tables.files, tables.fields)
    version_digest = digest_versions(tables.files, digest)
    facts = StoreFacts(
        label="ForeignStore", location=root, fields=tables.fields,
        make_fingerprint=lambda: _make_fingerprint(tables, digest),
        reopen=lambda _: (_reopen, (location, remote, version_digest)),
        manifest=ForeignFiles(version_digest, cached_files),
    )  # fmt: skip
    fields = make_fields(root, tables, find_key(tables.fields, ID_FIELD))
    layout = replace(fields.layout, shards=[file.name for file in tables.files])
    return ShardStore(facts, replace(fields, layout=layout))


@dataclass(frozen=True, slots=True, eq=False)
class ForeignFiles:
    """Which versions of foreign files a store reads.

    Attributes:
        version_digest: Digest by which the same files are known when they are opened again.
        cached_files: What is held in the cache for as long as the store lives.
    """

    version_digest: str
    cached_files: Sequence[object] = ()


def _make_fingerprint(tables: TableSet, digest_of_files: str) -> str:
    """Return the digest of schema, lengths, and each file's name, size and footer."""
    digest = hashlib.sha256(digest_of_files.encode())
    for axis, lengths in tables.lengths_of.items():
        digest.update(axis.encode())
        digest.update(lengths.data)
    return digest.hexdigest()[:32]


def _reopen(location: str, remote: Remote | None, version_digest: str) -> ShardStore:
    store = _open(location, remote, warn=False)  # said once, where it was opened first
    check_fingerprint(store.place(-1), store.manifest.version_digest, version_digest)
    return store
