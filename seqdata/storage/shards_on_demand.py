"""The shards of a store behind a URL, fetched when they are needed: whole, or by ranges.

Whole shards come through the cache and stay open while there is room; those that there is no room
for are read by ranges. A shard that is read by ranges is laid out in memory as in its file, empty
but for what was asked for; so sources, checksums and errors are those of whole shards. Such
bytes are verified each time. Place in the flow: stores behind URLs read by it, formats implement
``ShardFiles`` and ``ShardFields``. Reads: shards. Makes: columns that are put together of several
shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import ConfigError, must_be
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation, DropFn, ShardLayout
from seqdata.storage.fields import kind_of
from seqdata.storage.multi_shard_column import assign_owners, join_columns
from seqdata.storage.remote.open_shards import OpenShards, release_nothing
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.range_cache import (
    RangeCache,
    RangeDownload,
    SparseFile,
    download_missing,
)
from seqdata.storage.remote.remote_files import FileStat, RemoteFiles
from seqdata.storage.remote.transport import ForkSafeThreadPool
from seqdata.storage.store import StoreFields, check_request
from seqdata.storage.text_bytes import TextBytes, TextSource, reorder_texts

Ranges = NDArray[np.int64]
"""int64 (n, 2): first byte, one past the last."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardRequest:
    """The part of a batch that one shard holds.

    Attributes:
        spans: int64 (n, 3): sequences, counted from the shard's first, and timesteps.
        names: Names of the fields.
        axis: The axis that spans cut.
    """

    spans: NDArray[np.int64]
    names: Sequence[str]
    axis: str


@dataclass(frozen=True, slots=True, eq=False)
class OpenShard:
    """One shard that is open.

    Attributes:
        number: Index of the shard.
        fields: Its fields; sequences are counted from its first one.
        content: Its bytes.
    """

    number: int
    fields: StoreFields
    content: Any


class ShardFiles(Protocol):
    """Interface of a format to the files of its shards, which are not all on this machine."""

    @property
    def remote(self) -> Remote:
        """Options of reading shards."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Shard -> its bytes."""
        ...

    def file(self, number: int) -> tuple[RemoteFiles, str] | None:
        """Return the folder and the name of a remote shard; None if the shard is local."""
        ...

    def content(self, number: int, release: Callable[[], None]) -> Any:
        """Return the bytes of a shard, fetched whole where it is not on this machine.

        Args:
            number: The shard.
            release: Closes shards that are not in use, if the cache is full.

        Raises:
            CacheFullError: If there is no room.
            DataError: If it is damaged or another file.
        """
        ...

    def drop_copy(self, number: int) -> str | None:
        """Drop the fetched copy of a shard, which is damaged; see ``data_location.DropFn``."""
        ...

    def check(self, number: int) -> FileStat:
        """Check the size and the ends of a shard that is read by ranges.

        Raises:
            MissingShardError: If it does not exist.
            RemoteReadError: If it cannot be read.
            CorruptShardError: If it is damaged or another file.
        """
        ...


class ShardFields(Protocol):
    """Interface of a format to the fields over the bytes of its shards."""

    @property
    def layout(self) -> ShardLayout:
        """Shards, lengths and ids of the sequences of the whole store."""
        ...

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        ...

    @property
    def ids(self) -> TextSource | str | None:
        """The ids of the sequences, or the field that holds them; None: there are none."""
        ...

    def opens_for_texts(self, number: int) -> bool:
        """Return whether a shard is opened whole to read strings, or by ranges."""
        ...

    def build_fields(
        self, shards: range, contents: Sequence[Any], drop: DropFn, *, reuses_bits: bool = True
    ) -> StoreFields:
        """Return fields over the bytes of some shards.

        Args:
            shards: Indices of the shards.
            contents: Per shard, its bytes, of which some may not be present yet.
            drop: Drops the bytes of a shard, which are damaged.
            reuses_bits: Whether what was verified once counts as verified.
        """
        ...


@runtime_checkable
class SupportsOffsets(Protocol):
    """Shards whose files hold the offsets of their values; otherwise an index does."""

    def offset_ranges(self, number: int, request: ShardRequest) -> Iterable[Ranges]:
        """Yield the ranges of unknown offsets of the values of a request."""
        ...

    def fill_offsets(self, number: int, request: ShardRequest, content: Any) -> None:
        """Write the offsets that follow from lengths into memory."""
        ...


_OPENERS = 4  # shards that are opened at once; each uses several connections


