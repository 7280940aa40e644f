"""Remote shards that are downloaded as a whole, through the cache, and stay open meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.indexed.file_fields import FileFields
from seqdata.storage.indexed.shard_provider import OpenShard, ShardProvider, ShardRequest
from seqdata.storage.remote.open_shards import OpenShards
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool

_OPENERS = 4  # shards that are downloaded at once
Hold = Callable[[int, Callable[[], None] | None], NDArray[np.uint8]]
"""``hold(shard, release)`` returns the shard's bytes; ``release()`` closes other shards."""


class CachedShards:
    """The shards of a store, downloaded and opened when they are needed: a ``ShardProvider``.

    Args:
        made: The fields of the store.
        room: Size of the cache in bytes.
        hold: Returns the bytes of a shard.
        others: Provides the shards that there is no room for.
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
        """Start to download the next shards; see ``ShardProvider``."""
        return self._shelf.expect(numbers)


def _nothing() -> None:
    """Release nothing: a download ahead needs free room."""
