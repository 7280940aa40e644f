"""The handle of a worker process: its start, its tasks, and errors if it died or stalled."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import numpy as np

from seqdata.errors import (
    REMEDY,
    ConfigError,
    Detail,
    SeqDataError,
    StallError,
    WorkerDiedError,
    must_be,
)
from seqdata.loading.fetcher import Fetcher, WorkerFetcher
from seqdata.loading.options import EngineOptions
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.transforms.declare import qualified_name
from seqdata.loading.workers.forkserver import STACK_SIGNAL, block_signals, get_context
from seqdata.loading.workers.messages import SharedSlots
from seqdata.loading.workers.worker import (
    DeferredPickle,
    WorkerContext,
    collect_fingerprints,
    run_worker,
)
from seqdata.protocols import Store
from seqdata.storage.data_location import DataLocation
from seqdata.storage.shared_memory import AnonymousMemory
from seqdata.storage.views import locate_sequence

LOG = logging.getLogger("seqdata")
_STACK_BYTES = 1 << 16  # bytes
_MAIN = "__main__"
_START_LOCK = threading.Lock()  # processes are started one at a time


@dataclass(slots=True, eq=False)
class WorkerTask:
    """The requests of a task, the slot that they were sent in, and the worker."""

    slot: int
    slot_view: memoryview  # the bytes of the slot
    requests: list[StepRequest]
    worker: WorkerHandle
    # memory of answers that are too large for the slot
    overflow: deque[AnonymousMemory] = field(default_factory=deque)
    # positions of the answers, once the task is finished
    answer_table: list[list[int]] = field(default_factory=list)
    is_finished: bool = False  # no more answers follow
    error: SeqDataError | None = None  # error for which answers are missing
    num_taken: int = 0
    is_abandoned: bool = False  # its answers are discarded


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """A worker process, as seen by the pool."""

    number: int
    pid: int
    process: BaseProcess
    connection: Connection
    stacks: AnonymousMemory
    tasks: deque[WorkerTask] = field(default_factory=deque)
    error: SeqDataError | None = None
    last_progress: int = 0
    idle_seconds: float = 0.0  # observed seconds without progress
    has_warned: bool = False


def start_worker(
    number: int,
    slots: SharedSlots,
    fetcher: WorkerFetcher,
    options: EngineOptions,
    *,
    has_script: bool,
) -> WorkerHandle:
    """Start one worker.

    Args:
        number: Index of the worker in its rank.
        slots: The shared memory of requests and answers.
        fetcher: Fetcher that the worker runs.
        options: The start method and seed.
        has_script: Whether it needs the user's script.

    Raises:
        ConfigError: If the fetcher cannot be pickled, or this process may not start others.
        OSError: If the system has no process or descriptor left.
        EOFError: If the new process or the fork server ends at once.
    """
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            must_be(
                "loader: `num_workers`",
                "0 in a daemon process, such as a worker of another library",
                f"{options.num_workers}",
                "Such a process may not start others",
            )
        )
    mp_context: Any = get_context(options.start_method or default_start_method())
    parent_end, worker_end = mp_context.Pipe(duplex=True)
    stacks = AnonymousMemory(_STACK_BYTES)
    context = WorkerContext(
        number,
        worker_end,
        slots,
        stacks,
        _derive_seed(options, number),
        _is_started_by_main(mp_context),
        DeferredPickle(fetcher),
        collect_fingerprints(fetcher),
    )
    process = mp_context.Process(
        target=run_worker, args=(context,), name=f"seqdata-worker-{number}", daemon=True
    )
    main_module = contextlib.nullcontext() if has_script else _without_main_module()
    try:
        with _START_LOCK, block_signals(), main_module:
            process.start()
    except Exception as error:  # pickling may raise anything
        parent_end.close()
        if isinstance(error, OSError | EOFError) or _is_bootstrapping():
            raise
        raise _make_pickle_error(fetcher, error) from error
    finally:
        worker_end.close()
    return WorkerHandle(number, process.pid or 0, process, parent_end, stacks)


def _is_started_by_main(mp_context: Any) -> bool:
    """Return whether a main thread starts workers: that of this process, or the fork server's."""
    if mp_context.get_start_method() == "forkserver":  # which has no other thread
        return True
    return threading.current_thread() is threading.main_thread()


