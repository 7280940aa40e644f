"""Waiting in tests: for events, with bounds that stretch where the machine is busy.

A test that waits for a clock fails on a machine that also does other work. So a test waits for an
event (``until``), which takes as long as it takes; a bound, of a program or a promise ("within 2
s"), is in seconds of an idle machine (``patient``, ``within``).
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

    That is the number of processes that want to run per processor, on average over the last minute
    or at this moment, whichever is more.
    """
    averaged = os.getloadavg()[0]
    running = int(_LOADS.read_text().split()[3].split("/")[0]) if _LOADS.exists() else 0
    return max(1.0, averaged / _processors(), running / _processors())


def patient(seconds: float = 60.0) -> float:
    """Return a bound in seconds of an idle machine, adapted to the current load."""
    return seconds * slowness()


def until(true: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Wait until something is true; return whether it is.

    Args:
        true: Returns whether it is; called repeatedly.
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
    """Raise a ``ConformanceError`` if the block takes longer.

    Args:
        seconds: Seconds of an idle machine.
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
