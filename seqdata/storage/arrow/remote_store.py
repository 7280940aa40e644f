"""The store over remote shards of ours: small files when it is opened, shards when they are needed.

Place in the flow: a URL becomes a store. Reads: manifest, lengths, shards or ranges of them. Makes:
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, CorruptSampleError
from seqdata.protocols import Field
from seqdata.storage.arrow.manifest import ChecksumFile, Manifest
from seqdata.storage.arrow.mapped_files import shard_place, sums_place
from seqdata.storage.arrow.shard_ranges import Asked, Ranges
from seqdata.storage.arrow.shard_reader import Part, Parting, begins_of, read_parts
from seqdata.storage.data_location import Place
from seqdata.storage.fields import TEXTS, default_axis, no_such
from seqdata.storage.integrity.verified_bitmap import SharedBits
from seqdata.storage.remote.file_cache import Wanted, cache_of
from seqdata.storage.remote.open_shards import Shelf
from seqdata.storage.remote.range_cache import Kept
from seqdata.storage.remote.thread_pool import Fetchers
from seqdata.storage.remote.transport import RemoteFiles
from seqdata.storage.store_fields import Sources
from seqdata.storage.text_bytes import Raw, decimals, in_order
from seqdata.storage.views import SequenceStore


class RemoteStore(SequenceStore):
    """A store of Arrow shards that lie elsewhere. Made by ``open_remote``.

    Args:
        files: Where they lie.
        manifest: What was written.
        lengths_of: Axis -> timesteps of each sequence, held in the cache.
        verify: When checksums are looked at: off, first_read or always.
        bits: Those that say which were found right, for first_read.
    """

    def __init__(
        self,
        files: RemoteFiles,
        manifest: Manifest,
        lengths_of: Mapping[str, NDArray[Any]],
        verify: str,
        bits: SharedBits | None,
    ) -> None:
        self._files = files
        self._manifest = manifest
        self._lengths_of = lengths_of
        self._verify = verify
        self._bits = bits
        self._cache = cache_of(files)
        self._names = [shard.file for shard in manifest.shards]
        self._fingerprint: str | None = None
        self._whole: Sources | None = None  # once all shards are open
        counts = [shard.sequences for shard in manifest.shards]
        self._starts = np.append(0, np.cumsum(counts)).astype(np.int64)
        buffer = None if bits is None else bits.buffer
        parting = Parting(
            files.location, manifest, lengths_of, self._starts, buffer, begins_of(manifest),
            self._mend_sums,
        )  # fmt: skip
        self._parting = parting
        self._fetchers = Fetchers(files.remote.connections)
        kept = Kept(files.remote.memory_bytes)
        self._ranges = Ranges(files, parting, self._fetchers, verify != "off", kept)
        self._sums: dict[int, Any] = {}
        sizes = [shard.bytes for shard in manifest.shards]
        room = files.remote.cache_bytes
        openers = Fetchers(min(4, files.remote.connections))  # each uses several of the others
        self._shelf = Shelf(self._opened, self._fetch, sizes, room, openers, files.location)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._files, self._manifest, self._verify, self._bits)

    def __len__(self) -> int:
        return self._manifest.sequences

    @property
    def location(self) -> str:
        """Its URL, without credentials."""
        return self._files.location

    @property
    def verify(self) -> str:
        """When checksums are looked at: off, first_read or always."""
        return self._verify

    @property
    def manifest(self) -> Manifest:
        """What was written, and where it lies."""
        return self._manifest

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._manifest.fields

    @property
    def lengths(self) -> NDArray[Any]:
        """Timesteps of each sequence along the default axis, integers (sequences,); mapped."""
        return self._lengths_of[default_axis(self._lengths_of)]

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> timesteps of each sequence, integers (sequences,); mapped."""
        return self._lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the shards, in the order of their sequences."""
        return self._names

    @property
    def fingerprint(self) -> str:
        """Digest of lengths, ids, schema and content (32 hex digits), from the manifest."""
        if self._fingerprint is None:
            self._fingerprint = self._manifest.fingerprint
        return self._fingerprint

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the same numbers: this store is no view."""
        return numbers

    def place(self, number: int) -> Place:
        """Give the place of a sequence, for an error; of one that is not there, the data set's."""
        if not 0 <= number < len(self):
            return Place(dataset=self.location)
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        part = self._shelf.has(shard)
        if part is not None:
            return part.sources.place(number - int(self._starts[shard]))
        there = shard_place(self.location, shard, self._manifest.shards[shard])
        return Place(
            dataset=self.location, shard=shard, file=there.file, sequence=number, verify=True
        )

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``."""
        if self._whole is not None:
            return self._whole.read(spans, fields, axis)
        spans = np.array(spans, dtype=np.int64, order="C")
        names = list(fields)
        self._check(spans, names, axis)
        shards = self._shards_of(spans[:, 0])
        touched = np.unique(shards) if len(shards) else np.zeros(1, dtype=np.int64)
        spans[:, 0] -= self._starts[shards]
        parts: list[Part] = []
        if self._files.remote.how == "cache":
            parts = self._shelf.get(touched.tolist())
            everything = self._shelf.everything()
            if everything is not None:
                self._whole = self._parting.whole(everything, self._bits)
        if len(parts) == len(touched):
            return read_parts(parts, shards, spans, names, axis)
        away = np.setdiff1d(touched, [part.number for part in parts])
        left = len(away)
        while True:
            far = self._by_ranges(away, shards, spans, names, axis)
            both = sorted([*parts, *far], key=lambda part: part.number)
            try:
                return read_parts(both, shards, spans, names, axis)
            except CorruptSampleError:  # where texts lie came wrong, so other bytes came for them
                left -= 1
                if left < 0:
                    raise

    def expect(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch what sequences need, in their order; see ``protocols.Expecting``."""
        if self._files.remote.how == "ranges":
            return False
        shards = self._shards_of(np.asarray(numbers, dtype=np.int64))
        return self._shelf.expect(dict.fromkeys(shards.tolist()))

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Give the ids of sequences."""
        asked = np.asarray(numbers, dtype=np.int64)
        if self._manifest.key is None:
            self._shards_of(asked)
            return [str(number) for number in asked.tolist()]
        texts: list[str] = self._texts([self._manifest.key], asked)[self._manifest.key]
        return texts

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> Raw:
        """Give the bytes of ids or of a field of texts; see ``raw.RawTexts``."""
        name = self._manifest.key if name is None else name
        if name is None:
            self._shards_of(numbers)
            return decimals(numbers)
        field = self.fields.get(name)
        if field is None or field.dtype not in TEXTS:
            texts = [name for name, one in self.fields.items() if one.dtype in TEXTS]
            raise no_such(self.location, "field of texts", name, texts)
        spans, shards, parts = self._texts_of([name], numbers)
        order = np.argsort(shards, kind="stable")
        raws = []
        for part in parts:
            rows = np.flatnonzero(shards == part.number)
            raws.append(part.sources.raw_texts(name, spans[rows, 0]))
        return in_order(raws, order)

    def _texts(self, names: list[str], numbers: NDArray[np.int64]) -> dict[str, Any]:
        spans, shards, parts = self._texts_of(names, numbers)
        return read_parts(parts, shards, spans, names, next(iter(self._lengths_of)))

    def _texts_of(
        self, names: list[str], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Part]]:
        """Give local spans, shards and parts of texts: whole shards are not fetched for them."""
        shards = self._shards_of(numbers)
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers - self._starts[shards]
        touched = np.unique(shards) if len(shards) else np.zeros(1, dtype=np.int64)
        here = [n for n in touched.tolist() if self._has(n)]
        parts = {part.number: part for part in self._shelf.get(here)}  # some may just have gone
        away = np.array([n for n in touched.tolist() if n not in parts], dtype=np.int64)
        axis = next(iter(self._lengths_of))
        for part in self._by_ranges(away, shards, spans, names, axis):
            parts[part.number] = part
        return spans, shards, [parts[number] for number in sorted(parts)]

    def _has(self, number: int) -> bool:
        if self._files.remote.how == "ranges":
            return False
        return self._shelf.has(number) is not None or self._cache.has(self._wanted(number))

    def _by_ranges(
        self,
        touched: NDArray[np.int64],
        shards: NDArray[np.int64],
        spans: NDArray[np.int64],
        names: list[str],
        axis: str,
    ) -> list[Part]:
        asked: dict[int, Asked] = {}
        for number in touched.tolist():
            mine = spans[shards == number]
            asked[number] = {name: self._along(number, name, mine, axis) for name in names}
        sums = {}
        if self._verify != "off":
            numbers = list(asked)
            held = self._fetchers.each(self._sums_of, numbers)
            sums = {n: one for n, one in zip(numbers, held, strict=True) if one is not None}
        return self._ranges.parts(asked, sums)

    def _along(
        self, number: int, name: str, spans: NDArray[np.int64], axis: str
    ) -> NDArray[np.int64]:
        """Give spans along the axis of a field: those of another one come whole."""
        along = self.fields[name].axis
        if along == axis and self.fields[name].dtype not in TEXTS:
            return spans
        whole = spans.copy()
        whole[:, 1], whole[:, 2] = 0, 1
        if along is not None:
            lengths = self._lengths_of[along]
            whole[:, 2] = lengths[self._starts[number] + spans[:, 0]]
        return whole

    def _check(self, spans: NDArray[np.int64], names: Iterable[str], axis: str) -> None:
        if spans.ndim != 2 or spans.shape[1] != 3:
            raise ConfigError(
                f"{self.location}: `spans` have shape {spans.shape}, must be (n, 3); give "
                "sequence, start, stop"
            )
        if axis not in self._lengths_of:
            raise no_such(self.location, "axis", axis, self._lengths_of)
        for name in names:
            if name not in self.fields:
                raise no_such(self.location, "field", name, self.fields)
        numbers = spans[:, 0]
        self._shards_of(numbers)
        lengths = self._lengths_of[axis][numbers].astype(np.int64)
        bad = (spans[:, 1] < 0) | (spans[:, 1] > spans[:, 2]) | (spans[:, 2] > lengths)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            number, start, stop = spans[row].tolist()
            raise ConfigError(
                f"{self.location}: sequence {number}: no timesteps {start}..{stop}, must lie in "
                f"0..{int(lengths[row])}; was the plan made for other data?"
            )

    def _shards_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the shard of each sequence, integers (n,)."""
        outside = (numbers < 0) | (numbers >= len(self))
        if outside.any():
            raise ConfigError(
                f"{self.location}: no sequence {int(numbers[outside][0])}, must be in "
                f"[0, {len(self)}); was the plan made for other data?"
            )
        return np.searchsorted(self._starts, numbers, side="right") - 1

    def _wanted(self, number: int) -> Wanted:
        shard = self._manifest.shards[number]
        return Wanted(shard.file, shard.bytes, shard.sha256)

    def _opened(self, number: int, release: Callable[[], None]) -> Part:
        """Open a shard, fetched where it is not in the cache."""
        shard = self._manifest.shards[number]
        place = shard_place(self.location, number, shard)
        held = self._cache.hold_if_room(self._wanted(number), place, release)
        sums = self._sums_of(number) if self._verify != "off" else None
        look = partial(self._cache.mend, self._wanted(number), held.mapping, place)
        return self._parting.part(number, held.mapping, sums, look)

    def _fetch(self, number: int) -> None:
        place = shard_place(self.location, number, self._manifest.shards[number])
        if not self._cache.has(self._wanted(number)):
            self._cache.hold_if_room(self._wanted(number), place)

    def _sums_of(self, number: int) -> Any | None:
        """Give the bytes of a shard's checksums; they are few and stay."""
        file = self._manifest.shards[number].checksums
        if file is None:
            return None
        found = self._sums.get(number)
        if found is None:
            found = self._cache.bytes_of(*self._wanted_sums(number, file))
            self._sums[number] = found
        return found

    def _mend_sums(self, number: int) -> bool:
        file, found = self._manifest.shards[number].checksums, self._sums.get(number)
        if file is None or found is None:
            return False
        wanted, place = self._wanted_sums(number, file)
        return self._cache.mend(wanted, found, place)

    def _wanted_sums(self, number: int, file: ChecksumFile) -> tuple[Wanted, Place]:
        wanted = Wanted(file.file, file.bytes, file.sha256)
        return wanted, sums_place(self.location, number, file)


def _reopen(
    files: RemoteFiles, manifest: Manifest, verify: str, bits: SharedBits | None
) -> RemoteStore:
    from seqdata.storage.arrow.open_remote import with_files  # it makes stores

    return with_files(files, manifest, verify, bits)
