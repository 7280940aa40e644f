"""Shards that are brought whole, through the bounded cache, and stay open while there is room.

Place in the flow: remote shards are read by it unless by ranges. Reads: shards. Makes: sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.parts import Part
from seqdata.storage.remote.pools import Fetchers
from seqdata.storage.remote.shelf import Shelf
from seqdata_webdataset.bringing import Asked, OneShard
from seqdata_webdataset.fields import Made

_STAYS = 8  # an eighth of a cache that is smaller than the data may stay open in one process
_OPENERS = 4  # shards that are fetched at once
Hold = Callable[[int, Callable[[], None] | None], NDArray[np.uint8]]
"""Gives the bytes of a shard; is given what lets go of others."""


class ShelvedShards:
    """The shards of a store, each fetched and opened when it is needed: a ``Bringing``.

    Args:
        made: What the store consists of.
        remote: How shards are fetched.
        hold: Gives the bytes of a shard.
    """

    __slots__ = ("_shelf",)

    def __init__(self, made: Made, remote: Remote, hold: Hold) -> None:
        sizes = [index.bytes for index in made.indexes]
        most = remote.cache_bytes
        stays = most if sum(sizes) <= most else most // _STAYS

        def opened(number: int, release: Callable[[], None]) -> Part:
            sources = made.part(number, hold(number, release), None, False)
            return cast(Part, OneShard(number, sources))

        def fetch(number: int) -> None:
            hold(number, None)

        self._shelf = Shelf(opened, fetch, sizes, stays, Fetchers(_OPENERS))

    def get(self, asked: Mapping[int, Asked]) -> list[OneShard]:
        """Give shards by number; see ``Bringing``."""
        return cast("list[OneShard]", self._shelf.get(list(asked)))

    def expect(self, numbers: Iterable[int]) -> bool:
        """Begin to fetch shards that will be asked for; see ``Bringing``."""
        return self._shelf.expect(numbers)
