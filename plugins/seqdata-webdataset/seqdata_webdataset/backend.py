"""The backend as an object: it opens, indexes, audits and writes tar shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from seqdata.backends import AuditReport, Location, Remote, ShardStore, audit_files, index_files
from seqdata_webdataset.indexed_format import IndexedTar
from seqdata_webdataset.opening import open_webdataset
from seqdata_webdataset.schema import Schema
from seqdata_webdataset.writing import write_webdataset


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDataset:
    """Tar shards as the webdataset library writes them.

    Attributes:
        schema: Extension -> its type; see ``open_webdataset``.
        index: ``"build"``: build the index of shards that have none.
        keys: ``unique`` or ``by_shard``.
        unsafe_decoders: Extensions that may be read although that runs code; see
            ``open_webdataset``.
    """

    schema: Schema | None = None
    index: str | None = None
    keys: str = "unique"
    unsafe_decoders: frozenset[str] = frozenset()

    def __call__(
        self,
        location: Location,
        *,
        verify: str | None = None,
        schema: Schema | None = None,
        index: str | None = None,
        remote: str | Remote | None = None,
    ) -> ShardStore:
        """Open shards; arguments take precedence over attributes. See ``open_webdataset``."""
        return open_webdataset(
            location, verify=verify, schema=self.schema if schema is None else schema,
            index=self.index if index is None else index, keys=self.keys,
            remote=remote, unsafe_decoders=self.unsafe_decoders,
        )  # fmt: skip

    def build_index(
        self,
        location: Location,
        *,
        rebuild: bool = False,
        executor: Executor | None = None,
        progress: bool | None = None,
    ) -> Mapping[str, Any]:
        """Build the index of shards that have none, or of all; see ``index_shards``."""
        return index_shards(location, rebuild=rebuild, executor=executor, progress=progress)

    def audit(
        self, location: str, *, shard: int | None, repair: bool, told: Callable[[int], None]
    ) -> tuple[int, Iterator[AuditReport]]:
        """Audit shards; see ``seqdata.protocols.SupportsAudit``."""
        return audit_files(location, IndexedTar(), shard=shard, repair=repair, on_bytes=told)

    def write(  # noqa: PLR0913
        self,
        location: str,
        sequences: Iterable[Any],
        *,
        axes: Mapping[str, str | None] | None = None,
        shard_bytes: int,
        key: str = "id",
        executor: Executor | None = None,
        resume: bool = True,
        progress: bool | Callable[[int, int], None] | None = None,
        overwrite: bool = False,
        remote: str | Remote | None = None,
        shuffle: int | None = None,
    ) -> ShardStore:
        """Write sequences as shards; see ``write_webdataset``."""
        return write_webdataset(
            location, sequences, axes=axes, shard_bytes=shard_bytes, key=key, executor=executor,
            resume=resume, progress=progress, overwrite=overwrite, remote=remote, shuffle=shuffle,
        )  # fmt: skip


def index_shards(
    location: Location,
    *,
    rebuild: bool = False,
    executor: Executor | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    remote: str | Remote | None = None,
) -> dict[str, Any]:
    """Build the index of tar shards, with checksums.

    Args:
        location: A tar file, a folder of them, braces, or a list of these.
        rebuild: Whether to rebuild existing indexes.
        executor: The executor that reads shards; None: a few threads.
        progress: Whether to show a progress bar; None: on a terminal. Or a function that is called
            with (sequences, bytes).
        remote: The options for URLs; None: the transport's configuration.

    Returns:
        ``shards``, ``indexed`` (now), ``sequences``, ``bytes`` (of all shards), ``folders``.

    Raises:
        ConfigError: If there are no shards at the location.
        DataError: If a shard is not there, is damaged, or does not hold samples.
    """
    return index_files(
        location, IndexedTar(), rebuild=rebuild, executor=executor, progress=progress, remote=remote
    )
