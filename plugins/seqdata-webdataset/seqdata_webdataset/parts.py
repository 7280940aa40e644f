"""Shards that come when they are needed: remote ones, through the bounded cache.

Place in the flow: the store over remote shards reads by it. Reads: spans. Makes: columns of several
shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.pieces import PieceColumn
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.parts import JoinedColumn, Part
from seqdata.storage.remote.pools import Fetchers
from seqdata.storage.remote.shelf import Shelf
from seqdata_webdataset.fields import FieldSource, Made
from seqdata_webdataset.placed import PlacedTexts
from seqdata_webdataset.reading import read_sources

_STAYS = 8  # an eighth of a cache that is smaller than the data may stay open in one process
_OPENERS = 4  # shards that are fetched at once
Hold = Callable[[int, Callable[[], None] | None], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True, eq=False)
class OneShard:
    """One shard that is open.

    Attributes:
        number: Of the shard.
        sources: Field -> its source; sequences are counted from its first one.
    """

    number: int
    sources: Mapping[str, FieldSource]


class Parts:
    """The shards of a store, each opened when it is needed.

    Args:
        made: What the store consists of.
        remote: How shards are fetched.
        hold: Gives the bytes of a shard; is given what lets go of others.
    """

    __slots__ = ("_made", "_shelf", "_starts")

    def __init__(self, made: Made, remote: Remote, hold: Hold) -> None:
        self._made = made
        self._starts = np.array(made.layout.starts, dtype=np.int64)
        sizes = [index.bytes for index in made.indexes]
        most = remote.cache_bytes
        stays = most if sum(sizes) <= most else most // _STAYS

        def opened(number: int, release: Callable[[], None]) -> Part:
            return cast(Part, OneShard(number, made.part(number, hold(number, release))))

        def fetch(number: int) -> None:
            hold(number, None)

        self._shelf = Shelf(opened, fetch, sizes, stays, Fetchers(_OPENERS))

    def read(self, spans: NDArray[np.int64], fields: Iterable[str], axis: str) -> dict[str, Any]:
        """Give the columns of spans, int64 (n, 3), of sequences that are there."""
        names = list(fields)
        shards = self._shards_of(spans[:, 0])
        parts = self._get(shards)
        local = spans.copy()
        local[:, 0] -= self._starts[shards]
        owner = np.searchsorted([one.number for one in parts], shards)
        index = np.empty(len(spans), dtype=np.int64)
        found = []
        for number, part in enumerate(parts):
            rows = np.flatnonzero(owner == number)
            index[rows] = np.arange(len(rows))
            first, stop = self._starts[part.number : part.number + 2].tolist()
            lengths_of = {
                name: one[first:stop] for name, one in self._made.layout.lengths_of.items()
            }
            found.append(
                read_sources(
                    self._made.layout.location,
                    part.sources,
                    self._made.fields,
                    lengths_of,
                    local[rows],
                    names,
                    axis,
                )
            )
        if len(found) == 1:
            return found[0]
        return {name: _joined([one[name] for one in found], owner, index) for name in names}

    def texts(self, name: str, numbers: NDArray[np.int64]) -> list[Any]:
        """Give the values of a field of texts."""
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers
        texts: list[Any] = self.read(spans, [name], next(iter(self._made.layout.lengths_of)))[name]
        return texts

    def expect(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch what sequences need, in their order; whether more may be told."""
        shards = self._shards_of(np.asarray(numbers, dtype=np.int64))
        return self._shelf.expect(dict.fromkeys(shards.tolist()))

    def _get(self, shards: NDArray[np.int64]) -> list[OneShard]:
        touched = np.unique(shards).tolist() if len(shards) else [0]
        return cast("list[OneShard]", self._shelf.get(touched))

    def _shards_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        outside = (numbers < 0) | (numbers >= self._starts[-1])
        if outside.any():
            self._made.layout.shard_of(int(numbers[outside][0]))  # says that it is not there
        return np.searchsorted(self._starts, numbers, side="right") - 1


def is_texts(source: FieldSource | None) -> bool:
    """Tell whether a source is one of texts."""
    return isinstance(source, PlacedTexts)


def _joined(columns: Sequence[Any], owner: NDArray[np.int64], index: NDArray[np.int64]) -> Any:
    """Put the pieces of several shards in the order of the batch."""
    if not isinstance(columns[0], list | PieceColumn):
        return JoinedColumn(columns, owner, index)
    both = zip(owner.tolist(), index.tolist(), strict=True)
    pieces = [columns[which][at] for which, at in both]
    if isinstance(columns[0], list):
        return pieces
    return PieceColumn(columns[0].dtype, columns[0].shape, pieces)
