"""Shards that are not all on this machine: what a format says of them.

A shard that is read by ranges is laid out in memory as in its file, empty but for what was asked
for; so sources, checksums and errors are those of whole shards. What comes is verified each time.
Place in the flow: formats implement it, shards on demand ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.remote.copy_repair import RepairFn
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.remote_files import FileStat, RemoteFiles
from seqdata.storage.store import StoreFields
from seqdata.storage.text_bytes import TextSource

Ranges = NDArray[np.int64]
"""int64 (n, 2): first byte, one past the last."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardRequest:
    """What a batch needs of one shard.

    Attributes:
        spans: int64 (n, 3): sequences, counted from the shard's first, and timesteps.
        names: Of fields.
        axis: The axis that spans cut.
    """

    spans: NDArray[np.int64]
    names: Sequence[str]
    axis: str


@dataclass(frozen=True, slots=True, eq=False)
class OpenShard:
    """One shard that is open.

    Attributes:
        number: Of the shard.
        fields: Its fields; sequences are counted from its first one.
        content: Its bytes.
    """

    number: int
    fields: StoreFields
    content: Any = None


class RemoteShards(Protocol):
    """What a format says of the shards of a store that are not all on this machine."""

    @property
    def layout(self) -> ShardLayout:
        """Where sequences lie, of the whole store."""
        ...

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        ...

    @property
    def ids(self) -> TextSource | str | None:
        """The texts that name sequences, or the field that holds them; None: there are none."""
        ...

    @property
    def remote(self) -> Remote:
        """How shards are read."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Shard -> its bytes."""
        ...

    @property
    def known(self) -> dict[int, FileStat]:
        """Shard -> what it was when it was first read by ranges; filled in."""
        ...

    def opens_for_texts(self, number: int) -> bool:
        """Return whether a shard is opened whole to read texts; else they are read by ranges."""
        ...

    def hold(self, number: int, release: Callable[[], None]) -> OpenShard:
        """Open a shard, fetched whole where it is not on this machine.

        Args:
            number: The shard.
            release: Closes shards that are not in use, where the cache is full.

        Raises:
            CacheFullError: If there is no room.
            DataError: If it is not what it must be.
        """
        ...

    def download(self, number: int) -> None:
        """Bring a shard into the cache; it is done at once where it is there."""
        ...

    def file(self, number: int) -> tuple[RemoteFiles, str] | None:
        """Return where a shard lies, and its name there; None: on this machine."""
        ...

    def locate(self, number: int) -> DataLocation:
        """Return the place of a shard, for an error."""
        ...

    def check(self, number: int) -> FileStat:
        """Compare a shard that is read by ranges with what must be: its size and its ends.

        Raises:
            MissingShardError: If it is not there.
            RemoteReadError: If it cannot be read.
            CorruptShardError: If it is not what it must be.
        """
        ...

    def lay(self, number: int, content: Any, repair: RepairFn) -> StoreFields:
        """Return fields over a shard of which some ranges are there, found right by nobody yet.

        Args:
            number: The shard.
            content: Memory of its size.
            repair: Brings its ranges again; returns whether they were others.
        """
        ...

    def join(self, shards: Sequence[OpenShard]) -> StoreFields | None:
        """Return fields over all shards at once; None: each is read by itself."""
        ...


@runtime_checkable
class SupportsOffsets(Protocol):
    """Shards whose files say where their values lie; else an index does."""

    def offset_ranges(self, number: int, request: ShardRequest) -> Iterable[Ranges]:
        """Yield the ranges that say where the values of a request lie, where that is not known."""
        ...

    def note_offsets(self, number: int, request: ShardRequest, content: Any) -> None:
        """Write into memory where the values of a request lie, where only lengths are known."""
        ...
