"""Faults of worker processes: transforms that harm their own process, and signals.

``FaultTransform`` returns all sequences unchanged, and acts when it sees a certain one. The
docstring of each act has the expected outcome.
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
        act: Action; None: no action.
        field: The field that identifies the sequence.
        value: Value of this field.
        note: A file to which the time of the act (``time.monotonic``) is written.
        gate: A file: from its ninth sequence on, a process waits until the file exists, and creates
            the file ``HOLDS`` + its process id. So work is left when the fault happens.
        among: Number of processes that must have seen a sequence before it acts.
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

    Expected for SIGKILL to a worker: a ``WorkerDiedError`` with ``pid``, ``signal`` and the last
    location, within 2 s, after the batches that were finished. For SIGKILL to the training process:
    no worker is left after 5 s. For SIGTERM to both: the workers continue until the training
    process decides.

    Args:
        pid: The process.
        number: The signal.
    """
    os.kill(pid, number)


def is_stopped(pid: int) -> bool:
    """Return whether all threads of a process are stopped or have ended."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(path.read_text().rpartition(")")[2].split()[0] in "TZX" for path in threads)


def kill_self() -> None:
    """Kill this process with SIGKILL, like a system that is out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)  # it comes at once


def crash() -> None:
    """End this process with SIGSEGV, like a broken library. Expected: as for ``kill``."""
    ctypes.string_at(0)


def exit_normally() -> None:
    """End this process like ``sys.exit``.

    Expected: a ``WorkerDiedError`` with ``exitcode`` and the last location, within 2 s.
    """
    raise SystemExit(3)


def exit_at_once() -> None:
    """End this process at once; no handler runs.

    Expected: as for ``exit_normally``.
    """
    os._exit(4)


@dataclass(frozen=True, slots=True)
class OutOfMemoryKill:
    """Act that allocates memory and then kills this process, like a system that is out of memory.

    Expected: a ``WorkerDiedError`` with SIGKILL, whose memory is at least ``size``.

    Attributes:
        size: Number of bytes to allocate.
    """

    size: int = 1 << 28

    def __call__(self) -> None:
        """Allocate memory, and kill this process a moment later."""
        taken = [bytearray(os.urandom(1) * _AT_ONCE) for _ in range(self.size // _AT_ONCE)]
        time.sleep(_MOMENT)
        kill_self()
        taken.clear()


def exhaust_memory() -> None:
    """Allocate more memory than there is. Expected: the ``MemoryError``, with its location."""
    taken = []
    for power in range(40, 63):
        taken.append(bytearray(1 << power))


def hang() -> None:
    """Never return, like a read from a dead server.

    Expected: a warning after 10 s, and after ``stall_timeout`` a ``StallError`` with the location
    and the stack of the worker.
    """
    time.sleep(_LONG)


def hang_in_c() -> None:
    """Never return, in C code that holds the GIL. Expected: as for ``hang``."""
    re.match("(a+)+$", "a" * 60 + "b")  # takes 2**60 steps


def raise_unheard() -> None:
    """Raise an unknown exception. Expected: this exception, with its traceback and location."""
    raise Unheard("nothing of this kind is known", 7)


class Unheard(Exception):
    """An exception whose constructor takes more than a message.

    Args:
        text: Message.
        code: A number.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Cutting:
    """Act that truncates a file that this process may have mapped.

    Expected in a worker: a ``WorkerDiedError`` with SIGBUS and the shard, if the lost part is read.

    Attributes:
        path: The file.
        size: New size in bytes.
    """

    path: Path
    size: int = 0

    def __call__(self) -> None:
        """Truncate the file."""
        os.truncate(self.path, self.size)
