"""One worker process as the crew sees it, the tasks that it has, and how it is started.

Place in the flow: the crew holds members. Makes: processes.
"""

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
from seqdata.loading.fetcher import Work
from seqdata.loading.options import PlayOptions
from seqdata.loading.step_requests import Request
from seqdata.loading.transforms.declare import name_of
from seqdata.loading.workers.forkserver import context_of, undisturbed
from seqdata.loading.workers.shared_slots import Arena
from seqdata.loading.workers.worker import Desk, Sealed, data_of, work
from seqdata.storage.shared_memory import Anonymous

LOG = logging.getLogger("seqdata")
_STACK = 1 << 16  # bytes
_MAIN = "__main__"
_STARTING = threading.Lock()  # one process is started at a time


@dataclass(slots=True, eq=False)
class Task:
    """Some requests, the slot that they went out in, and who works on them."""

    slot: int
    content: memoryview  # of the slot
    requests: list[Request]
    member: Member
    own: deque[Anonymous] = field(default_factory=deque)  # memory of answers too large
    places: list[list[int]] = field(default_factory=list)  # of its answers, once it is finished
    finished: bool = False  # no more answers will come
    lost: SeqDataError | None = None  # why answers are missing
    taken: int = 0
    stale: bool = False  # nobody takes it


@dataclass(slots=True, eq=False)
class Member:
    """One worker process, as the crew sees it."""

    number: int
    pid: int
    process: BaseProcess
    connection: Connection
    stacks: Anonymous
    tasks: deque[Task] = field(default_factory=deque)
    gone: SeqDataError | None = None
    seen: int = 0
    quiet: float = 0.0  # seconds without progress, as far as they were looked at
    warned: bool = False


def started(
    number: int, arena: Arena, fetching: Work, options: PlayOptions, *, script: bool
) -> Member:
    """Start one worker.

    Args:
        number: Among the workers of its rank.
        arena: Where requests and answers lie.
        fetching: What it does.
        options: How it is started.
        script: Whether it needs something of the user's script.

    Raises:
        ConfigError: If what it needs cannot be sent, or this process may start none.
        OSError: If the system gives no process or descriptor.
    """
    if multiprocessing.current_process().daemon:
        raise ConfigError(
            f"loader: `num_workers` is {options.num_workers} inside of a worker process of "
            "somebody else, must be 0; it may start none of its own"
        )
    context: Any = context_of(options.start_method or default_start_method())
    ours, theirs = context.Pipe(duplex=True)
    stacks = Anonymous(_STACK)
    seed = [options.seed & 0xFFFFFFFF, options.seed >> 32, options.world.rank, number]
    state = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    by_main = threading.current_thread() is threading.main_thread()
    by_main |= context.get_start_method() == "forkserver"  # which has no other thread
    desk = Desk(
        number, theirs, arena, stacks, int(state[0]), by_main, Sealed(fetching), data_of(fetching)
    )
    process = context.Process(
        target=work, args=(desk,), name=f"seqdata-worker-{number}", daemon=True
    )
    try:
        with _STARTING, undisturbed(), contextlib.nullcontext() if script else _alone():
            process.start()
    except Exception as error:  # pickling runs anybody's code
        ours.close()
        if isinstance(error, OSError) or _begins():
            raise
        functions = [
            one for one in (fetching.reading.transform, fetching.collate) if one is not None
        ]
        what = ", ".join([*map(name_of, functions), "the store"])
        raise ConfigError(
            f"loader: {what} cannot be sent to a worker process ({error}), must be; write "
            "functions in a module, or pass start_method='fork'"
        ) from error
    finally:
        theirs.close()
    return Member(number, process.pid or 0, process, ours, stacks)


def default_start_method() -> str:
    """Give how workers are started where nobody says: not as copies of a process with threads."""
    methods = multiprocessing.get_all_start_methods()
    return "forkserver" if "forkserver" in methods else "spawn"


def needs_script(fetching: Work, options: PlayOptions) -> bool:
    """Tell whether workers need something of the user's script, or may."""
    if options.start_method == "fork":  # they have it
        return True
    try:
        return _MAIN.encode() in pickle.dumps(fetching)
    except Exception as error:  # pickling runs anybody's code; starting a worker says what is wrong
        LOG.debug("what workers need: %s", error)
        return True


def _begins() -> bool:
    """Tell whether this process still runs a script again, to begin: it may start none."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


@contextmanager
def _alone() -> Iterator[None]:
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
