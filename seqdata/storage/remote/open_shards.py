"""The shards that a process has open: those of the current batch, and recently used ones.

Place in the flow: remote stores request open shards by index, and announce the next ones. Reads:
whole shards, through the cache. Makes: open shards.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from seqdata.errors import SeqDataError
from seqdata.storage.remote.file_cache import CacheFullError
from seqdata.storage.remote.transport import ForkSafeThreadPool

_LOG = logging.getLogger("seqdata.remote")
_MAX_PREFETCHED = 4  # shards that are downloaded ahead
_OPEN_FRACTION = 8  # of a cache that is smaller than the data, one process keeps an eighth open


class HasNumber(Protocol):
    """An open shard."""

    @property
    def number(self) -> int:
        """Index in the dataset."""
        ...


ShardT = TypeVar("ShardT", bound=HasNumber)
OpenFn = Callable[[int, Callable[[], None]], ShardT]


class OpenShards(Generic[ShardT]):
    """Open shards by index, least recently used first.

    Args:
        open_shard: Called as ``open_shard(number, release)``, may raise ``CacheFullError``;
            ``release()`` closes every shard that the current batch does not use.
        download: Downloads a shard into the cache; returns at once if it is cached.
        sizes: Bytes of each shard.
        cache_bytes: Bytes that the cache holds.
        thread_pool: Threads.
        dataset: The dataset, for the log.
    """

    __slots__ = (
        "_cache_bytes",
        "_dataset",
        "_download",
        "_has_warned",
        "_lock",
        "_max_bytes",
        "_open",
        "_open_shards",
        "_pending",
        "_pid",
        "_sizes",
        "_thread_pool",
    )  # fmt: skip

    def __init__(
        self,
        open_shard: OpenFn[ShardT],
        download: Callable[[int], None],
        sizes: Sequence[int],
        cache_bytes: int,
        thread_pool: ForkSafeThreadPool,
        dataset: str,
    ) -> None:
        self._open = open_shard
        self._download = download
        self._sizes = sizes
        self._cache_bytes = cache_bytes
        self._max_bytes = (
            cache_bytes if sum(sizes) <= cache_bytes else cache_bytes // _OPEN_FRACTION
        )
        self._thread_pool = thread_pool
        self._dataset = dataset
        self._has_warned = False  # whether the lack of room was logged
        self._open_shards: OrderedDict[int, ShardT] = OrderedDict()  # most recently used last
        self._pending: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def get(self, numbers: Sequence[int]) -> list[ShardT]:
        """Return open shards by index; missing ones are downloaded in parallel.

        Shards that the cache has no room for are not returned; this is logged once.
        """
        self._reset_after_fork()
        requested = set(numbers)

        def release() -> None:
            self._close_unused(requested, 0)

        with self._lock:
            missing = [number for number in numbers if number not in self._open_shards]
            found = {
                number: self._open_shards[number]
                for number in numbers
                if number in self._open_shards
            }
            for number in found:
                self._open_shards.move_to_end(number)
        if missing:
            new_bytes = sum(self._sizes[number] for number in missing)
            self._close_unused(requested, max(0, self._max_bytes - new_bytes))
            opened = self._thread_pool.map(
                lambda number: self._open_if_room(number, release), missing
            )
            with self._lock:
                for open_shard in opened:
                    if open_shard is not None:
                        self._open_shards[open_shard.number] = open_shard
                        found[open_shard.number] = open_shard
        if len(found) < len(requested):
            self._warn_no_room(len(found), len(requested))
        return [found[number] for number in sorted(found)]

    def get_all(self) -> list[ShardT] | None:
        """Return the shards if all of them are open, else None."""
        if len(self._open_shards) < len(self._sizes):
            return None
        with self._lock:
            open_shards = [self._open_shards[number] for number in sorted(self._open_shards)]
        return open_shards if len(open_shards) == len(self._sizes) else None

    def peek(self, number: int) -> ShardT | None:
        """Return a shard if it is open, else None."""
        return self._open_shards.get(number)

    def prefetch(self, numbers: Iterable[int]) -> bool:
        """Start to download the next shards; return whether further ones may be announced."""
        self._reset_after_fork()
        with self._lock:
            self._pending = {n: task for n, task in self._pending.items() if not task.done()}
            for number in numbers:
                if number in self._open_shards or number in self._pending:
                    continue
                if len(self._pending) >= _MAX_PREFETCHED:
                    return False
                self._pending[number] = self._thread_pool.submit(self._prefetch, number)
            return len(self._pending) < _MAX_PREFETCHED

    def _open_if_room(self, number: int, release: Callable[[], None]) -> ShardT | None:
        try:
            return self._open(number, release)
        except CacheFullError:
            return None

    def _warn_no_room(self, found: int, requested: int) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "%s: a batch needs %d shards, but the cache of %d bytes has room for %d of them "
                "now. The others are read by ranges, each time. Raise Remote(cache_bytes=...), or "
                "write smaller shards",
                self._dataset, requested, self._cache_bytes, found,
            )  # fmt: skip

    def _prefetch(self, number: int) -> None:
        try:
            self._download(number)
        except CacheFullError:
            _LOG.debug("shard %d: no room to download it ahead", number)
        except SeqDataError as error:  # the read meets the same error, and raises it
            _LOG.info("shard %d could not be downloaded ahead: %s", number, error)

    def _close_unused(self, keep: set[int], max_bytes: int) -> None:
        """Close the least recently used shards until the open ones have at most this many bytes."""
        with self._lock:
            open_bytes = sum(self._sizes[number] for number in self._open_shards)
            for number in [each for each in self._open_shards if each not in keep]:
                if open_bytes <= max_bytes:
                    return
                open_bytes -= self._sizes[number]
                del self._open_shards[number]

    def _reset_after_fork(self) -> None:
        if self._pid != os.getpid():  # the lock may be held by a thread of the parent process
            self._lock = threading.Lock()
            self._pending = {}
            self._pid = os.getpid()


def release_nothing() -> None:
    """Close no shard, although a download may need its room in the cache."""
