"""Reading of remote shards by ranges: only the bytes that spans need are downloaded.

A shard is laid out in memory as in its file, empty except for the requested ranges; so the code
that reads and verifies whole shards works here too. Place in the flow: the remote store with
``remote="ranges"`` reads through it. Reads: ranges. Makes: open shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError
from seqdata.storage.arrow.manifest import ArrowShard
from seqdata.storage.arrow.mapped_files import locate_shard
from seqdata.storage.arrow.shard_reader import OpenArrowShard, ShardReaderFactory
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import field_width, kind_of
from seqdata.storage.remote.copy_repair import redownload_ranges
from seqdata.storage.remote.range_cache import RangeCache, SparseFile, download_missing
from seqdata.storage.remote.range_requests import RangeDownload
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool
from seqdata.storage.remote.transport import FileStat, RemoteFiles

_OFFSET_BYTES = 8  # bytes
_MAX_CACHED_OFFSETS = 64  # shards whose offsets are kept
ShardRequest = Mapping[str, NDArray[np.int64]]
"""Field -> int64 (n, 3): spans along its axis, sequences counted from the first of their shard."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardRangeReader:
    """Reads ranges of the shards of a store.

    Attributes:
        files: Where they lie.
        factory: Opens shards over their bytes.
        thread_pool: Threads.
        is_verified: Whether ranges are verified, each time.
        cache: The downloaded ranges, while there is room.
        known_stats: Shard -> size and tag at its first read.
        offsets: (shard, axis) -> offsets of its sequences, int64 (sequences+1,).
    """

    files: RemoteFiles
    factory: ShardReaderFactory
    thread_pool: ForkSafeThreadPool
    is_verified: bool
    cache: RangeCache
    known_stats: dict[int, FileStat] = field(default_factory=dict)
    offsets: dict[tuple[int, str], NDArray[np.int64]] = field(default_factory=dict)

    def open_shards(
        self, requests: Mapping[int, ShardRequest], checksums: Mapping[int, Any]
    ) -> list[OpenArrowShard]:
        """Return shards of which only the requested ranges are present.

        Args:
            requests: Shard -> the request.
            checksums: Shard -> the bytes of its checksums, if they are compared.

        Raises:
            MissingShardError: If a shard is not there.
            RemoteReadError: If one cannot be read.
            CorruptShardError: If the size or footer of a shard differs.
            FingerprintMismatch: If one was replaced.
        """
        new_shards = [number for number in requests if number not in self.known_stats]
        for number, stat in zip(
            new_shards, self.thread_pool.map(self._check_shard, new_shards), strict=True
        ):
            self.known_stats[number] = stat
        with self.cache.files({number: self._shard(number).bytes for number in requests}) as files:
            self._download_missing(
                files,
                {n: list(self._text_offset_ranges(n, request)) for n, request in requests.items()},
            )
            self._download_missing(
                files,
                {
                    n: list(self._value_ranges(n, request, files[n].content))
                    for n, request in requests.items()
                },
            )
            return [
                self._open_shard(number, files[number], checksums) for number in sorted(requests)
            ]

    def _open_shard(
        self, number: int, file: SparseFile, checksums: Mapping[int, Any]
    ) -> OpenArrowShard:
        if file.overlay is None:
            repair = partial(self._redownload, number, file)
            file.overlay = self.factory.open_shard(
                number, file.content, checksums.get(number), repair, is_unverified=True
            )
        open_shard: OpenArrowShard = file.overlay
        return open_shard

    def _shard(self, number: int) -> ArrowShard:
        return self.factory.manifest.shards[number]

    def _locate(self, number: int) -> DataLocation:
        return locate_shard(self.factory.location, number, self._shard(number))

    def _check_shard(self, number: int) -> FileStat:
        """Check size and footer of a shard."""
        shard, location = self._shard(number), self._locate(number)
        stat = self.files.stat(shard.file, location)
        check_shard_size(stat, shard, location)
        start = shard.bytes - shard.footer_bytes
        found = ""
        for _ in range(2):  # the local copy may be wrong
            footer = self.files.read(shard.file, start, shard.bytes, location)
            found = hashlib.sha256(footer).hexdigest()
            if found == shard.footer_sha256:
                break
        else:
            raise replace(location, offset=start, length=shard.footer_bytes).make_error(
                CorruptShardError,
                f"must have a footer of digest {shard.footer_sha256[:16]}, but has {found[:16]}: "
                "it is another file or damaged. Restore it, or write the store again",
                expected=shard.footer_sha256, found=found,
            )  # fmt: skip
        return stat

    def _check_unchanged(self, number: int) -> None:
        self.files.check_same(
            self._shard(number).file, self.known_stats[number], self._locate(number)
        )

    def _text_offset_ranges(
        self, number: int, request: ShardRequest
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the ranges, int64 (n, 2), of the offsets of a shard's texts."""
        shard = self._shard(number)
        for name, spans in request.items():
            if not kind_of(self.factory.manifest.fields[name]).is_array:
                begins = shard.buffers[name][1][0] + spans[:, 0] * _OFFSET_BYTES
                yield np.stack([begins, begins + 2 * _OFFSET_BYTES], axis=1)

    def _value_ranges(
        self, number: int, request: ShardRequest, content: Any
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the ranges of values; store the offsets of ragged ones."""
        shard = self._shard(number)
        for name, spans in request.items():
            stored_field = self.factory.manifest.fields[name]
            (at, size), *more = shard.buffers[name]
            local = spans[:, 0]
            if not kind_of(stored_field).is_array:
                sequence_offsets = np.frombuffer(content, "<i8", shard.sequences + 1, more[0][0])
                first, stop = sequence_offsets[local], sequence_offsets[local + 1]
                low, high = np.zeros_like(first), stop - first
            else:
                width = field_width(stored_field)
                low, high = spans[:, 1] * width, spans[:, 2] * width
                first, stop = local * width, (local + 1) * width
                if stored_field.axis is not None:
                    sequence_offsets = self._sequence_offsets(number, stored_field.axis)
                    stored_offsets = np.frombuffer(content, "<i8", shard.sequences + 1, more[0][0])
                    stored_offsets[local], stored_offsets[local + 1] = (
                        sequence_offsets[local],
                        sequence_offsets[local + 1],
                    )
                    first, stop = (
                        sequence_offsets[local] * width,
                        sequence_offsets[local + 1] * width,
                    )
            if self.is_verified and self.factory.manifest.checksums is not None:
                checksum_bytes = self.factory.manifest.checksums.bytes_per_checksum
                low, high = (
                    low // checksum_bytes * checksum_bytes,
                    -(-high // checksum_bytes) * checksum_bytes,
                )
            begins = first + low
            ranges = np.stack([begins, np.minimum(first + high, stop)], axis=1)
            yield np.clip(ranges, 0, size) + at

    def _sequence_offsets(self, number: int, axis: str) -> NDArray[np.int64]:
        sequence_offsets = self.offsets.get((number, axis))
        if sequence_offsets is None:
            first, stop = self.factory.shard_offsets[number : number + 2].tolist()
            sequence_offsets = np.zeros(stop - first + 1, dtype=np.int64)
            np.cumsum(self.factory.lengths_of[axis][first:stop], out=sequence_offsets[1:])
            if len(self.offsets) >= _MAX_CACHED_OFFSETS:
                self.offsets.clear()
            self.offsets[number, axis] = sequence_offsets
        return sequence_offsets

    def _download_missing(
        self, files: Mapping[int, SparseFile], ranges: Mapping[int, Sequence[NDArray[np.int64]]]
    ) -> None:
        download_missing(
            files, ranges, self._make_download, self._check_unchanged, self.thread_pool
        )

    def _redownload(self, number: int, file: SparseFile) -> bool:
        """Download the present ranges of a shard again; return whether any byte differed."""
        was_damaged = redownload_ranges(
            file, self._make_download(number, file, file.present), self.thread_pool
        )
        self._check_unchanged(number)
        return was_damaged

    def _make_download(
        self, number: int, file: SparseFile, ranges: NDArray[np.int64]
    ) -> RangeDownload:
        name = self._shard(number).file
        return RangeDownload(self.files, name, file.content, ranges, self._locate(number))


def check_shard_size(stat: FileStat, shard: ArrowShard, location: DataLocation) -> None:
    """Raise if the size of a shard differs.

    Raises:
        CorruptShardError: If it does.
    """
    if stat.size != shard.bytes:
        shorter, longer = sorted((stat.size, shard.bytes))
        raise replace(location, offset=shorter, length=longer - shorter).make_error(
            CorruptShardError,
            f"must have {shard.bytes} bytes, but has {stat.size}. Restore it, or write the store "
            "again",
            expected=shard.bytes, found=stat.size,
        )  # fmt: skip
