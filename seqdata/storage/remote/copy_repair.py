"""Repair of local copies of remote files that are damaged on this machine.

A checksum mismatch may come from the local copy, in the cache or in memory, or from the source. The
copy is compared with the source once; if they differ, the copy is overwritten, a line is logged,
and the values are read again. Only damage at the source is an error. Copies are repaired in place,
so every reader on this machine sees the repair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from seqdata.errors import DataError
from seqdata.storage.remote.range_cache import (
    RangeDownload,
    SparseFile,
    allocate_sparse,
    download_ranges,
)
from seqdata.storage.remote.transport import ForkSafeThreadPool

_LOG = logging.getLogger("seqdata.remote")
_MAX_REPAIRS = 8  # repairs of one copy
RepairFn = Callable[[], bool]
"""Compares a copy with its source; returns whether it differed and was repaired."""


class CopyRepair:
    """The repairs of the copies that an error of a layout may come from.

    Args:
        repairs: One for each of them.
    """

    __slots__ = ("_is_intact", "_repairs", "_tries_left")

    def __init__(self, repairs: Sequence[RepairFn]) -> None:
        self._repairs = repairs
        self._is_intact = False
        self._tries_left = _MAX_REPAIRS

    def __call__(self, error: DataError) -> bool:
        """Return whether a retry may help: a copy was repaired, maybe by another thread.

        Raises:
            SeqDataError: If the source cannot be read, or was replaced.
        """
        del error
        if (
            self._is_intact or not self._tries_left
        ):  # it equals the source, or the source differs each time
            return False
        self._tries_left -= 1
        repaired = [look() for look in self._repairs]
        self._is_intact = not any(repaired)
        return True


def redownload_ranges(
    file: SparseFile, range_download: RangeDownload, thread_pool: ForkSafeThreadPool
) -> bool:
    """Download the present ranges of a file again; return whether any byte differed.

    Args:
        file: The file's bytes in memory.
        range_download: Creates the download of ranges of the file.
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
            "%s: the local copy was wrong (%d ranges)", range_download.location, len(wrong)
        )
    return bool(wrong)
