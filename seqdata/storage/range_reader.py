"""Shards that are not all on this machine: what a format says of them, and reading their ranges.

A shard that is read by ranges is laid out in memory as in its file, empty but for what was asked
for; so sources, checksums and errors are those of whole shards. What comes is verified each time.
Place in the flow: shards on demand are read by it. Reads: ranges. Makes: fields of shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.remote.copy_repair import RepairFn, redownload_ranges
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.range_cache import (
    RangeCache,
    RangeDownload,
    SparseFile,
    download_missing,
)
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool
from seqdata.storage.remote.transport import FileStat, RemoteFiles
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

    def offset_ranges(self, number: int, request: ShardRequest) -> Iterable[Ranges]:
        """Yield the ranges that say where the values of a request lie, where that is not known."""
        ...

    def note_offsets(self, number: int, request: ShardRequest, content: Any) -> None:
        """Write into memory where the values of a request lie, where only lengths are known."""
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


def value_ranges(fields: StoreFields, request: ShardRequest) -> Iterator[Ranges]:
    """Yield the ranges of a shard that a request needs of its fields, by their extents."""
    for name in request.names:
        source = fields.sources[name]
        stored = source.stored
        if stored is None:  # its values are known, and nothing is verified
            continue
        numbers, unit = request.spans[:, 0], stored.unit
        begins, ends = numbers, numbers + 1
        if stored.extents is not None:
            begins, ends = (each[numbers] for each in stored.extents[0])
        begins, ends = begins * unit, ends * unit
        if stored is source and stored.kind.is_array and stored.field.axis == request.axis:
            low, high = request.spans[:, 1] * stored.width, request.spans[:, 2] * stored.width
            if stored.checksums is not None:  # of whole blocks only can it be told
                block = stored.checksums.bytes_per_checksum
                low, high = low // block * block, -(-high // block) * block
            begins, ends = begins + low, np.minimum(begins + high, ends)
        inside = np.clip(np.stack([begins, ends], axis=1), 0, len(stored.values[0]) * unit)
        yield inside + (0 if stored.file_offsets is None else stored.file_offsets[0])


class RangeReader:
    """Reads ranges of shards, and keeps what came while there is room.

    Args:
        shards: Of the store.
    """

    __slots__ = ("_cache", "_shards", "_threads")

    def __init__(self, shards: RemoteShards) -> None:
        self._shards = shards
        self._threads = ForkSafeThreadPool(shards.remote.connections)
        self._cache = RangeCache(shards.remote.memory_bytes)

    def open(self, requests: Mapping[int, ShardRequest]) -> list[OpenShard]:
        """Return shards, by number, of which what is asked for is there.

        Raises:
            MissingShardError: If a shard is not there.
            RemoteReadError: If it cannot be read.
            CorruptShardError: If it has another size or other ends.
            FingerprintMismatch: If it was replaced.
        """
        self.check(requests)
        sizes = {number: self._shards.sizes[number] for number in requests}
        with self._cache.files(sizes) as files:
            offsets = {
                n: list(self._shards.offset_ranges(n, request)) for n, request in requests.items()
            }
            self.download(files, offsets)
            found = []
            for number, request in requests.items():
                self._shards.note_offsets(number, request, files[number].content)
                found.append(OpenShard(number, self.lay(number, files[number])))
            values = {
                opened.number: list(value_ranges(opened.fields, requests[opened.number]))
                for opened in found
            }
            self.download(files, values)
            return found

    def check(self, numbers: Iterable[int]) -> None:
        """Compare shards that were not read yet with what must be."""
        new = [number for number in numbers if number not in self._shards.known]
        if not new:
            return
        for number, stat in zip(new, self._threads.map(self._shards.check, new), strict=True):
            self._shards.known[number] = stat

    def download(self, files: Mapping[int, SparseFile], ranges: Mapping[int, list[Ranges]]) -> None:
        """Download ranges of shards into their memory; all are of the same version."""
        download_missing(files, ranges, self._make_download, self._check_unchanged, self._threads)

    def lay(self, number: int, file: SparseFile) -> StoreFields:
        """Return the fields over what is there of a shard, laid once."""
        if file.overlay is None:
            repair = partial(self._download_again, number, file)
            file.overlay = self._shards.lay(number, file.content, repair)
        fields: StoreFields = file.overlay
        return fields

    def _make_download(self, number: int, file: SparseFile, ranges: Ranges) -> RangeDownload:
        files, name = self._find_file(number)
        return RangeDownload(files, name, file.content, ranges, self._shards.locate(number))

    def _check_unchanged(self, number: int) -> None:
        files, name = self._find_file(number)
        files.check_same(name, self._shards.known[number], self._shards.locate(number))

    def _download_again(self, number: int, file: SparseFile) -> bool:
        """Download again what is there of a shard; return whether it was another."""
        download = self._make_download(number, file, file.present)
        was_damaged = redownload_ranges(file, download, self._threads)
        self._check_unchanged(number)
        return was_damaged

    def _find_file(self, number: int) -> tuple[RemoteFiles, str]:
        file = self._shards.file(number)
        if file is None:
            raise ValueError(f"shard {number}: must be read by ranges, but is on this machine")
        return file
