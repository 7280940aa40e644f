"""Copies of remote files that are damaged on this machine: told from damage at the source, mended.

A checksum that is wrong may be the fault of what was copied here, in the cache or in memory, or of
the source. The copy is compared with the source once; where it is another it is made the same, the
log says so, and what was asked for is read again. Only what is wrong at the source is an error.
Copies are mended where they lie, so every reader of this machine sees that. Place in the flow:
layouts over copies ask here before an error is raised. Reads: copies, sources. Makes: copies that
are right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from seqdata.errors import DataError
from seqdata.storage.remote.range_cache import SparseFile
from seqdata.storage.remote.range_requests import Filling, empty, fill
from seqdata.storage.remote.thread_pool import Fetchers

_LOG = logging.getLogger("seqdata.remote")
_MOST = 8  # times that one copy is mended
Look = Callable[[], bool]
"""Compares a copy with its source; whether it was another and is mended."""


class Mending:
    """What a layout does about an error: looks at the copies that it may come from.

    Args:
        looks: One for each of them.
    """

    __slots__ = ("_left", "_looks", "_sound")

    def __init__(self, looks: Sequence[Look]) -> None:
        self._looks = looks
        self._sound = False
        self._left = _MOST

    def __call__(self, error: DataError) -> bool:
        """Return whether it is worth another try: something was mended, maybe by somebody else.

        Raises:
            SeqDataError: If the source cannot be read, or is another.
        """
        del error
        if self._sound or not self._left:  # it is as the source, or that is another each time
            return False
        self._left -= 1
        mended = [look() for look in self._looks]
        self._sound = not any(mended)
        return True


def brought_again(held: SparseFile, filling: Filling, fetchers: Fetchers) -> bool:
    """Bring again what came of a file by ranges; whether it was another.

    Args:
        held: What is there.
        filling: Says how bytes of the file come.
        fetchers: Threads.
    """
    fresh = empty(len(held.content))
    fill([replace(filling, content=fresh, ranges=held.there)], fetchers)
    old, new = memoryview(held.content), memoryview(fresh)
    wrong = [(a, b) for a, b in held.there.tolist() if old[a:b] != new[a:b]]
    for first, stop in wrong:
        old[first:stop] = new[first:stop]
    if wrong:
        _LOG.warning("%s: what came of it was wrong (%d pieces)", filling.place, len(wrong))
    return bool(wrong)
