"""Faults of worker processes: a transform that harms its own process, or a signal to one.

``FaultTransform`` passes all sequences on and acts when it sees a certain one. What must come of
each act stands with it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqdata_testing.waiting import until

_AT_ONCE = 1 << 24  # bytes that are taken at once
_LONG = 3600  # seconds
_MOMENT = 1.0
_PASSED = itertools.count()  # sequences that this process has seen
_FREE = 8  # of them, before it is held
_SEEN = "seen-by-"  # a file of each process that has begun
HOLDS = "held-"  # a file of each process that waits


@dataclass(frozen=True, slots=True)
class FaultTransform:
    """A transform that acts when it sees one sequence, and changes nothing.

    Attributes:
        act: Action that follows; None: nothing.
        field: The field that the sequence is known by.
        value: Value of the variable there.
        note: A file to write the time of the act into, of ``time.monotonic``.
        gate: A file: from its ninth sequence on, a process waits until it is there, and says so by
            a file ``HOLDS`` + its number. So work is left when the fault happens.
        among: Processes that must have seen a sequence before it acts.
    """

    act: Callable[[], None] | None
    field: str = ""
    value: Any = None
    note: Path | None = None
    gate: Path | None = None
    among: int = 1

    def __call__(self, sequence: Mapping[str, Any], _: Any) -> dict[str, Any]:
        """Return the same sequence."""
        if self.gate is not None and next(_PASSED) >= _FREE:
            Path(f"{HOLDS}{os.getpid()}").touch()
            until(self.gate.exists)
        if self.among > 1:
            Path(f"{_SEEN}{os.getpid()}").touch()
        if self.act is not None and np.array_equal(sequence[self.field], self.value):
            self._wait()
            if self.note is not None:
                self.note.write_text(repr(time.monotonic()))
            self.act()
            if self.gate is not None:
                self.gate.touch()
        return dict(sequence)

    def _wait(self) -> None:
        if self.among > 1:
            until(lambda: len(list(Path.cwd().glob(f"{_SEEN}*"))) >= self.among)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a process a signal.

    Must come of SIGKILL to a worker: a ``WorkerDiedError`` with ``pid``, ``signal`` and the last
    place, within 2 s, after the batches that were finished. To the training process: no worker is
    left after 5 s. Of SIGTERM to both: the workers continue until the training process decides.

    Args:
        pid: The process.
        number: The signal.
    """
    os.kill(pid, number)


def is_stopped(pid: int) -> bool:
    """Return whether all threads of a process stand still: it was stopped, or has ended."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(path.read_text().rpartition(")")[2].split()[0] in "TZX" for path in threads)


def kill_self() -> None:
    """End this process by SIGKILL, as the system does that is out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)  # it comes at once


def crash() -> None:
    """End this process by SIGSEGV, as a broken library does. Must come of it: as of ``kill``."""
    ctypes.string_at(0)


def exit_normally() -> None:
    """End this process as ``sys.exit`` does.

    Must come of it: a ``WorkerDiedError`` with ``exitcode`` and the last place, within 2 s.
    """
    raise SystemExit(3)


def exit_at_once() -> None:
    """End this process without any word: no handler runs.

    Must come of it: as of ``exit_normally``.
    """
    os._exit(4)


@dataclass(frozen=True, slots=True)
class OutOfMemoryKill:
    """Takes memory, then is killed, as by a system that has none left.

    Must come of it: a ``WorkerDiedError`` with SIGKILL whose memory is at least what was taken.

    Attributes:
        size: Bytes that it takes.
    """

    size: int = 1 << 28

    def __call__(self) -> None:
        """Take them, and be killed a moment later."""
        taken = [bytearray(os.urandom(1) * _AT_ONCE) for _ in range(self.size // _AT_ONCE)]
        time.sleep(_MOMENT)
        kill_self()
        taken.clear()


def exhaust_memory() -> None:
    """Ask for more memory than there is. Must come of it: the ``MemoryError``, and its place."""
    taken = []
    for power in range(40, 63):
        taken.append(bytearray(1 << power))


def hang() -> None:
    """Never come back, as a read from a dead server does.

    Must come of it: a warning after 10 s, and after ``stall_timeout`` a ``StallError`` with the
    place and the stack of the worker.
    """
    time.sleep(_LONG)


def hang_in_c() -> None:
    """Never come back, in C code that keeps Python's lock. Must come of it: as of ``hang``."""
    re.match("(a+)+$", "a" * 60 + "b")  # takes 2**60 steps


def raise_unheard() -> None:
    """Raise what no one has heard of. Must come of it: itself, with its traceback and place."""
    raise Unheard("nothing of this kind is known", 7)


class Unheard(Exception):
    """An exception whose constructor takes more than a message.

    Args:
        text: A text.
        code: A number.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Cutting:
    """Cuts off a file that this process may have mapped.

    Must come of it, in a worker: a ``WorkerDiedError`` with SIGBUS and the shard, if what was cut
    off is read.

    Attributes:
        path: The file.
        size: Bytes that are left.
    """

    path: Path
    size: int = 0

    def __call__(self) -> None:
        """Cut it off."""
        os.truncate(self.path, self.size)
