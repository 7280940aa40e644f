"""The shards of a store behind a URL, brought when they are needed: whole, or by ranges.

Whole shards come through the cache and stay open while there is room; those that there is no room
for are read by ranges. Place in the flow: stores behind URLs read by it. Reads: shards. Makes:
columns that are put together of several shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import ConfigError, CorruptSampleError, must_be
from seqdata.storage.fields import kind_of
from seqdata.storage.multi_shard_column import assign_owners, join_columns
from seqdata.storage.range_reader import OpenShard, RangeReader, RemoteShards, ShardRequest
from seqdata.storage.remote.open_shards import OpenShards
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool
from seqdata.storage.store import StoreFields, check_request
from seqdata.storage.text_bytes import TextBytes, TextSource, reorder_texts

_OPENERS = 4  # shards that are opened at once; each uses several connections


class ShardsOnDemand:
    """The shards of a store, each brought when it is needed: a ``ShardReader``.

    Args:
        shards: What the format says of them.
    """

    def __init__(self, shards: RemoteShards) -> None:
        self._shards = shards
        self._starts = np.array(shards.layout.shard_offsets, dtype=np.int64)
        self._ranges = RangeReader(shards)
        self._joined: StoreFields | None = None  # once all shards are open
        self._open = OpenShards(
            shards.hold, shards.download, shards.sizes, shards.remote.cache_bytes,
            ForkSafeThreadPool(min(_OPENERS, shards.remote.connections)), shards.layout.location,
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
            ConfigError: If a field, a span or the axis is not there.
        """
        if self._joined is not None:
            return self._joined.read(spans, fields, axis)
        spans = np.array(spans, dtype=np.int64, order="C")
        names = list(fields)
        self._check_request(spans, names, axis)
        shards, requests = self._divide(spans, names, axis)
        whole_shards = list(requests)
        if self._shards.remote.how == "ranges":
            whole_shards = [number for number in requests if self._shards.file(number) is None]
        found: dict[int, OpenShard] = {}
        if whole_shards:
            found = {shard.number: shard for shard in self._open.get(whole_shards)}
            everything = self._open.get_all()
            if everything is not None:
                self._joined = self._shards.join(everything)
        by_ranges = {number: request for number, request in requests.items() if number not in found}
        tries_left = len(by_ranges)
        while True:
            if by_ranges:
                found |= {shard.number: shard for shard in self._ranges.open(by_ranges)}
            try:
                return _read_shards(found, requests, shards)
            except CorruptSampleError:  # where texts lie came wrong, so other bytes came for them
                tries_left -= 1
                if tries_left < 0:
                    raise

    def texts(self, name: str) -> TextSource | None:
        """Return the texts of a field; None: there is no field of texts with this name."""
        field = self._shards.fields.get(name)
        is_text = field is not None and not kind_of(field).is_array
        return _TextsOnDemand(self, name) if is_text else None

    def expect(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch what sequences need, in order; see ``protocols.SupportsPrefetch``."""
        shards = self._find_shards(np.asarray(numbers, dtype=np.int64))
        if self._shards.remote.how == "ranges":
            return False  # which parts will be needed is not known
        return self._open.expect(dict.fromkeys(shards.tolist()))

    def open_for_texts(
        self, name: str, numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], dict[int, OpenShard], dict[int, ShardRequest]]:
        """Return the shard of each sequence, shards by number, and what is asked of each."""
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
        if self._shards.remote.how == "ranges":
            return self._shards.file(number) is None
        return self._open.peek(number) is not None or self._shards.opens_for_texts(number)

    def _divide(
        self, spans: NDArray[np.int64], names: Sequence[str], axis: str
    ) -> tuple[NDArray[np.int64], dict[int, ShardRequest]]:
        """Return the shard of each span, integers (n,), and what is asked of each shard."""
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
        check_request(self.layout, self._shards.fields, spans, names, axis)
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
            self.layout.find_shard(int(numbers[outside][0]))  # says that it is not there
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
    """The texts of a field: a ``TextSource``."""

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
    """Return the columns of a batch, put together of those of its shards."""
    columns = [
        found[number].fields.read(request.spans, request.names, request.axis)
        for number, request in sorted(requests.items())
    ]
    if len(columns) == 1:
        return columns[0]
    owner, index, _ = assign_owners(shards)
    return join_columns(columns, list(columns[0]), owner, index)
