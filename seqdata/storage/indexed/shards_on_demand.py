"""Batches that are assembled from shards that are opened on demand.

Place in the flow: stores of remote files read through it. Reads: spans. Makes: columns of several
shards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.indexed.file_fields import FileFields
from seqdata.storage.indexed.read_spans import read_sources
from seqdata.storage.indexed.shard_provider import ShardProvider, ShardRequest
from seqdata.storage.multi_shard_column import join_columns


class ShardsOnDemand:
    """The shards of a store, each opened when it is needed.

    Args:
        made: The fields of the store.
        bringing: Opens shards.
    """

    __slots__ = ("_bringing", "_made", "_starts")

    def __init__(self, made: FileFields, bringing: ShardProvider) -> None:
        self._made = made
        self._bringing = bringing
        self._starts = np.array(made.layout.shard_offsets, dtype=np.int64)

    def read(self, spans: NDArray[np.int64], fields: Iterable[str], axis: str) -> dict[str, Any]:
        """Return the columns of spans, int64 (n, 3), of existing sequences."""
        names, layout = list(fields), self._made.layout
        shards = self._shards_of(spans[:, 0])
        touched = np.unique(shards) if len(shards) else np.zeros(1, dtype=np.int64)
        local = spans.copy()
        local[:, 0] -= self._starts[shards]
        rows = {number: np.flatnonzero(shards == number) for number in touched.tolist()}
        asked = {number: ShardRequest(local[mine], names, axis) for number, mine in rows.items()}
        index = np.empty(len(spans), dtype=np.int64)
        found = []
        for part in self._bringing.get(asked):
            mine = rows[part.number]
            index[mine] = np.arange(len(mine))
            first, stop = self._starts[part.number : part.number + 2].tolist()
            lengths_of = {name: one[first:stop] for name, one in layout.lengths_of.items()}
            found.append(
                read_sources(
                    layout.location, part.sources, self._made.fields, lengths_of, local[mine],
                    names, axis,
                )
            )  # fmt: skip
        if len(found) == 1:
            return found[0]
        owner = np.searchsorted(touched, shards)
        return join_columns(found, names, owner, index)

    def texts(self, name: str, numbers: NDArray[np.int64]) -> list[Any]:
        """Return the values of a field of texts."""
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers
        texts: list[Any] = self.read(spans, [name], next(iter(self._made.layout.lengths_of)))[name]
        return texts

    def expect(self, numbers: NDArray[np.int64]) -> bool:
        """Start to download the shards of sequences; return whether more may be announced."""
        shards = self._shards_of(np.asarray(numbers, dtype=np.int64))
        return self._bringing.expect(dict.fromkeys(shards.tolist()))

    def _shards_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        outside = (numbers < 0) | (numbers >= self._starts[-1])
        if outside.any():
            self._made.layout.find_shard(int(numbers[outside][0]))  # raises
        return np.searchsorted(self._starts, numbers, side="right") - 1
