"""How a worker ended, or why it does not go on, in words and facts."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TypeVar

from seqdata.errors import REMEDY, Fact, SeqDataError, StallError, WorkerDiedError
from seqdata.protocols import Store
from seqdata.storage.data_location import DataLocation
from seqdata.storage.shared_memory import AnonymousMemory
from seqdata.storage.views import locate_sequence

Error = TypeVar("Error", bound=SeqDataError)
CALLER = "_answer"  # the function of a worker that calls the transform or data set
_DUMP_TIMEOUT = 2.0  # seconds that a silent worker has to write its stack
_POLL_SECONDS = 0.02
_CRASH = "Fatal Python error"  # how faulthandler begins
_REMEDIES = {
    "SIGKILL": "the system does that where memory runs out: use fewer workers or smaller batches",
    "SIGBUS": "a file was cut off while it was read, or memory ran out: verify the store",
    "SIGSEGV": "a library that the transform uses has crashed: run it alone, with num_workers=0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """What is known of a worker at its end.

    Attributes:
        worker: Its number.
        pid: Of its process.
        is_ready: Whether it had begun with a task.
        sequence: Base number of the sequence that it worked on; None: not known.
        batch_sequences: Base numbers of the sequences of the batch that it worked on.
        peak_kib: The most that it had resident, in KiB.
    """

    worker: int
    pid: int
    is_ready: bool
    sequence: int | None
    batch_sequences: tuple[int, ...]
    peak_kib: int


def make_died_error(
    snapshot: WorkerSnapshot, exitcode: int | None, stack: str, store: Store
) -> WorkerDiedError:
    """Make the error about a worker that is gone."""
    code = 0 if exitcode is None else exitcode
    name = _signal_name(-code) if code < 0 else None
    ending = f"was killed by {name}" if name else f"ended with exit code {exitcode}"
    if name is not None:
        remedy = _REMEDIES.get(name, "look who sent the signal")
    elif not snapshot.is_ready:
        remedy = (
            "its error is printed above; put the call of a script under "
            "`if __name__ == '__main__':`, or pass start_method='fork'"
        )
    else:
        remedy = "the transform or data set ended the process: let it raise an error instead"
    location_text, location = _describe_location(snapshot, store)
    memory = f", with {snapshot.peak_kib / 1024:.0f} MiB of memory" if snapshot.peak_kib else ""
    text = (
        f"worker {snapshot.worker} (pid {snapshot.pid}) {ending} {location_text}{memory}, must "
        f"live; {remedy}"
    )
    return _make_error(
        WorkerDiedError,
        text,
        _extract_crash(stack),
        snapshot,
        location,
        signal=name,
        exitcode=exitcode,
    )


def _extract_crash(stack: str) -> str:
    """Leave out what a process has written before: whoever asks for its stack gets it."""
    start = stack.rfind(_CRASH)
    return "" if start < 0 else stack[start:]


def make_stalled_error(
    snapshot: WorkerSnapshot, seconds: float, stack: str, store: Store
) -> StallError:
    """Make the error about a worker that makes no progress."""
    location_text, location = _describe_location(snapshot, store)
    text = (
        f"worker {snapshot.worker} (pid {snapshot.pid}) made no progress for {seconds:.0f} s "
        f"{location_text}, must "
        "go on; look at its stack, or raise `stall_timeout`"
    )
    return _make_error(StallError, text, stack or "its process gave no stack", snapshot, location)


def describe_slow(snapshot: WorkerSnapshot, seconds: float, store: Store) -> str:
    """Say that a worker takes long."""
    location_text, _ = _describe_location(snapshot, store)
    return (
        f"worker {snapshot.worker} (pid {snapshot.pid}) has made no progress for {seconds:.0f} "
        f"s {location_text}"
    )


def dump_stack(pid: int, stacks: AnonymousMemory) -> str:
    """Ask a process for its stack; empty where it gives none in time."""
    earlier = read_stack(stacks)
    try:
        os.kill(pid, signal.SIGUSR1)
    except OSError:  # it ended in the meantime, which is noticed elsewhere
        return ""
    deadline = time.monotonic() + _DUMP_TIMEOUT
    while time.monotonic() < deadline:
        content = read_stack(stacks)
        time.sleep(_POLL_SECONDS)
        if content != earlier and content == read_stack(stacks):
            return content.removeprefix(earlier)
    return ""


def read_stack(stacks: AnonymousMemory) -> str:
    """Return what a process has written of its stack."""
    return bytes(stacks.mapping[:]).rstrip(b"\0").decode(errors="replace")


def _make_error(
    kind: type[Error],
    text: str,
    stack: str,
    snapshot: WorkerSnapshot,
    location: DataLocation | None,
    **facts: Fact,
) -> Error:
    facts_by_name = dict(location.facts) if location is not None else {}
    facts_by_name |= {
        "worker": snapshot.worker,
        "pid": snapshot.pid,
        "rss": snapshot.peak_kib << 10,
        **facts,
    }
    shown_stack = "".join(f"\n  | {line}" for line in _extract_user_frames(stack))
    remedy, end = facts_by_name.pop("remedy", None), ""
    if remedy is not None and facts.get("signal") == "SIGBUS":  # else no file is to blame
        facts_by_name["remedy"], end = remedy, f"{REMEDY}{remedy}."
    return kind.at(f"loader: {text}{shown_stack}{end}", **facts_by_name)


def _extract_user_frames(stack: str) -> list[str]:
    """Return the lines of a stack down to where the worker calls what it was given."""
    lines = stack.strip().splitlines()
    ends = [number for number, line in enumerate(lines) if line.endswith(f" in {CALLER}")]
    return lines[: ends[0] if ends else len(lines)]


def _describe_location(snapshot: WorkerSnapshot, store: Store) -> tuple[str, DataLocation | None]:
    if snapshot.sequence is not None:
        location = locate_sequence(store, snapshot.sequence)
        return f"at {location}", location
    if not snapshot.is_ready:
        return "before it was ready", None
    if not snapshot.batch_sequences:
        return "while it had nothing to do", None
    location = locate_sequence(store, snapshot.batch_sequences[0])
    more = (
        f" and {len(snapshot.batch_sequences) - 1} more"
        if len(snapshot.batch_sequences) > 1
        else ""
    )
    return f"in the batch of {location}{more}", location


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has none
        return f"signal {number}"
