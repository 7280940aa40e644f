"""Who the other ranks are, and which of them is no longer there.

A collective that fails says that a connection is closed, but not whose. Ranks of the same machine
can be looked at. Place in the flow: ranks tell each other their ``Peer`` once; the watcher asks
when something is wrong. Reads: /proc. Makes: a line about a rank.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_ENDED = "ZXx"
_STOPPED = "Tt"


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank's process.

    Attributes:
        rank: In the default process group.
        host: Its machine, and on it the namespace in which ``pid`` counts.
        pid: Its process id.
        started: When the process began, in ticks since the machine did; pids are used again.
    """

    rank: int
    host: str
    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Fallen:
    """A rank that cannot answer any more, and why."""

    rank: int
    cause: str


def myself(rank: int) -> Peer:
    """Give this process as a peer."""
    pid = os.getpid()
    return Peer(rank, _host(), pid, _look(pid)[1])


def fallen_of(peers: Sequence[Peer], me: int) -> list[Fallen]:
    """Give the ranks of this machine that have ended or are stopped.

    Args:
        peers: All ranks.
        me: The rank that asks.
    """
    host = _host()
    others = [peer for peer in peers if peer.rank != me and peer.host == host]
    looked = [(peer, _look(peer.pid)) for peer in others if peer.started]
    return [
        Fallen(peer.rank, f"its process {peer.pid} {what}")
        for peer, (state, started) in looked
        if (what := _what(peer, state, started))
    ]


def _what(peer: Peer, state: str, started: int) -> str:
    if not state or state in _ENDED or started != peer.started:
        return "has ended"
    return "is stopped" if state in _STOPPED else ""


def _host() -> str:
    space = _PROC / "self" / "ns" / "pid"
    return f"{socket.gethostname()} {os.readlink(space) if space.is_symlink() else ''}"


def _look(pid: int) -> tuple[str, int]:
    """Give a process's state letter and start; nothing and 0 where there is none to see."""
    try:
        told = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return "", 0
    fields = told.rpartition(")")[2].split()  # a name may hold blanks and brackets
    return fields[0], int(fields[19])
