"""The store over Arrow, Feather and Parquet files that others wrote: read as they lie.

Numbers of uncompressed Arrow files are read in place; all else is decoded, a unit at a time. Place
in the flow: a location becomes a store. Reads: files, lengths, spans. Makes: columns.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import SeqDataWarning
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import default_axis, find_key
from seqdata.storage.foreign.file_discovery import describe_gaps
from seqdata.storage.foreign.table_dataset import TableSet, make_fields, open_paths, open_tables
from seqdata.storage.foreign.table_file import digest_files, digest_versions
from seqdata.storage.integrity.verify import accept_unverified, check_verify_mode
from seqdata.storage.local_files import check_fingerprint, local_path
from seqdata.storage.remote.options import Remote, refuse_remote, resolve_remote
from seqdata.storage.remote.urls import is_remote, redact_url
from seqdata.storage.text_bytes import TextBytes
from seqdata.storage.views import SequenceStore

ID_FIELD = "id"


def open_foreign(
    location: str | os.PathLike[str],
    *,
    verify: str | None = None,
    remote: str | Remote | None = None,
) -> ForeignStore:
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


def _open(location: str, remote: Remote | None, *, warn: bool) -> ForeignStore:
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
    return ForeignStore(root, tables, ForeignOrigin(location, remote, cached_files))


@dataclass(frozen=True, slots=True, eq=False)
class ForeignOrigin:
    """Where foreign files come from.

    Attributes:
        location: A URL as it was given, or an absolute path.
        remote: How it is read; None: it is local.
        cached_files: What is held in the cache for as long as the store lives.
    """

    location: str
    remote: Remote | None
    cached_files: Sequence[object] = ()


class ForeignStore(SequenceStore):
    """A store of files that others wrote. Made by ``open_foreign``.

    Args:
        root: The file or folder, for people.
        tables: What was opened.
        origin: How it is opened again.
    """

    def __init__(self, root: str, tables: TableSet, origin: ForeignOrigin) -> None:
        self._root = root
        self._origin = origin
        self._fields = dict(tables.fields)
        self._lengths_of = dict(tables.lengths_of)
        self._file_names = [file.name for file in tables.files]
        self._digest = digest_files(tables.files, self._fields)
        self._version_digest = digest_versions(tables.files, self._digest)
        self._fingerprint: str | None = None
        self._store_fields = make_fields(root, tables, find_key(self._fields, ID_FIELD))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._origin.location, self._origin.remote, self._version_digest)

    def __len__(self) -> int:
        return len(self._store_fields.layout)

    @property
    def location(self) -> str:
        """The file or folder."""
        return self._root

    @property
    def version_digest(self) -> str:
        """Digest by which the same files are known when they are opened again (32 hex digits)."""
        return self._version_digest

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._fields

    @property
    def lengths(self) -> NDArray[Any]:
        """Timesteps of each sequence along the default axis, integers (sequences,)."""
        return self._lengths_of[default_axis(self._lengths_of)]

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> timesteps of each sequence, integers (sequences,)."""
        return self._lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the files, in the order of their sequences."""
        return self._file_names

    @property
    def fingerprint(self) -> str:
        """Digest of schema, lengths, and each file's name, size and footer (32 hex digits)."""
        if self._fingerprint is None:
            digest = hashlib.sha256(self._digest.encode())
            for axis, lengths in self._lengths_of.items():
                digest.update(axis.encode())
                digest.update(lengths.data)
            self._fingerprint = digest.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences."""
        return self._store_fields.keys(numbers)

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the bytes of ids or of a field of texts; see ``raw.SupportsRawTexts``."""
        return self._store_fields.raw_texts(name, numbers)

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same numbers: this store is no view."""
        return numbers

    def place(self, number: int) -> DataLocation:
        """Return place of a sequence, for an error; of one that is not there, the data set's."""
        return self._store_fields.place(number)

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``."""
        return self._store_fields.read(spans, fields, axis)


def _reopen(location: str, remote: Remote | None, version_digest: str) -> ForeignStore:
    store = _open(location, remote, warn=False)  # said once, where it was opened first
    check_fingerprint(store.place(-1), store.version_digest, version_digest)
    return store
