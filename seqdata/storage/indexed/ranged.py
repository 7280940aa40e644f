"""Shards that stay where they are: only the members, or parts of them, that a batch needs come.

A shard is laid out in memory as in its file, empty but for what was asked for; so sources,
checksums and errors are those of whole shards. What comes is verified, each time. Place in the
flow: remote shards are read by it where that was asked for. Reads: ranges. Makes: sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import DataLocation
from seqdata.storage.extents import ShardExtents
from seqdata.storage.indexed.file_fields import FileFields
from seqdata.storage.indexed.file_identity import ENDS, check_ends, check_size
from seqdata.storage.indexed.file_kind import FileKind
from seqdata.storage.indexed.shard_index import ShardIndex
from seqdata.storage.indexed.shard_provider import OpenShard, ShardRequest
from seqdata.storage.remote.copy_repair import RepairFn, redownload_ranges
from seqdata.storage.remote.range_cache import RangeCache, SparseFile, download_missing
from seqdata.storage.remote.range_requests import RangeDownload, allocate_sparse
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool
from seqdata.storage.remote.transport import FileStat, RemoteFiles
from seqdata.storage.store_fields import FieldSource

Ranges = list[NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class RemoteShards:
    """Shards that are not on this machine, and what was seen of them.

    Attributes:
        files: Shard -> where it lies.
        indexes: Of all shards.
        kind: Of the files.
        place_of: Gives the place of a shard, for errors.
        fetchers: Threads.
        stats: Shard -> what it was when it was first read.
    """

    files: Mapping[int, RemoteFiles]
    indexes: Sequence[ShardIndex]
    kind: FileKind
    place_of: Callable[[int], DataLocation]
    fetchers: ForkSafeThreadPool
    stats: dict[int, FileStat] = field(default_factory=dict)

    def look(self, numbers: Iterable[int]) -> None:
        """Compare the size and both ends of shards that were not read yet.

        Raises:
            MissingShardError: If one is not there.
            RemoteReadError: If one cannot be read.
            CorruptShardError: If one has another size than when it was indexed.
            FingerprintMismatch: If one is another file.
        """
        fresh = [number for number in numbers if number not in self.stats]
        for number, stat in zip(fresh, self.fetchers.map(self._first, fresh), strict=True):
            self.stats[number] = stat

    def bring(self, held: Mapping[int, SparseFile], ranges: Mapping[int, Ranges]) -> None:
        """Bring ranges, int64 (n, 2), of shards into their memory; all are of the same version.

        Raises:
            MissingShardError: If a shard is not there.
            RemoteReadError: If one cannot be read.
            FingerprintMismatch: If one was replaced.
        """
        download_missing(held, ranges, self._filling, self._same, self.fetchers)

    def again(self, number: int, held: SparseFile) -> bool:
        """Bring again what is there of a shard; whether it was another."""
        changed = redownload_ranges(held, self._filling(number, held, held.present), self.fetchers)
        self._same(number)
        return changed

    def some(self, number: int, extents: ShardExtents) -> NDArray[np.uint8]:
        """Return a shard of which the values of one field are there."""
        self.look([number])
        one = SparseFile(allocate_sparse(self.indexes[number].bytes))
        self.bring({number: one}, {number: [np.stack(extents, axis=1)]})
        return self.settled(number, one)

    def settled(self, number: int, held: SparseFile) -> NDArray[np.uint8]:
        """Return the bytes of a shard, not for writing."""
        view = np.frombuffer(held.content, dtype=np.uint8)[: self.indexes[number].bytes]
        view.flags.writeable = False
        return view

    def _filling(self, number: int, held: SparseFile, ranges: NDArray[np.int64]) -> RangeDownload:
        name = self.indexes[number].shard
        return RangeDownload(self.files[number], name, held.content, ranges, self.place_of(number))

    def _first(self, number: int) -> FileStat:
        index, files, place = self.indexes[number], self.files[number], self.place_of(number)
        stat = files.stat(index.shard, place)
        check_size(stat.size, index, place)
        first, last = (
            files.read(index.shard, at, min(at + ENDS, index.bytes), place)
            for at in (0, index.last)
        )
        check_ends(first, last, index, place, self.kind)
        return stat

    def _same(self, number: int) -> None:
        name = self.indexes[number].shard
        self.files[number].check_same(name, self.stats[number], self.place_of(number))


@dataclass(frozen=True, slots=True, eq=False)
class RangedShards:
    """The shards of a store, of which ranges are read: a ``ShardProvider``.

    Attributes:
        made: What the store consists of.
        distant: Those that are not on this machine.
        hold: Gives the bytes of one that is.
        kept: What came before, as long as there is room.
    """

    made: FileFields
    distant: RemoteShards
    hold: Callable[[int], NDArray[np.uint8]]
    kept: RangeCache

    def get(self, asked: Mapping[int, ShardRequest]) -> list[OpenShard]:
        """Return shards by number; see ``ShardProvider``."""
        far = [number for number in asked if number in self.distant.files]
        self.distant.look(far)
        parts = {
            number: self._sources(number, self.hold(number), one, lambda: False)
            for number, one in asked.items()
            if number not in self.distant.files
        }
        with self.kept.files({number: self.made.indexes[number].bytes for number in far}) as held:
            parts |= {number: self._laid(number, held[number], asked[number]) for number in far}
            ranges = {number: list(ranges_of(parts[number], asked[number])) for number in far}
            self.distant.bring(held, ranges)
        return [OpenShard(number, parts[number]) for number in asked]

    def expect(self, numbers: Iterable[int]) -> bool:
        """Return False: which parts will be needed is not known; see ``ShardProvider``."""
        del numbers
        return False

    def _laid(self, number: int, held: SparseFile, one: ShardRequest) -> Mapping[str, FieldSource]:
        """Lay fields over what is held of a shard, once for the same fields."""
        held.overlay = held.overlay or {}
        names = tuple(one.names)
        if names not in held.overlay:
            content = self.distant.settled(number, held)
            again = partial(self.distant.again, number, held)
            held.overlay[names] = self._sources(number, content, one, again)
        made: Mapping[str, FieldSource] = held.overlay[names]
        return made

    def _sources(
        self, number: int, content: NDArray[np.uint8], one: ShardRequest, again: RepairFn
    ) -> Mapping[str, FieldSource]:
        return self.made.part(number, content, one.names, again)


def ranges_of(
    sources: Mapping[str, FieldSource], asked: ShardRequest
) -> Iterable[NDArray[np.int64]]:
    """Yield the ranges of a shard, int64 (n, 2) each, that a batch needs of its fields."""
    for name in asked.names:
        source = sources[name]
        stored = source.stored
        if stored is not None:  # else its values are in the index, and nothing is verified
            cut = stored is source and stored.kind.is_array and stored.field.axis == asked.axis
            yield _ranges(stored, asked.spans, cut=cut)


def _ranges(source: BufferSource, spans: NDArray[np.int64], *, cut: bool) -> NDArray[np.int64]:
    if source.extents is None:
        raise ValueError("ranges: fields of a shard must have extents")
    begins, ends = (each[spans[:, 0]] for each in source.extents[0])
    if not cut:
        return np.stack([begins, ends], axis=1)
    low, high = spans[:, 1] * source.width, spans[:, 2] * source.width
    if source.checksums is not None:  # of whole blocks only can it be told that they are right
        block = source.checksums.bytes_per_checksum
        low, high = low // block * block, -(-high // block) * block
    inside = np.clip(np.stack([low, high], axis=1), 0, (ends - begins)[:, None])
    made: NDArray[np.int64] = inside + begins[:, None]
    return made
