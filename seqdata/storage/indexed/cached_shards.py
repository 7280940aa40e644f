"""Shards that are brought whole, through the bounded cache, and stay open while there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.indexed.file_fields import FileFields
from seqdata.storage.indexed.shard_provider import OpenShard, ShardProvider, ShardRequest
from seqdata.storage.remote.open_shards import OpenShards
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool

_OPENERS = 4  # shards that are fetched at once
Hold = Callable[[int, Callable[[], None] | None], NDArray[np.uint8]]
"""Gives the bytes of a shard; is given what lets go of others."""


class CachedShards:
    """The shards of a store, each fetched and opened when it is needed: a ``ShardProvider``.

    Args:
        made: What the store consists of.
        room: Bytes that the cache holds.
        hold: Gives the bytes of a shard.
        others: Bring the shards that there is no room for.
    """

    __slots__ = ("_others", "_shelf")

    def __init__(self, made: FileFields, room: int, hold: Hold, others: ShardProvider) -> None:
        sizes = [index.bytes for index in made.indexes]

        def opened(number: int, release: Callable[[], None]) -> OpenShard:
            sources = made.part(number, hold(number, release), None, None)
            return OpenShard(number, sources)

        def fetch(number: int) -> None:
            hold(number, _nothing)

        where = made.layout.location
        self._shelf = OpenShards(opened, fetch, sizes, room, ForkSafeThreadPool(_OPENERS), where)
        self._others = others

    def get(self, asked: Mapping[int, ShardRequest]) -> list[OpenShard]:
        """Return shards by number; see ``ShardProvider``."""
        found = self._shelf.get(list(asked))
        if len(found) < len(asked):
            there = {part.number for part in found}
            found += self._others.get({n: one for n, one in asked.items() if n not in there})
        return sorted(found, key=lambda part: part.number)

    def expect(self, numbers: Iterable[int]) -> bool:
        """Begin to fetch shards that will be asked for; see ``ShardProvider``."""
        return self._shelf.expect(numbers)


def _nothing() -> None:
    """Let go of nothing: what is fetched ahead must find room as it is."""