def _derive_seed(options: EngineOptions, number: int) -> int:
    """Return the seed of a worker's global random generators."""
    seed = [options.seed & 0xFFFFFFFF, options.seed >> 32, options.world.rank, number]
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])


def _make_pickle_error(fetcher: WorkerFetcher, error: Exception) -> ConfigError:
    """Return the error about a fetcher that cannot be sent to a worker."""
    collator = getattr(fetcher.collate, "__self__", None)
    functions = fetcher.reader.transform, getattr(collator, "collate_fn", fetcher.collate)
    failing = [qualified_name(each) for each in functions if not _is_picklable(each)]
    remedy = choose_remedy(fetcher, "pass start_method='fork'")
    return ConfigError(
        f"loader: {', '.join(failing) or 'the store'} cannot be pickled for a worker process "
        f"({error}). Define functions in a module, or {remedy}."
    )


def _is_picklable(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception as error:  # pickling may raise anything
        LOG.debug("cannot be pickled: %s", error)
        return False
    return True


def choose_remedy(fetcher: WorkerFetcher, remedy: str) -> str:
    """Return a remedy by an option of a Loader, or another for a call that lacks the option."""
    return remedy if isinstance(fetcher, Fetcher) else "pass num_workers=0"


def default_start_method() -> str:
    """Return the default start method: never ``fork``, since the process has threads."""
    methods = multiprocessing.get_all_start_methods()
    return "forkserver" if "forkserver" in methods else "spawn"


def needs_script(fetcher: WorkerFetcher, options: EngineOptions) -> bool:
    """Return whether workers may need the user's script."""
    if options.start_method == "fork":  # forked workers have it
        return True
    try:
        return _MAIN.encode() in pickle.dumps(fetcher)
    except Exception as error:  # pickling may raise anything; starting a worker reports it
        LOG.debug("what workers need: %s", error)
        return True


def _is_bootstrapping() -> bool:
    """Return whether this process is still importing its script, and may not start others."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Prevent a new process from running the user's script again.

    It would import what the script imports, for seconds, and run all of a script that does not
    check for ``__main__``. The module is looked up only while a process is started.
    """
    script = sys.modules[_MAIN]
    sys.modules[_MAIN] = types.ModuleType(_MAIN)
    try:
        yield
    finally:
        sys.modules[_MAIN] = script


Error = TypeVar("Error", bound=SeqDataError)
CALLER = "_answer"  # the worker's function that calls the transform or dataset
_DUMP_TIMEOUT = 2.0  # seconds for a silent worker to write its stack
_POLL_SECONDS = 0.02
_CRASH = "Fatal Python error"  # the beginning of faulthandler's output
_REMEDIES = {
    "SIGKILL": (
        "the system kills a process when memory runs out: use fewer workers or smaller batches"
    ),
    "SIGBUS": "a file was truncated while it was read, or memory ran out: verify the store",
    "SIGSEGV": (
        "compiled code of the transform, dataset or a library crashed: debug it with num_workers=0"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """The state of a worker when it ended or stalled.

    Attributes:
        worker: Index of the worker.
        pid: Id of its process.
        is_ready: Whether it had begun a task.
        sequence: Base index of its current sequence; None if unknown.
        batch_sequences: Base indices of the sequences of its current batch.
        peak_kib: Peak resident memory of its process, in KiB.
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
"""Advice on a worker that ends before it is ready."""


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
        remedy = "the transform or dataset ended the process: raise an error there instead"
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
    """Return the output from a crash on; empty without a crash."""
    start = stack.rfind(_CRASH)
    return "" if start < 0 else stack[start:]


def make_stalled_error(
    snapshot: WorkerSnapshot, seconds: float, stack: str, store: Store, remedy: str
) -> StallError:
    """Return the error about a worker that makes no progress."""
    location_text, location = _describe_location(snapshot, store)
    text = (
        f"worker {snapshot.worker} (pid {snapshot.pid}) made no progress for {seconds:.0f} s "
        f"{location_text}. Look at its stack, or {remedy}"
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