class ShardsOnDemand:
    """A ``ShardReader`` that fetches each shard when it is first needed.

    Args:
        files: The files of the shards, as the format provides them.
        shards: The fields over their bytes.
    """

    def __init__(self, files: ShardFiles, shards: ShardFields) -> None:
        self._files = files
        self._shards = shards
        self._fields = shards.fields
        numbers = range(len(files.sizes))
        self._local = frozenset(number for number in numbers if files.file(number) is None)
        self._starts = np.array(shards.layout.shard_offsets, dtype=np.int64)
        self._ranges = RangeReader(files, shards)
        self._joined: StoreFields | None = None  # once all shards are open

        def open_shard(number: int, release: Callable[[], None]) -> OpenShard:
            content = files.content(number, release)
            own = range(number, number + 1)
            return OpenShard(number, shards.build_fields(own, [content], files.drop_copy), content)

        self._open = OpenShards(
            open_shard, lambda number: files.content(number, release_nothing), files.sizes,
            files.remote.cache_bytes,
            ForkSafeThreadPool(min(_OPENERS, files.remote.connections)), shards.layout.location,
        )  # fmt: skip
        layout = shards.layout
        self.layout = layout if layout.find_id else replace(layout, find_id=self._find_id)
        self.ids = _TextsOnDemand(self, shards.ids) if isinstance(shards.ids, str) else shards.ids

    @property
    def is_local(self) -> bool:
        """False: shards are fetched."""
        return False

    def read(self, spans: NDArray[np.int64], fields: Iterable[str], axis: str) -> dict[str, Any]:
        """Return the columns of a batch; see ``protocols.Store.read``.

        Raises:
            ConfigError: If a field, a span or the axis does not exist.
        """
        if self._joined is not None:
            return self._joined.read(spans, fields, axis)
        spans = np.array(spans, dtype=np.int64, order="C")
        names = list(fields)
        self._check_request(spans, names, axis)
        shards, requests = self._divide(spans, names, axis)
        whole_shards = list(requests)
        if self._files.remote.how == "ranges":
            whole_shards = [number for number in requests if number in self._local]
        found: dict[int, OpenShard] = {}
        if whole_shards:
            found = {shard.number: shard for shard in self._open.get(whole_shards)}
            everything = self._open.get_all()
            if everything is not None:
                contents = [shard.content for shard in everything]
                everywhere = range(len(contents))
                self._joined = self._shards.build_fields(
                    everywhere, contents, self._files.drop_copy
                )
        by_ranges = {number: request for number, request in requests.items() if number not in found}
        if by_ranges:
            found |= {shard.number: shard for shard in self._ranges.open(by_ranges)}
        return _read_shards(found, requests, shards)

    def texts(self, name: str) -> TextSource | None:
        """Return the strings of a field; None: there is no field of strings with this name."""
        field = self._fields.get(name)
        is_text = field is not None and not kind_of(field).is_array
        return _TextsOnDemand(self, name) if is_text else None

    def prefetch(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch what sequences need, in order; see ``protocols.SupportsPrefetch``."""
        shards = self._find_shards(np.asarray(numbers, dtype=np.int64))
        if self._files.remote.how == "ranges":
            return False  # the ranges that will be needed are not known
        return self._open.prefetch(dict.fromkeys(shards.tolist()))

    def estimate_fetches(self, batches: int, rows: float) -> float:
        """Return how often shards are fetched; see ``protocols.SupportsShardCache``.

        Of the shards that a batch touches, those are fetched that the cache does not hold.
        """
        remote, sizes = self._files.remote, self._files.sizes
        size = sum(sizes)
        if remote.how == "ranges" or size <= remote.cache_bytes:
            return 1.0
        count = len(sizes)
        touched: float = count * (1 - (1 - 1 / count) ** rows)
        return max(1.0, batches * touched * (1 - remote.cache_bytes / size) / count)

    def open_for_texts(
        self, name: str, numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], dict[int, OpenShard], dict[int, ShardRequest]]:
        """Return the shard of each sequence, open shards, and the request to each of them."""
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers
        shards, requests = self._divide(spans, [name], next(iter(self.layout.lengths_of)))
        whole_shards = [number for number in requests if self._is_opened_whole(number)]
        # some may just have been closed
        found = {shard.number: shard for shard in self._open.get(whole_shards)}
        by_ranges = {number: request for number, request in requests.items() if number not in found}
        if by_ranges:
            found |= {shard.number: shard for shard in self._ranges.open(by_ranges)}
        return shards, found, requests

    def _is_opened_whole(self, number: int) -> bool:
        if self._files.remote.how == "ranges":
            return number in self._local
        return self._open.peek(number) is not None or self._shards.opens_for_texts(number)

    def _divide(
        self, spans: NDArray[np.int64], names: Sequence[str], axis: str
    ) -> tuple[NDArray[np.int64], dict[int, ShardRequest]]:
        """Return the shard of each span, integers (n,), and the request to each shard."""
        shards = self._find_shards(spans[:, 0])
        touched = np.unique(shards) if len(shards) else np.zeros(1, dtype=np.int64)
        local = spans.copy()
        local[:, 0] -= self._starts[shards]
        return shards, {
            number: ShardRequest(np.ascontiguousarray(local[shards == number]), names, axis)
            for number in touched.tolist()
        }

    def _check_request(self, spans: NDArray[np.int64], names: Iterable[str], axis: str) -> None:
        location, lengths_of = self.layout.location, self.layout.lengths_of
        check_request(self.layout, self._fields, spans, names, axis)
        numbers = spans[:, 0]
        self._find_shards(numbers)
        lengths = lengths_of[axis][numbers].astype(np.int64)
        bad = (spans[:, 1] < 0) | (spans[:, 1] > spans[:, 2]) | (spans[:, 2] > lengths)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            number, start, stop = spans[row].tolist()
            raise ConfigError(
                must_be(
                    f"{location}: sequence {number}: its span", f"within 0..{int(lengths[row])}",
                    f"{start}..{stop}",
                    "Plan over this store's index: the plan is one of other data",
                )
            )  # fmt: skip

    def _find_shards(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the shard of each sequence, integers (n,)."""
        outside = (numbers < 0) | (numbers >= self._starts[-1])
        if outside.any():
            self.layout.check_numbers(numbers)
        return np.searchsorted(self._starts, numbers, side="right") - 1

    def _find_id(self, number: int) -> str | None:
        """Return the id of a sequence whose shard is open."""
        shard = self._shards.layout.find_shard(number)
        found = self._open.peek(shard)
        if found is None or found.fields.layout.find_id is None:
            return None
        return found.fields.layout.find_id(number - int(self._starts[shard]))


@dataclass(frozen=True, slots=True, eq=False)
class _TextsOnDemand:
    """The strings of a field.

    Implements ``TextSource``.
    """

    reader: ShardsOnDemand
    name: str

    def take(self, numbers: ArrayLike) -> list[Any]:
        sequence_numbers = np.asarray(numbers, dtype=np.int64)
        shards, found, requests = self.reader.open_for_texts(self.name, sequence_numbers)
        texts: list[Any] = _read_shards(found, requests, shards)[self.name]
        return texts

    def read_bytes(self, numbers: NDArray[np.int64]) -> TextBytes:
        shards, found, requests = self.reader.open_for_texts(self.name, numbers)
        sources = {number: found[number].fields.texts(self.name) for number in sorted(requests)}
        raws = [
            source.read_bytes(requests[number].spans[:, 0])
            for number, source in sources.items()
            if source is not None
        ]
        return reorder_texts(raws, np.argsort(shards, kind="stable"))

    def is_readable(self, number: int) -> bool:
        return 0 <= number < len(self.reader.layout)


def _read_shards(
    found: Mapping[int, OpenShard],
    requests: Mapping[int, ShardRequest],
    shards: NDArray[np.int64],
) -> dict[str, Any]:
    """Return the columns of a batch, joined from those of its shards."""
    columns = [
        found[number].fields.read(request.spans, request.names, request.axis)
        for number, request in sorted(requests.items())
    ]
    if len(columns) == 1:
        return columns[0]
    owner, index, _ = assign_owners(shards)
    return join_columns(columns, list(columns[0]), owner, index)


_CheckedFile = tuple[RemoteFiles, str, DataLocation, FileStat]
"""Folder of a shard, its name there, its location, its size and tag when it was first read."""


class RangeReader:
    """Reads ranges of shards, and keeps them while there is room.

    Args:
        files: The files of the shards.
        shards: The fields over their bytes.
    """

    __slots__ = ("_cache", "_checked", "_files", "_gap", "_offsets", "_shards", "_threads")

    def __init__(self, files: ShardFiles, shards: ShardFields) -> None:
        self._files = files
        self._shards = shards
        self._offsets = shards if isinstance(shards, SupportsOffsets) else None
        self._checked: dict[int, _CheckedFile] = {}
        self._threads = ForkSafeThreadPool(files.remote.connections)
        self._cache = RangeCache(files.remote.memory_bytes)
        holds_all = sum(files.sizes) < files.remote.memory_bytes
        self._gap = files.remote.gap if holds_all else 0  # then no byte is fetched twice

    def open(self, requests: Mapping[int, ShardRequest]) -> list[OpenShard]:
        """Return shards in which the requested bytes are present.

        Raises:
            MissingShardError: If a shard is missing.
            RemoteReadError: If it cannot be read.
            CorruptShardError: If it has another size or other ends.
            FingerprintMismatch: If it was replaced.
        """
        self.check(requests)
        sizes = {number: self._files.sizes[number] for number in requests}
        with self._cache.files(sizes) as files:
            if self._offsets is not None:
                self._find_offsets(self._offsets, requests, files)
            found = [self.get_shard(number, files[number]) for number in requests]
            values = {
                opened.number: list(value_ranges(opened.fields, requests[opened.number]))
                for opened in found
            }
            self.download(files, values)
            return found

    def check(self, numbers: Iterable[int]) -> None:
        """Check the size and the ends of shards that were not read yet."""
        new = [number for number in numbers if number not in self._checked]
        if new:
            self._checked |= zip(new, self._threads.map(self._check, new), strict=True)

    def download(self, files: Mapping[int, SparseFile], ranges: Mapping[int, list[Ranges]]) -> None:
        """Download ranges of shards into their memory; all are of the same version."""
        download_missing(
            files, ranges, self._make_download, self._check_unchanged, self._threads, gap=self._gap
        )

    def get_shard(self, number: int, file: SparseFile) -> OpenShard:
        """Return a shard over its present bytes, built once."""
        if file.overlay is None:
            content = np.frombuffer(file.content, dtype=np.uint8)[: self._files.sizes[number]]
            content.flags.writeable = False
            fields = self._shards.build_fields(
                range(number, number + 1), [content], lambda _: self._drop(number, file),
                reuses_bits=False,
            )  # fmt: skip
            file.overlay = OpenShard(number, fields, content)
        shard: OpenShard = file.overlay
        return shard

    def _find_offsets(
        self,
        shards: SupportsOffsets,
        requests: Mapping[int, ShardRequest],
        files: Mapping[int, SparseFile],
    ) -> None:
        """Download or compute the offsets of the values of requests."""
        offsets = {n: list(shards.offset_ranges(n, request)) for n, request in requests.items()}
        self.download(files, offsets)
        for number, request in requests.items():
            shards.fill_offsets(number, request, files[number].content)

    def _make_download(self, number: int, file: SparseFile, ranges: Ranges) -> RangeDownload:
        files, name, location, _ = self._checked[number]
        gap = 0 if self._gap else None  # bytes between ranges are present, or downloaded, too
        return RangeDownload(files, name, file.content, ranges, location, gap)

    def _check_unchanged(self, number: int) -> None:
        files, name, location, stat = self._checked[number]
        files.check_same(name, stat, location)

    def _drop(self, number: int, file: SparseFile) -> str:
        self._cache.drop(number, file)
        return "its bytes that were downloaded were dropped. Read them again first"

    def _check(self, number: int) -> _CheckedFile:
        file = self._files.file(number)
        if file is None:
            raise ValueError(f"shard {number}: must be read by ranges, but is on this machine")
        return *file, self._shards.layout.locate_file(number), self._files.check(number)


def value_ranges(fields: StoreFields, request: ShardRequest) -> Iterator[Ranges]:
    """Yield the ranges of a shard that a request needs of its fields, by their extents."""
    for name in request.names:
        source = fields.sources[name]
        stored = source.stored
        if stored is None:  # its values are known, and nothing is verified
            continue
        indices, size = request.spans[:, 0], stored.extent_bytes
        begins, ends = indices, indices + 1
        if stored.extents is not None:
            begins, ends = (each[indices] for each in stored.extents[0])
        begins, ends = begins * size, ends * size
        if stored is source and stored.kind.is_array and stored.field.axis == request.axis:
            low, high = request.spans[:, 1] * stored.width, request.spans[:, 2] * stored.width
            if stored.checksums is not None:  # only whole blocks can be verified
                block = stored.checksums.bytes_per_checksum
                low, high = low // block * block, -(-high // block) * block
            begins, ends = begins + low, np.minimum(begins + high, ends)
        inside = np.clip(np.stack([begins, ends], axis=1), 0, len(stored.values[0]) * size)
        yield inside + (0 if stored.file_offsets is None else stored.file_offsets[0])
