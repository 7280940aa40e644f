"""How a worker ended, or why it does not go on, in words and facts.

Place in the flow: the crew asks when a worker is gone or silent. Reads: exit codes, status, stacks.
Makes: errors.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TypeVar

from seqdata.errors import REMEDY, Fact, SeqDataError, StallError, WorkerDiedError
from seqdata.protocols import Store
from seqdata.storage.data_location import Place
from seqdata.storage.shared_memory import Anonymous
from seqdata.storage.views import place_of

Made = TypeVar("Made", bound=SeqDataError)
CALLER = "_answer"  # the function of a worker that calls the transform or data set
_DUMP = 2.0  # seconds that a silent worker has to write its stack
_LOOK = 0.02
_CRASH = "Fatal Python error"  # how faulthandler begins
_REMEDIES = {
    "SIGKILL": "the system does that where memory runs out: use fewer workers or smaller batches",
    "SIGBUS": "a file was cut off while it was read, or memory ran out: verify the store",
    "SIGSEGV": "a library that the transform uses has crashed: run it alone, with num_workers=0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """What is known of a worker at its end.

    Attributes:
        worker: Its number.
        pid: Of its process.
        ready: Whether it had begun with a task.
        sequence: Base number of the sequence that it worked on; None: not known.
        among: Base numbers of the sequences of the batch that it worked on.
        memory: The most that it had resident, in KiB.
    """

    worker: int
    pid: int
    ready: bool
    sequence: int | None
    among: tuple[int, ...]
    memory: int


def died(last: Last, exitcode: int | None, stack: str, store: Store) -> WorkerDiedError:
    """Make the error about a worker that is gone."""
    code = 0 if exitcode is None else exitcode
    name = _signal_name(-code) if code < 0 else None
    how = f"was killed by {name}" if name else f"ended with exit code {exitcode}"
    if name is not None:
        remedy = _REMEDIES.get(name, "look who sent the signal")
    elif not last.ready:
        remedy = (
            "its error is printed above; put the call of a script under "
            "`if __name__ == '__main__':`, or pass start_method='fork'"
        )
    else:
        remedy = "the transform or data set ended the process: let it raise an error instead"
    where, place = _where(last, store)
    memory = f", with {last.memory / 1024:.0f} MiB of memory" if last.memory else ""
    text = f"worker {last.worker} (pid {last.pid}) {how} {where}{memory}, must live; {remedy}"
    return _made(
        WorkerDiedError, text, _of_the_crash(stack), last, place, signal=name, exitcode=exitcode
    )


def _of_the_crash(stack: str) -> str:
    """Leave out what a process has written before: whoever asks for its stack gets it."""
    at = stack.rfind(_CRASH)
    return "" if at < 0 else stack[at:]


def stalled(last: Last, seconds: float, stack: str, store: Store) -> StallError:
    """Make the error about a worker that makes no progress."""
    where, place = _where(last, store)
    text = (
        f"worker {last.worker} (pid {last.pid}) made no progress for {seconds:.0f} s {where}, must "
        "go on; look at its stack, or raise `stall_timeout`"
    )
    return _made(StallError, text, stack or "its process gave no stack", last, place)


def slow(last: Last, seconds: float, store: Store) -> str:
    """Say that a worker takes long."""
    where, _ = _where(last, store)
    return f"worker {last.worker} (pid {last.pid}) has made no progress for {seconds:.0f} s {where}"


def stack_of(pid: int, stacks: Anonymous) -> str:
    """Ask a process for its stack; empty where it gives none in time."""
    before = read_stack(stacks)
    try:
        os.kill(pid, signal.SIGUSR1)
    except OSError:  # it ended in the meantime, which is noticed elsewhere
        return ""
    until = time.monotonic() + _DUMP
    while time.monotonic() < until:
        now = read_stack(stacks)
        time.sleep(_LOOK)
        if now != before and now == read_stack(stacks):
            return now.removeprefix(before)
    return ""


def read_stack(stacks: Anonymous) -> str:
    """Give what a process has written of its stack."""
    return bytes(stacks.mapping[:]).rstrip(b"\0").decode(errors="replace")


def _made(
    kind: type[Made], text: str, stack: str, last: Last, place: Place | None, **facts: Fact
) -> Made:
    known = dict(place.facts) if place is not None else {}
    known |= {"worker": last.worker, "pid": last.pid, "rss": last.memory << 10, **facts}
    shown = "".join(f"\n  | {line}" for line in _of_the_user(stack))
    remedy, end = known.pop("remedy", None), ""
    if remedy is not None and facts.get("signal") == "SIGBUS":  # else no file is to blame
        known["remedy"], end = remedy, f"{REMEDY}{remedy}."
    return kind.at(f"loader: {text}{shown}{end}", **known)


def _of_the_user(stack: str) -> list[str]:
    """Give the lines of a stack down to where the worker calls what it was given."""
    lines = stack.strip().splitlines()
    ends = [number for number, line in enumerate(lines) if line.endswith(f" in {CALLER}")]
    return lines[: ends[0] if ends else len(lines)]


def _where(last: Last, store: Store) -> tuple[str, Place | None]:
    if last.sequence is not None:
        place = place_of(store, last.sequence)
        return f"at {place}", place
    if not last.ready:
        return "before it was ready", None
    if not last.among:
        return "while it had nothing to do", None
    place = place_of(store, last.among[0])
    more = f" and {len(last.among) - 1} more" if len(last.among) > 1 else ""
    return f"in the batch of {place}{more}", place


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has none
        return f"signal {number}"
