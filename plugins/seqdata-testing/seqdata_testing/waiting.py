"""Waiting in tests: for events, with bounds that grow with the load of the machine.

A test that waits for a fixed time fails on a busy machine. So a test waits for an event
(``until``); a bound, such as "within 2 s", is in seconds of an idle machine (``patient``,
``within``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from seqdata_testing import ConformanceError

PATIENCE = 30.0  # seconds of an idle machine: far more than any event of a test takes
_OFTEN = 0.005
_LOADS = Path("/proc/loadavg")


def slowness() -> float:
    """Return the current slowdown compared with an idle machine, at least 1.

    This is the number of runnable processes per processor, on average over the last minute or at
    this moment, whichever is larger.
    """
    averaged = os.getloadavg()[0]
    running = int(_LOADS.read_text().split()[3].split("/")[0]) if _LOADS.exists() else 0
    return max(1.0, averaged / _processors(), running / _processors())


def patient(seconds: float = 60.0) -> float:
    """Convert a bound in seconds of an idle machine to seconds at the current load."""
    return seconds * slowness()


def until(true: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Wait until a condition is true; return whether it is.

    Args:
        true: Returns whether the condition is true; called repeatedly.
        seconds: Longest wait, in seconds of an idle machine.
    """
    began, slowest = time.monotonic(), 1.0
    while not (found := bool(true())):
        slowest = max(slowest, slowness())
        if time.monotonic() > began + seconds * slowest:
            break
        time.sleep(_OFTEN)
    return found


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise if the block takes longer.

    Args:
        seconds: Maximum duration, in seconds of an idle machine.

    Raises:
        ConformanceError: At the end of the block, if it took longer.
    """
    began, before = time.monotonic(), slowness()
    yield
    took, most = time.monotonic() - began, seconds * max(before, slowness())
    if took > most:
        raise ConformanceError(
            f"must take at most {most:.1f} s on this machine, but took {took:.1f} s"
        )


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
