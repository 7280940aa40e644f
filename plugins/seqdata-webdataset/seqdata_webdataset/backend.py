"""The backend as an object: it opens, makes indexes, looks at everything, and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from seqdata.backends import AuditReport, IndexedStore, Location, Remote, audit_files, index_files
from seqdata_webdataset.kind import TarKind
from seqdata_webdataset.opening import open_webdataset
from seqdata_webdataset.schema import Schema
from seqdata_webdataset.sending import write_webdataset


@dataclass(frozen=True, slots=True, kw_only=True)
class WebDataset:
    """Tar shards as the webdataset library writes them.

    Attributes:
        schema: Extension -> what it holds; see ``open_webdataset``.
        index: ``"build"``: make the index of shards that have none.
        keys: ``unique`` or ``by_shard``.
        unsafe_decoders: Which members may be read though that runs code; see ``open_webdataset``.
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
    ) -> IndexedStore:
        """Open shards; what is given here wins. See ``open_webdataset``."""
        return open_webdataset(
            location, verify=verify, schema=self.schema if schema is None else schema,
            index=self.index if index is None else index, keys=self.keys,
            remote=remote, unsafe_decoders=self.unsafe_decoders,
        )  # fmt: skip

    def build_index(
        self,
        location: Location,
        *,
        anew: bool = False,
        executor: Executor | None = None,
        progress: bool | None = None,
    ) -> Mapping[str, Any]:
        """Make the index of shards that have none, or of all; see ``index_shards``."""
        return index_shards(location, anew=anew, executor=executor, progress=progress)

    def audit(
        self, location: str, *, shard: int | None, repair: bool, told: Callable[[int], None]
    ) -> tuple[int, Iterator[AuditReport]]:
        """Look at everything; see ``seqdata.protocols.SupportsAudit``."""
        return audit_files(location, TarKind(), shard=shard, repair=repair, on_bytes=told)

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
    ) -> IndexedStore:
        """Write sequences as shards; see ``write_webdataset``."""
        return write_webdataset(
            location, sequences, axes=axes, shard_bytes=shard_bytes, key=key, executor=executor,
            resume=resume, progress=progress, overwrite=overwrite, remote=remote,
        )  # fmt: skip


def index_shards(
    location: Location,
    *,
    anew: bool = False,
    executor: Executor | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    remote: str | Remote | None = None,
) -> dict[str, Any]:
    """Make the index of tar shards: what is where, with checksums.

    Args:
        location: A tar file, a folder of them, braces, or a list of these.
        anew: Whether to make those again that are there.
        executor: Where shards are read; None: some threads.
        progress: Whether to show a bar; None: where standard error is a terminal. Or a function
            that is told (sequences, bytes).
        remote: How URLs are reached; None: as the transport is set up.

    Returns:
        ``shards``, ``indexed`` (now), ``sequences``, ``bytes`` (of all shards), ``folders``.

    Raises:
        ConfigError: If the location means nothing.
        DataError: If a shard is not there, damaged, or cannot be read as samples.
    """
    return index_files(
        location, TarKind(), anew=anew, executor=executor, progress=progress, remote=remote
    )
