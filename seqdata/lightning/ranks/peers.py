"""The processes of the other ranks, and which of them have ended.

A failed collective operation reports a closed connection, but not whose. Processes on the same
machine can be inspected.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_ENDED_STATES = "ZXx"
_STOPPED_STATES = "Tt"


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A rank's process.

    Attributes:
        rank: Rank in the default process group.
        host: Its machine, and the namespace of ``pid``.
        pid: Id of the process.
        start_ticks: Start of the process, in ticks since the machine started; pids are reused.
    """

    rank: int
    host: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class LostRank:
    """A rank that cannot respond any more, and why."""

    rank: int
    cause: str


def describe_own_process(rank: int) -> RankProcess:
    """Return the description of this process for the other ranks."""
    pid = os.getpid()
    return RankProcess(rank, _get_host(), pid, _read_process_stat(pid)[1])


def find_lost_ranks(processes: Sequence[RankProcess], rank: int) -> list[LostRank]:
    """Return the ranks of this machine that have ended or are stopped.

    Args:
        processes: All ranks.
        rank: This rank.
    """
    host = _get_host()
    local_processes = [
        process for process in processes if process.rank != rank and process.host == host
    ]
    observed = [
        (process, _read_process_stat(process.pid))
        for process in local_processes
        if process.start_ticks
    ]
    return [
        LostRank(process.rank, f"its process {process.pid} {loss}")
        for process, (state, start_ticks) in observed
        if (loss := _describe_loss(process, state, start_ticks))
    ]


def _describe_loss(process: RankProcess, state: str, start_ticks: int) -> str:
    if not state or state in _ENDED_STATES or start_ticks != process.start_ticks:
        return "has ended"
    return "is stopped" if state in _STOPPED_STATES else ""


def _get_host() -> str:
    space = _PROC / "self" / "ns" / "pid"
    return f"{socket.gethostname()} {os.readlink(space) if space.is_symlink() else ''}"


def _read_process_stat(pid: int) -> tuple[str, int]:
    """Return a process's state letter and start; "" and 0 if there is no such process."""
    try:
        content = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return "", 0
    fields = content.rpartition(")")[2].split()  # a name may contain spaces and parentheses
    return fields[0], int(fields[19])
