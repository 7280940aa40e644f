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
from seqdata.storage.arrow.manifest import Manifest
from seqdata.storage.arrow.mapped_files import locate_checksums, locate_shard
from seqdata.storage.arrow.shard_ranges import ShardRangeReader, ShardRequest
from seqdata.storage.arrow.shard_reader import (
    OpenArrowShard,
    ShardReaderFactory,
    compute_bit_offsets,
    read_shards,
)
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import default_axis, kind_of, make_unknown_name_error
from seqdata.storage.integrity.checksums import ChecksumFile
from seqdata.storage.integrity.verified_bitmap import SharedBits
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.open_shards import OpenShards
from seqdata.storage.remote.range_cache import RangeCache
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool
from seqdata.storage.remote.transport import RemoteFiles
from seqdata.storage.store_fields import StoreFields
from seqdata.storage.text_bytes import TextBytes, format_decimals, reorder_texts
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
        self._cache = make_cache(files)
        self._shard_names = [shard.file for shard in manifest.shards]
        self._fingerprint: str | None = None
        self._all_fields: StoreFields | None = None  # once all shards are open
        counts = [shard.sequences for shard in manifest.shards]
        self._shard_offsets = np.append(0, np.cumsum(counts)).astype(np.int64)
        buffer = None if bits is None else bits.buffer
        shard_factory = ShardReaderFactory(
            files.location,
            manifest,
            lengths_of,
            self._shard_offsets,
            buffer,
            compute_bit_offsets(manifest),
            self._repair_checksums,
        )
        self._shard_factory = shard_factory
        self._thread_pool = ForkSafeThreadPool(files.remote.connections)
        range_cache = RangeCache(files.remote.memory_bytes)
        self._range_reader = ShardRangeReader(
            files, shard_factory, self._thread_pool, verify != "off", range_cache
        )
        self._checksums: dict[int, Any] = {}
        sizes = [shard.bytes for shard in manifest.shards]
        cache_bytes = files.remote.cache_bytes
        open_pool = ForkSafeThreadPool(
            min(4, files.remote.connections)
        )  # each uses several of the others
        self._open_shards = OpenShards(
            self._open_shard, self._download_shard, sizes, cache_bytes, open_pool, files.location
        )

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
        return self._shard_names

    @property
    def fingerprint(self) -> str:
        """Digest of lengths, ids, schema and content (32 hex digits), from the manifest."""
        if self._fingerprint is None:
            self._fingerprint = self._manifest.fingerprint
        return self._fingerprint

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same numbers: this store is no view."""
        return numbers

    def place(self, number: int) -> DataLocation:
        """Return place of a sequence, for an error; of one that is not there, the data set's."""
        if not 0 <= number < len(self):
            return DataLocation(dataset=self.location)
        shard = int(np.searchsorted(self._shard_offsets, number, side="right")) - 1
        open_shard = self._open_shards.peek(shard)
        if open_shard is not None:
            return open_shard.fields.place(number - int(self._shard_offsets[shard]))
        location = locate_shard(self.location, shard, self._manifest.shards[shard])
        return DataLocation(
            dataset=self.location, shard=shard, file=location.file, sequence=number, verify=True
        )

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``."""
        if self._all_fields is not None:
            return self._all_fields.read(spans, fields, axis)
        spans = np.array(spans, dtype=np.int64, order="C")
        names = list(fields)
        self._check_request(spans, names, axis)
        shards = self._find_shards(spans[:, 0])
        touched = np.unique(shards) if len(shards) else np.zeros(1, dtype=np.int64)
        spans[:, 0] -= self._shard_offsets[shards]
        open_shards: list[OpenArrowShard] = []
        if self._files.remote.how == "cache":
            open_shards = self._open_shards.get(touched.tolist())
            everything = self._open_shards.get_all()
            if everything is not None:
                self._all_fields = self._shard_factory.open_all(everything, self._bits)
        if len(open_shards) == len(touched):
            return read_shards(open_shards, shards, spans, names, axis)
        not_open = np.setdiff1d(touched, [open_shard.number for open_shard in open_shards])
        tries_left = len(not_open)
        while True:
            range_shards = self._open_by_ranges(not_open, shards, spans, names, axis)
            all_shards = sorted(
                [*open_shards, *range_shards], key=lambda open_shard: open_shard.number
            )
            try:
                return read_shards(all_shards, shards, spans, names, axis)
            except CorruptSampleError:  # where texts lie came wrong, so other bytes came for them
                tries_left -= 1
                if tries_left < 0:
                    raise

    def expect(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch what sequences need, in order; see ``protocols.SupportsPrefetch``."""
        if self._files.remote.how == "ranges":
            return False
        shards = self._find_shards(np.asarray(numbers, dtype=np.int64))
        return self._open_shards.expect(dict.fromkeys(shards.tolist()))

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences."""
        wanted = np.asarray(numbers, dtype=np.int64)
        if self._manifest.key is None:
            self._find_shards(wanted)
            return [str(number) for number in wanted.tolist()]
        texts: list[str] = self._read_texts([self._manifest.key], wanted)[self._manifest.key]
        return texts

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the bytes of ids or of a field of texts; see ``raw.SupportsRawTexts``."""
        name = self._manifest.key if name is None else name
        if name is None:
            self._find_shards(numbers)
            return format_decimals(numbers)
        field = self.fields.get(name)
        if field is None or kind_of(field).is_array:
            texts = [name for name, one in self.fields.items() if not kind_of(one).is_array]
            raise make_unknown_name_error(self.location, "field of texts", name, texts)
        spans, shards, open_shards = self._open_for_texts([name], numbers)
        order = np.argsort(shards, kind="stable")
        raws = []
        for open_shard in open_shards:
            rows = np.flatnonzero(shards == open_shard.number)
            raws.append(open_shard.fields.raw_texts(name, spans[rows, 0]))
        return reorder_texts(raws, order)

    def _read_texts(self, names: list[str], numbers: NDArray[np.int64]) -> dict[str, Any]:
        spans, shards, open_shards = self._open_for_texts(names, numbers)
        return read_shards(open_shards, shards, spans, names, next(iter(self._lengths_of)))

    def _open_for_texts(
        self, names: list[str], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], list[OpenArrowShard]]:
        """Return local spans, shards and parts of texts: whole shards are not fetched for them."""
        shards = self._find_shards(numbers)
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers - self._shard_offsets[shards]
        touched = np.unique(shards) if len(shards) else np.zeros(1, dtype=np.int64)
        local = [n for n in touched.tolist() if self._is_local(n)]
        open_shards = {
            open_shard.number: open_shard for open_shard in self._open_shards.get(local)
        }  # some may just have gone
        not_local = np.array([n for n in touched.tolist() if n not in open_shards], dtype=np.int64)
        axis = next(iter(self._lengths_of))
        for open_shard in self._open_by_ranges(not_local, shards, spans, names, axis):
            open_shards[open_shard.number] = open_shard
        return spans, shards, [open_shards[number] for number in sorted(open_shards)]

    def _is_local(self, number: int) -> bool:
        if self._files.remote.how == "ranges":
            return False
        return self._open_shards.peek(number) is not None or self._cache.has(
            self._make_cache_request(number)
        )

    def _open_by_ranges(
        self,
        touched: NDArray[np.int64],
        shards: NDArray[np.int64],
        spans: NDArray[np.int64],
        names: list[str],
        axis: str,
    ) -> list[OpenArrowShard]:
        requests: dict[int, ShardRequest] = {}
        for number in touched.tolist():
            shard_spans = spans[shards == number]
            requests[number] = {
                name: self._spans_along(number, name, shard_spans, axis) for name in names
            }
        checksums = {}
        if self._verify != "off":
            numbers = list(requests)
            contents = self._thread_pool.map(self._get_checksums, numbers)
            checksums = {
                n: one for n, one in zip(numbers, contents, strict=True) if one is not None
            }
        return self._range_reader.open_shards(requests, checksums)

    def _spans_along(
        self, number: int, name: str, spans: NDArray[np.int64], axis: str
    ) -> NDArray[np.int64]:
        """Return spans along the axis of a field: those of another one come whole."""
        field_axis = self.fields[name].axis
        if field_axis == axis and kind_of(self.fields[name]).is_array:
            return spans
        full_spans = spans.copy()
        full_spans[:, 1], full_spans[:, 2] = 0, 1
        if field_axis is not None:
            lengths = self._lengths_of[field_axis]
            full_spans[:, 2] = lengths[self._shard_offsets[number] + spans[:, 0]]
        return full_spans

    def _check_request(self, spans: NDArray[np.int64], names: Iterable[str], axis: str) -> None:
        if spans.ndim != 2 or spans.shape[1] != 3:
            raise ConfigError(
                f"{self.location}: `spans` have shape {spans.shape}, must be (n, 3); give "
                "sequence, start, stop"
            )
        if axis not in self._lengths_of:
            raise make_unknown_name_error(self.location, "axis", axis, self._lengths_of)
        for name in names:
            if name not in self.fields:
                raise make_unknown_name_error(self.location, "field", name, self.fields)
        numbers = spans[:, 0]
        self._find_shards(numbers)
        lengths = self._lengths_of[axis][numbers].astype(np.int64)
        bad = (spans[:, 1] < 0) | (spans[:, 1] > spans[:, 2]) | (spans[:, 2] > lengths)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            number, start, stop = spans[row].tolist()
            raise ConfigError(
                f"{self.location}: sequence {number}: no timesteps {start}..{stop}, must lie in "
                f"0..{int(lengths[row])}; was the plan made for other data?"
            )

    def _find_shards(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shard of each sequence, integers (n,)."""
        outside = (numbers < 0) | (numbers >= len(self))
        if outside.any():
            raise ConfigError(
                f"{self.location}: no sequence {int(numbers[outside][0])}, must be in "
                f"[0, {len(self)}); was the plan made for other data?"
            )
        return np.searchsorted(self._shard_offsets, numbers, side="right") - 1

    def _make_cache_request(self, number: int) -> CacheRequest:
        shard = self._manifest.shards[number]
        return CacheRequest(shard.file, shard.bytes, shard.sha256)

    def _open_shard(self, number: int, release: Callable[[], None]) -> OpenArrowShard:
        """Open a shard, fetched where it is not in the cache."""
        shard = self._manifest.shards[number]
        location = locate_shard(self.location, number, shard)
        cached = self._cache.acquire_if_room(self._make_cache_request(number), location, release)
        checksums = self._get_checksums(number) if self._verify != "off" else None
        repair = partial(
            self._cache.repair, self._make_cache_request(number), cached.mapping, location
        )
        return self._shard_factory.open_shard(number, cached.mapping, checksums, repair)

    def _download_shard(self, number: int) -> None:
        location = locate_shard(self.location, number, self._manifest.shards[number])
        if not self._cache.has(self._make_cache_request(number)):
            self._cache.acquire_if_room(self._make_cache_request(number), location)

    def _get_checksums(self, number: int) -> Any | None:
        """Return the bytes of a shard's checksums; they are few and stay."""
        file = self._manifest.shards[number].checksums
        if file is None:
            return None
        found = self._checksums.get(number)
        if found is None:
            found = self._cache.read_bytes(*self._make_checksum_request(number, file))
            self._checksums[number] = found
        return found

    def _repair_checksums(self, number: int) -> bool:
        file, found = self._manifest.shards[number].checksums, self._checksums.get(number)
        if file is None or found is None:
            return False
        request, place = self._make_checksum_request(number, file)
        return self._cache.repair(request, found, place)

    def _make_checksum_request(
        self, number: int, file: ChecksumFile
    ) -> tuple[CacheRequest, DataLocation]:
        request = CacheRequest(file.file, file.bytes, file.sha256)
        return request, locate_checksums(self.location, number, file)


def _reopen(
    files: RemoteFiles, manifest: Manifest, verify: str, bits: SharedBits | None
) -> RemoteStore:
    from seqdata.storage.arrow.open_remote import open_from_manifest  # it makes stores

    return open_from_manifest(files, manifest, verify, bits)
