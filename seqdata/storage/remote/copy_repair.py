"""Copies of remote files that are damaged on this machine: told from damage at the source, mended.

A checksum that is wrong may be the fault of what was copied here, in the cache or in memory, or of
the source. The copy is compared with the source once; where it is another it is made the same, the
log says so, and what was asked for is read again. Only what is wrong at the source is an error.
Copies are mended where they lie, so every reader of this machine sees that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from seqdata.errors import DataError
from seqdata.storage.remote.range_cache import SparseFile
from seqdata.storage.remote.range_requests import RangeDownload, allocate_sparse, download_ranges
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool

_LOG = logging.getLogger("seqdata.remote")
_MAX_REPAIRS = 8  # times that one copy is mended
RepairFn = Callable[[], bool]
"""Compares a copy with its source; whether it was another and is mended."""


class CopyRepair:
    """What a layout does about an error: looks at the copies that it may come from.

    Args:
        repairs: One for each of them.
    """

    __slots__ = ("_is_intact", "_repairs", "_tries_left")

    def __init__(self, repairs: Sequence[RepairFn]) -> None:
        self._repairs = repairs
        self._is_intact = False
        self._tries_left = _MAX_REPAIRS

    def __call__(self, error: DataError) -> bool:
        """Return whether it is worth another try: something was mended, maybe by somebody else.

        Raises:
            SeqDataError: If the source cannot be read, or is another.
        """
        del error
        if (
            self._is_intact or not self._tries_left
        ):  # it is as the source, or that is another each time
            return False
        self._tries_left -= 1
        repaired = [look() for look in self._repairs]
        self._is_intact = not any(repaired)
        return True


def redownload_ranges(
    file: SparseFile, range_download: RangeDownload, thread_pool: ForkSafeThreadPool
) -> bool:
    """Bring again what came of a file by ranges; whether it was another.

    Args:
        file: What is there.
        range_download: Says how bytes of the file come.
        thread_pool: Threads.
    """
    content = allocate_sparse(len(file.content))
    download_ranges([replace(range_download, content=content, ranges=file.present)], thread_pool)
    old, new = memoryview(file.content), memoryview(content)
    wrong = [(a, b) for a, b in file.present.tolist() if old[a:b] != new[a:b]]
    for first, stop in wrong:
        old[first:stop] = new[first:stop]
    if wrong:
        _LOG.warning(
            "%s: what came of it was wrong (%d pieces)", range_download.location, len(wrong)
        )
    return bool(wrong)
