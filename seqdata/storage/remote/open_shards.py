"""The shards that a process has open: those of the batch at hand, and as many more as may stay.

Place in the flow: the remote store asks for parts by number, and tells what it will ask for. Reads:
whole shards, through the cache. Makes: parts.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from seqdata.errors import SeqDataError
from seqdata.storage.arrow.shard_reader import Part
from seqdata.storage.remote.file_cache import NoRoomError
from seqdata.storage.remote.thread_pool import Fetchers

_LOG = logging.getLogger("seqdata.remote")
_AHEAD = 4  # shards that are fetched before they are asked for
_STAYS = 8  # an eighth of a cache that is smaller than the data may stay open in one process
Open = Callable[[int, Callable[[], None]], Part]


class Shelf:
    """Parts by number.

    Args:
        opened: Opens a shard, or raises ``NoRoomError``; is given what lets go of all that can be
            missed.
        fetch: Brings a shard into the cache, and is done at once where it is there.
        sizes: Bytes of each shard.
        room: Bytes that the cache holds.
        fetchers: Threads.
        where: The data set, for the log.
    """

    __slots__ = (
        "_fetch", "_fetchers", "_lock", "_most", "_opened", "_parts", "_pid", "_room", "_sizes",
        "_told", "_under_way", "_where",
    )  # fmt: skip

    def __init__(
        self,
        opened: Open,
        fetch: Callable[[int], None],
        sizes: Sequence[int],
        room: int,
        fetchers: Fetchers,
        where: str,
    ) -> None:
        self._opened = opened
        self._fetch = fetch
        self._sizes = sizes
        self._room = room
        self._most = room if sum(sizes) <= room else room // _STAYS
        self._fetchers = fetchers
        self._where = where
        self._told = False  # that there was no room
        self._parts: OrderedDict[int, Part] = OrderedDict()  # last used last
        self._under_way: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def get(self, numbers: Sequence[int]) -> list[Part]:
        """Return parts, by number; those that are not there are fetched side by side.

        Those that the cache has no room for are left out, which the log says once.
        """
        self._after_fork()
        wanted = set(numbers)

        def release() -> None:
            self._drop(wanted, 0)

        with self._lock:
            missing = [number for number in numbers if number not in self._parts]
            there = {number: self._parts[number] for number in numbers if number in self._parts}
            for number in there:
                self._parts.move_to_end(number)
        if missing:
            self._drop(wanted, max(0, self._most - sum(self._sizes[one] for one in missing)))
            made = self._fetchers.each(lambda number: self._tried(number, release), missing)
            with self._lock:
                for part in made:
                    if part is not None:
                        self._parts[part.number] = part
                        there[part.number] = part
        if len(there) < len(wanted):
            self._tell(len(there), len(wanted))
        return [there[number] for number in sorted(there)]

    def everything(self) -> list[Part] | None:
        """Give all parts, where all of them are open."""
        if len(self._parts) < len(self._sizes):
            return None
        with self._lock:
            parts = [self._parts[number] for number in sorted(self._parts)]
        return parts if len(parts) == len(self._sizes) else None

    def has(self, number: int) -> Part | None:
        """Give a part that is open; None where it is not."""
        return self._parts.get(number)

    def expect(self, numbers: Iterable[int]) -> bool:
        """Begin to fetch what will be asked for; whether more may be told already."""
        self._after_fork()
        with self._lock:
            self._under_way = {n: one for n, one in self._under_way.items() if not one.done()}
            for number in numbers:
                if number in self._parts or number in self._under_way:
                    continue
                if len(self._under_way) >= _AHEAD:
                    return False
                self._under_way[number] = self._fetchers.begin(self._quietly, number)
            return len(self._under_way) < _AHEAD

    def _tried(self, number: int, release: Callable[[], None]) -> Part | None:
        try:
            return self._opened(number, release)
        except NoRoomError:
            return None

    def _tell(self, there: int, wanted: int) -> None:
        if not self._told:
            self._told = True
            _LOG.warning(
                "%s: a batch needs %d shards, and the cache of %d bytes has room for %d of them "
                "now; the others are read by ranges, each time; raise Remote(cache_bytes=...), or "
                "write smaller shards",
                self._where, wanted, self._room, there,
            )  # fmt: skip

    def _quietly(self, number: int) -> None:
        try:
            self._fetch(number)
        except NoRoomError:
            _LOG.debug("shard %d: no room to fetch it ahead", number)
        except SeqDataError as error:  # whoever reads it meets the same, and raises it
            _LOG.info("shard %d could not be fetched ahead: %s", number, error)

    def _drop(self, but: set[int], most: int) -> None:
        """Close the longest unused parts until those that stay have so many bytes at most."""
        with self._lock:
            held = sum(self._sizes[number] for number in self._parts)
            for number in [one for one in self._parts if one not in but]:
                if held <= most:
                    return
                held -= self._sizes[number]
                del self._parts[number]

    def _after_fork(self) -> None:
        if self._pid != os.getpid():  # the lock may be held by a thread that is not here
            self._lock = threading.Lock()
            self._under_way = {}
            self._pid = os.getpid()
