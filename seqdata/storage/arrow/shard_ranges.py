"""Just the bytes that spans need, of shards that stay where they are.

A shard is laid out in memory as it is in its file, empty but for the ranges that were asked for; so
everything that reads and verifies whole shards does it here too. Place in the flow: the remote
store reads through this where shards are not to be fetched as a whole. Reads: ranges. Makes: parts.
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
from seqdata.storage.arrow.manifest import Shard
from seqdata.storage.arrow.mapped_files import shard_place
from seqdata.storage.arrow.shard_reader import Part, Parting
from seqdata.storage.data_location import Place
from seqdata.storage.fields import TEXTS, field_width
from seqdata.storage.remote.copy_repair import brought_again
from seqdata.storage.remote.range_cache import Kept, SparseFile, bring
from seqdata.storage.remote.range_requests import Filling
from seqdata.storage.remote.thread_pool import Fetchers
from seqdata.storage.remote.transport import RemoteFiles, Stat

_OFFSET = 8  # bytes
_KEPT = 64  # shards whose offsets are kept
Asked = Mapping[str, NDArray[np.int64]]
"""Field -> int64 (n, 3): spans along its axis, sequences counted from the first of their shard."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Reads ranges of the shards of a store.

    Attributes:
        files: Where they lie.
        parting: Makes parts.
        fetchers: Threads.
        verified: Whether what is read is verified, each time.
        kept: What came before, as long as there is room.
        stats: Shard -> what it was when it was first read.
        offsets: (shard, axis) -> where its sequences begin, int64 (sequences+1,).
    """

    files: RemoteFiles
    parting: Parting
    fetchers: Fetchers
    verified: bool
    kept: Kept
    stats: dict[int, Stat] = field(default_factory=dict)
    offsets: dict[tuple[int, str], NDArray[np.int64]] = field(default_factory=dict)

    def parts(self, asked: Mapping[int, Asked], sums: Mapping[int, Any]) -> list[Part]:
        """Give shards of which only what is asked for is there.

        Args:
            asked: Shard -> what is wanted of it.
            sums: Shard -> the bytes of its checksums, where they are looked at.

        Raises:
            MissingShardError: If a shard is not there.
            RemoteReadError: If one cannot be read.
            CorruptShardError: If one has another size or footer.
            FingerprintMismatch: If one was replaced.
        """
        fresh = [number for number in asked if number not in self.stats]
        for number, stat in zip(fresh, self.fetchers.each(self._first, fresh), strict=True):
            self.stats[number] = stat
        with self.kept.files({number: self._shard(number).bytes for number in asked}) as held:
            self._read(held, {n: list(self._text_offsets(n, one)) for n, one in asked.items()})
            self._read(
                held, {n: list(self._values(n, one, held[n].content)) for n, one in asked.items()}
            )
            return [self._part(number, held[number], sums) for number in sorted(asked)]

    def _part(self, number: int, held: SparseFile, sums: Mapping[int, Any]) -> Part:
        if held.made is None:
            look = partial(self._again, number, held)
            held.made = self.parting.part(number, held.content, sums.get(number), look, fresh=True)
        part: Part = held.made
        return part

    def _shard(self, number: int) -> Shard:
        return self.parting.manifest.shards[number]

    def _place(self, number: int) -> Place:
        return shard_place(self.parting.location, number, self._shard(number))

    def _first(self, number: int) -> Stat:
        """Look at size and footer of a shard."""
        shard, place = self._shard(number), self._place(number)
        stat = self.files.stat(shard.file, place)
        check_stat(stat, shard, place)
        begin = shard.bytes - shard.footer_bytes
        found = ""
        for _ in range(2):  # it may have come wrong
            footer = self.files.read(shard.file, begin, shard.bytes, place)
            found = hashlib.sha256(footer).hexdigest()
            if found == shard.footer_sha256:
                break
        else:
            raise replace(place, offset=begin, length=shard.footer_bytes).error(
                CorruptShardError,
                f"has a footer of digest {found[:16]}, must be {shard.footer_sha256[:16]}; it is "
                "another file or damaged, restore it or write the store again",
                expected=shard.footer_sha256, found=found,
            )  # fmt: skip
        return stat

    def _same(self, number: int) -> None:
        self.files.check_same(self._shard(number).file, self.stats[number], self._place(number))

    def _text_offsets(self, number: int, asked: Asked) -> Iterator[NDArray[np.int64]]:
        """Give the ranges, int64 (n, 2), of where the texts of a shard begin and end."""
        shard = self._shard(number)
        for name, spans in asked.items():
            if self.parting.manifest.fields[name].dtype in TEXTS:
                begins = shard.buffers[name][1][0] + spans[:, 0] * _OFFSET
                yield np.stack([begins, begins + 2 * _OFFSET], axis=1)

    def _values(self, number: int, asked: Asked, content: Any) -> Iterator[NDArray[np.int64]]:
        """Give the ranges of values; notes in memory where ragged ones begin."""
        shard = self._shard(number)
        for name, spans in asked.items():
            one = self.parting.manifest.fields[name]
            (at, size), *more = shard.buffers[name]
            local = spans[:, 0]
            if one.dtype in TEXTS:
                edges = np.frombuffer(content, "<i8", shard.sequences + 1, more[0][0])
                first, stop = edges[local], edges[local + 1]
                low, high = np.zeros_like(first), stop - first
            else:
                width = field_width(one)
                low, high = spans[:, 1] * width, spans[:, 2] * width
                first, stop = local * width, (local + 1) * width
                if one.axis is not None:
                    edges = self._edges(number, one.axis)
                    noted = np.frombuffer(content, "<i8", shard.sequences + 1, more[0][0])
                    noted[local], noted[local + 1] = edges[local], edges[local + 1]
                    first, stop = edges[local] * width, edges[local + 1] * width
            if self.verified and self.parting.manifest.checksums is not None:
                block = self.parting.manifest.checksums.block
                low, high = low // block * block, -(-high // block) * block
            begins = first + low
            ranges = np.stack([begins, np.minimum(first + high, stop)], axis=1)
            yield np.clip(ranges, 0, size) + at

    def _edges(self, number: int, axis: str) -> NDArray[np.int64]:
        found = self.offsets.get((number, axis))
        if found is None:
            first, stop = self.parting.starts[number : number + 2].tolist()
            found = np.zeros(stop - first + 1, dtype=np.int64)
            np.cumsum(self.parting.lengths_of[axis][first:stop], out=found[1:])
            if len(self.offsets) >= _KEPT:
                self.offsets.clear()
            self.offsets[number, axis] = found
        return found

    def _read(
        self, held: Mapping[int, SparseFile], ranges: Mapping[int, Sequence[NDArray[np.int64]]]
    ) -> None:
        bring(held, ranges, self._filling, self._same, self.fetchers)

    def _again(self, number: int, held: SparseFile) -> bool:
        """Bring again what is there of a shard; whether it was another."""
        changed = brought_again(held, self._filling(number, held, held.there), self.fetchers)
        self._same(number)
        return changed

    def _filling(self, number: int, held: SparseFile, ranges: NDArray[np.int64]) -> Filling:
        name = self._shard(number).file
        return Filling(self.files, name, held.content, ranges, self._place(number))


def check_stat(stat: Stat, shard: Shard, place: Place) -> None:
    """Refuse a shard of another size.

    Raises:
        CorruptShardError: If it has one.
    """
    if stat.size != shard.bytes:
        shorter, longer = sorted((stat.size, shard.bytes))
        raise replace(place, offset=shorter, length=longer - shorter).error(
            CorruptShardError,
            f"has {stat.size} bytes, must have {shard.bytes}; restore it or write the store again",
            expected=shard.bytes, found=stat.size,
        )  # fmt: skip
