"""The handle of a worker process: its tasks, and how it is started."""

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

from seqdata.errors import ConfigError, SeqDataError, must_be
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
_START_LOCK = threading.Lock()  # processes are started one at a time


@dataclass(slots=True, eq=False)
class WorkerTask:
    """The requests of a task, the slot that they were sent in, and the worker."""

    slot: int
    slot_view: memoryview  # the bytes of the slot
    requests: list[StepRequest]
    worker: WorkerHandle
    overflow: deque[AnonymousMemory] = field(
        default_factory=deque
    )  # memory of answers that are too large for the slot
    answer_table: list[list[int]] = field(
        default_factory=list
    )  # places of the answers, once it is finished
    is_finished: bool = False  # no more answers follow
    error: SeqDataError | None = None  # why answers are missing
    num_taken: int = 0
    is_abandoned: bool = False  # its answers are not wanted


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
        number: Number of the worker in its rank.
        slots: The shared memory of requests and answers.
        fetcher: Does the work.
        options: The start method and seed.
        has_script: Whether it needs the user's script.

    Raises:
        ConfigError: If the fetcher cannot be pickled, or this process may not start others.
        OSError: If the system has no process or descriptor left.
    """
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            must_be(
                "loader: `num_workers`",
                "0",
                f"{options.num_workers} inside of another library's worker process",
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
    functions = [f for f in (fetcher.reader.transform, fetcher.collate) if f is not None]
    names = ", ".join([*map(qualified_name, functions), "the store"])
    return ConfigError(
        f"loader: {names} cannot be pickled for a worker process ({error}). Define functions in a "
        "module, or pass start_method='fork'."
    )


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
