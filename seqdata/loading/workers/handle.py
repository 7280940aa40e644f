"""One worker process as the crew sees it, the tasks that it has, and how it is started."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import pickle
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from seqdata.errors import ConfigError, SeqDataError
from seqdata.loading.fetcher import WorkerFetcher
from seqdata.loading.options import EngineOptions
from seqdata.loading.step_requests import StepRequest
from seqdata.loading.transforms.declare import qualified_name
from seqdata.loading.workers.forkserver import block_signals, get_context
from seqdata.loading.workers.shared_slots import SharedSlots
from seqdata.loading.workers.worker import (
    DeferredPickle,
    WorkerContext,
    collect_fingerprints,
    run_worker,
)
from seqdata.storage.shared_memory import AnonymousMemory

LOG = logging.getLogger("seqdata")
_STACK_BYTES = 1 << 16  # bytes
_MAIN = "__main__"
_START_LOCK = threading.Lock()  # one process is started at a time


@dataclass(slots=True, eq=False)
class WorkerTask:
    """Some requests, the slot that they went out in, and who works on them."""

    slot: int
    slot_view: memoryview  # of the slot
    requests: list[StepRequest]
    worker: WorkerHandle
    overflow: deque[AnonymousMemory] = field(default_factory=deque)  # memory of answers too large
    answer_table: list[list[int]] = field(
        default_factory=list
    )  # of its answers, once it is finished
    is_finished: bool = False  # no more answers will come
    error: SeqDataError | None = None  # why answers are missing
    num_taken: int = 0
    is_abandoned: bool = False  # nobody takes it


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """One worker process, as the crew sees it."""

    number: int
    pid: int
    process: BaseProcess
    connection: Connection
    stacks: AnonymousMemory
    tasks: deque[WorkerTask] = field(default_factory=deque)
    error: SeqDataError | None = None
    last_progress: int = 0
    idle_seconds: float = 0.0  # seconds without progress, as far as they were looked at
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
        number: Among the workers of its rank.
        slots: Where requests and answers lie.
        fetcher: What it does.
        options: How it is started.
        has_script: Whether it needs something of the user's script.

    Raises:
        ConfigError: If what it needs cannot be sent, or this process may start none.
        OSError: If the system gives no process or descriptor.
    """
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            f"loader: `num_workers` is {options.num_workers} inside of a worker process of "
            "somebody else, must be 0; it may start none of its own"
        )
    mp_context: Any = get_context(options.start_method or default_start_method())
    parent_end, worker_end = mp_context.Pipe(duplex=True)
    stacks = AnonymousMemory(_STACK_BYTES)
    seed = [options.seed & 0xFFFFFFFF, options.seed >> 32, options.world.rank, number]
    state = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    is_started_by_main = threading.current_thread() is threading.main_thread()
    is_started_by_main |= mp_context.get_start_method() == "forkserver"  # which has no other thread
    context = WorkerContext(
        number,
        worker_end,
        slots,
        stacks,
        int(state[0]),
        is_started_by_main,
        DeferredPickle(fetcher),
        collect_fingerprints(fetcher),
    )
    process = mp_context.Process(
        target=run_worker, args=(context,), name=f"seqdata-worker-{number}", daemon=True
    )
    try:
        with (
            _START_LOCK,
            block_signals(),
            contextlib.nullcontext() if has_script else _without_main_module(),
        ):
            process.start()
    except Exception as error:  # pickling runs anybody's code
        parent_end.close()
        if isinstance(error, OSError) or _is_bootstrapping():
            raise
        functions = [
            function
            for function in (fetcher.reader.transform, fetcher.collate)
            if function is not None
        ]
        names = ", ".join([*map(qualified_name, functions), "the store"])
        raise ConfigError(
            f"loader: {names} cannot be sent to a worker process ({error}), must be; write "
            "functions in a module, or pass start_method='fork'"
        ) from error
    finally:
        worker_end.close()
    return WorkerHandle(number, process.pid or 0, process, parent_end, stacks)


def default_start_method() -> str:
    """Return how workers are started where nobody says: not as copies of a process with threads."""
    methods = multiprocessing.get_all_start_methods()
    return "forkserver" if "forkserver" in methods else "spawn"


def needs_script(fetcher: WorkerFetcher, options: EngineOptions) -> bool:
    """Return whether workers need something of the user's script, or may."""
    if options.start_method == "fork":  # they have it
        return True
    try:
        return _MAIN.encode() in pickle.dumps(fetcher)
    except Exception as error:  # pickling runs anybody's code; starting a worker says what is wrong
        LOG.debug("what workers need: %s", error)
        return True


def _is_bootstrapping() -> bool:
    """Return whether this process still runs a script again, to begin: it may start none."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Keep a new process from running the user's script again.

    It would import what the script imports, for seconds, and run all of a script that does not
    look for ``__main__``. The module is looked up while a process is started, and nowhere else.
    """
    script = sys.modules[_MAIN]
    sys.modules[_MAIN] = types.ModuleType(_MAIN)
    try:
        yield
    finally:
        sys.modules[_MAIN] = script
