"""A format as a backend: it opens, makes indexes, and compares every byte.

Place in the flow: ``open_store`` is given one, or finds it by a suffix. Reads: locations. Makes:
stores, indexes, reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from seqdata.storage.indexed.audit import audit_files
from seqdata.storage.indexed.build_index import build, index_facts
from seqdata.storage.indexed.catalogs import attach_catalogs
from seqdata.storage.indexed.file_format import FileFormat
from seqdata.storage.indexed.find_files import Location, find_shards, format_location
from seqdata.storage.indexed.indexed_format import IndexedFormat
from seqdata.storage.indexed.load_indexes import load_known_indexes
from seqdata.storage.indexed.opening import open_files
from seqdata.storage.indexed.user_format import UserFormat
from seqdata.storage.integrity.audit import AuditReport
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.store import ShardStore
from seqdata.storage.writing.progress import ProgressFn


@dataclass(frozen=True, slots=True)
class FormatBackend:
    """An opener of files of a format.

    Attributes:
        format: What says where values lie.

    Examples:
        >>> backend = FormatBackend(my_format)  # doctest: +SKIP
        >>> store = backend("recordings/")  # doctest: +SKIP
    """

    format: FileFormat

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
            index: ``"build"`` says what is done anyhow.
            remote: How URLs are read: ``"cache"`` (None), ``"ranges"``, or a ``Remote``.
            keys: ``unique``: an id is there once; ``by_shard``: once in each file, and ids are
                ``file/id``.
            progress: Whether to show bars; None: where standard error is a terminal.

        Raises:
            ConfigError: If the location means nothing, or an argument is invalid.
            DataError: If a file is not there, damaged, or not of the format.
        """
        return open_files(
            location, UserFormat(self.format), verify=verify, index=index, keys=keys,
            remote=remote, progress=progress,
        )  # fmt: skip

    def build_index(
        self,
        location: Location,
        *,
        rebuild: bool = False,
        executor: Executor | None = None,
        progress: bool | None = None,
    ) -> Mapping[str, Any]:
        """Make the index of files that have none, or of all; see ``protocols.SupportsIndexing``."""
        return index_files(
            location, UserFormat(self.format), rebuild=rebuild, executor=executor, progress=progress
        )

    def audit(
        self, location: str, *, shard: int | None, repair: bool, told: Callable[[int], None]
    ) -> tuple[int, Iterator[AuditReport]]:
        """Compare every byte; see ``protocols.SupportsAudit``."""
        file_format = UserFormat(self.format)
        return audit_files(
            format_location(location, file_format),
            file_format,
            shard=shard,
            repair=repair,
            on_bytes=told,
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
    """Make the index of files: what is where, with checksums.

    Args:
        location: A file, a folder of them, a glob, braces, or a list of these.
        file_format: Of the files.
        rebuild: Whether to rebuild existing indexes.
        executor: Where files are read; None: some threads.
        progress: Whether to show a bar; None: where standard error is a terminal. Or a function
            that is told (sequences, bytes).
        remote: How URLs are reached; None: as the transport is set up.

    Returns:
        ``shards``, ``indexed`` (now), ``sequences``, ``bytes`` (of all files), ``folders``.

    Raises:
        ConfigError: If the location means nothing.
        DataError: If a file is not there, damaged, or not of the format.
    """
    text = format_location(location, file_format)
    shards = find_shards(text, file_format, resolve_remote(remote), probe=True)
    shards = shards if rebuild else attach_catalogs(shards, file_format)
    where = redact_url(text)
    known = None if rebuild else load_known_indexes(where, shards, file_format)
    have = None if known is None else [index is not None for index in known]
    folders = build(
        where, shards, file_format, rebuild=rebuild, executor=executor, progress=progress, have=have
    )
    shards = attach_catalogs(shards, file_format)
    return index_facts(where, shards, folders, file_format)
