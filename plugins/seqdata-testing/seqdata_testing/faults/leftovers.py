"""Search for leftovers: processes, named shared memory, files, open descriptors.

It reads /proc and /dev/shm, so it needs Linux.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SHARED = Path("/dev/shm")
_PROC = Path("/proc")
_OFTEN = 0.05  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Baseline:
    """Files that existed before a fault; see ``look``.

    Attributes:
        folder: Folder of temporary files.
        files: Paths of the files in the folder.
    """

    folder: Path
    files: frozenset[str]


def look(folder: Path) -> Baseline:
    """Return the files of a folder.

    Args:
        folder: Folder of temporary files, in which no new file may stay.
    """
    return Baseline(folder, _files(folder))


def find_leftovers(before: Baseline, session: int, *, within: float) -> tuple[str, ...]:
    """Return new leftovers; wait until there are none, or time is up.

    Args:
        before: Earlier state.
        session: Session of the process that has ended, in which no process may be left.
        within: Seconds to wait.
    """

    def find_remaining() -> tuple[str, ...]:
        processes = [f"process {pid} ({_name(pid)})" for pid in processes_of(session)]
        return (*processes, *sorted(_files(before.folder) - before.files))

    return until_empty(find_remaining, within)


def until_empty(find: Callable[[], tuple[str, ...]], within: float) -> tuple[str, ...]:
    """Call ``find`` until it finds nothing, or time is up; return its last result."""
    end = time.monotonic() + within
    while (remaining := find()) and time.monotonic() < end:
        time.sleep(_OFTEN)
    return remaining


def processes_of(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    return [pid for pid in _pids() if (about := _stat(pid)) and about == (session, True)]


def open_descriptors() -> set[int]:
    """Return the open descriptors of this process."""
    found = set()
    for name in os.listdir(_PROC / "self" / "fd"):
        with contextlib.suppress(OSError):  # the listing had one itself
            os.fstat(int(name))
            found.add(int(name))
    return found


def list_shared_memory(session: int) -> list[str]:
    """Return the paths of named shared memory that processes of a session have mapped.

    It lies directly in /dev/shm; a mapped file in a subfolder is other data.
    """
    mapped: set[str] = set()
    for pid in processes_of(session):
        try:
            maps = (_PROC / str(pid) / "maps").read_text()
        except OSError:  # it has ended since
            continue
        lines = [line.split(maxsplit=5) for line in maps.splitlines()]
        mapped.update(parts[5] for parts in lines if parts[5:])
    return sorted(path for path in mapped if os.path.dirname(path) == str(SHARED))


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]


def _stat(pid: int) -> tuple[int, bool] | None:
    """Return the session of a process, and whether it is not a zombie; None if it has ended."""
    try:
        after_name = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(after_name[3]), after_name[0] not in "ZX"


def _name(pid: int) -> str:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "ended"
    return " ".join(word.decode(errors="replace")[:40] for word in words[:4])


def _files(folder: Path) -> frozenset[str]:
    return frozenset(str(path) for path in folder.rglob("*"))
