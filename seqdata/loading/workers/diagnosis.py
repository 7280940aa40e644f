"""Diagnoses a dead or stalled worker, and builds the error about it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TypeVar

from seqdata.errors import REMEDY, Detail, SeqDataError, StallError, WorkerDiedError
from seqdata.loading.workers.forkserver import STACK_SIGNAL
from seqdata.protocols import Store
from seqdata.storage.data_location import DataLocation
from seqdata.storage.shared_memory import AnonymousMemory
from seqdata.storage.views import locate_sequence

Error = TypeVar("Error", bound=SeqDataError)
CALLER = "_answer"  # the worker's function that calls the transform or data set
_DUMP_TIMEOUT = 2.0  # seconds for a silent worker to write its stack
_POLL_SECONDS = 0.02
_CRASH = "Fatal Python error"  # the beginning of faulthandler's output
_REMEDIES = {
    "SIGKILL": (
        "the system kills a process when memory runs out: use fewer workers or smaller batches"
    ),
    "SIGBUS": "a file was truncated while it was read, or memory ran out: verify the store",
    "SIGSEGV": "a library that the transform uses crashed: run the transform with num_workers=0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """The state of a worker when it ended or stalled.

    Attributes:
        worker: Number of the worker.
        pid: Id of its process.
        is_ready: Whether it had begun a task.
        sequence: Base number of its current sequence; None if unknown.
        batch_sequences: Base numbers of the sequences of its current batch.
        peak_kib: Its peak resident memory, in KiB.
    """

    worker: int
    pid: int
    is_ready: bool
    sequence: int | None
    batch_sequences: tuple[int, ...]
    peak_kib: int


SCRIPT_REMEDY = (
    "its error is printed above; put the call of a script under `if __name__ == '__main__':`, or "
    "pass start_method='fork'"
)
"""What to do about a worker that ends before it is ready."""


def make_died_error(
    snapshot: WorkerSnapshot, exitcode: int | None, stack: str, store: Store
) -> WorkerDiedError:
    """Return the error about a worker that has ended."""
    code = 0 if exitcode is None else exitcode
    name = _signal_name(-code) if code < 0 else None
    ending = f"was killed by {name}" if name else f"ended with exit code {exitcode}"
    if name is not None:
        remedy = _REMEDIES.get(name, "find out what sent the signal")
    elif not snapshot.is_ready:
        remedy = SCRIPT_REMEDY
    else:
        remedy = "the transform or data set ended the process: raise an error there instead"
    location_text, location = _describe_location(snapshot, store)
    memory = f", with {snapshot.peak_kib / 1024:.0f} MiB of memory" if snapshot.peak_kib else ""
    text = (
        f"worker {snapshot.worker} (pid {snapshot.pid}) {ending} {location_text}{memory}: {remedy}"
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
    """Return the part of the output that begins with a crash, if there was one."""
    start = stack.rfind(_CRASH)
    return "" if start < 0 else stack[start:]


def make_stalled_error(
    snapshot: WorkerSnapshot, seconds: float, stack: str, store: Store
) -> StallError:
    """Return the error about a worker that makes no progress."""
    location_text, location = _describe_location(snapshot, store)
    text = (
        f"worker {snapshot.worker} (pid {snapshot.pid}) made no progress for {seconds:.0f} s "
        f"{location_text}. Look at its stack, or raise `stall_timeout`"
    )
    return _make_error(StallError, text, stack or "its process wrote no stack", snapshot, location)


def describe_slow(snapshot: WorkerSnapshot, seconds: float, store: Store) -> str:
    """Return the warning about a worker that takes long."""
    location_text, _ = _describe_location(snapshot, store)
    return (
        f"worker {snapshot.worker} (pid {snapshot.pid}) has made no progress for {seconds:.0f} "
        f"s {location_text}"
    )


def dump_stack(pid: int, stacks: AnonymousMemory) -> str:
    """Return the stack of a process, requested by a signal; empty if it writes none in time."""
    earlier = read_stack(stacks)
    try:
        os.kill(pid, STACK_SIGNAL)
    except OSError:  # it has ended, which is noticed elsewhere
        return ""
    deadline = time.monotonic() + _DUMP_TIMEOUT
    while time.monotonic() < deadline:
        content = read_stack(stacks)
        time.sleep(_POLL_SECONDS)
        if content != earlier and content == read_stack(stacks):
            return content.removeprefix(earlier)
    return ""


def read_stack(stacks: AnonymousMemory) -> str:
    """Return the stack that a process has written."""
    return bytes(stacks.mapping[:]).rstrip(b"\0").decode(errors="replace")


def _make_error(
    error_type: type[Error],
    text: str,
    stack: str,
    snapshot: WorkerSnapshot,
    location: DataLocation | None,
    **details: Detail,
) -> Error:
    details_by_name = dict(location.details) if location is not None else {}
    details_by_name |= {
        "worker": snapshot.worker,
        "pid": snapshot.pid,
        "rss": snapshot.peak_kib << 10,
        **details,
    }
    shown_stack = "".join(f"\n  | {line}" for line in _extract_user_frames(stack))
    remedy, end = details_by_name.pop("remedy", None), ""
    if remedy is not None and details.get("signal") == "SIGBUS":  # otherwise no file caused it
        details_by_name["remedy"], end = remedy, f"{REMEDY}{remedy}."
    return error_type.at(f"loader: {text}{shown_stack}{end}", **details_by_name)


def _extract_user_frames(stack: str) -> list[str]:
    """Return the lines of a stack down to the worker's call of user code."""
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
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
