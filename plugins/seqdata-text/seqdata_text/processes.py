"""Processes that tokenize, and the lock that lets one program at a time fill a folder."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

_THREADS_OF_TOKENIZERS = "TOKENIZERS_PARALLELISM"
_MAIN = "__main__"
_LOCK = ".seqdata-text.lock"


class Processes(ProcessPoolExecutor):
    """Worker processes that do not import the user's script, and end when their parent ends.

    Args:
        count: Number of processes.
    """

    def __init__(self, count: int) -> None:
        methods = multiprocessing.get_all_start_methods()  # never fork: the process has threads
        method = "forkserver" if "forkserver" in methods else "spawn"
        context = multiprocessing.get_context(method)
        super().__init__(count, mp_context=context, initializer=_begin)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a call; a process that starts for it does not run the user's script again."""
        script = sys.modules[_MAIN]
        sys.modules[_MAIN] = types.ModuleType(_MAIN)
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            sys.modules[_MAIN] = script


def _begin() -> None:
    """Prepare a worker: one thread for tokenizers, Ctrl-C left to the parent."""
    os.environ[_THREADS_OF_TOKENIZERS] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])  # ends: when the parent does, whose death it reports
    os._exit(1)


def choose_workers(num_workers: int | None, parts: int) -> int:
    """Return the number of worker processes; 0: the work is done in this process.

    Args:
        num_workers: The number asked for; None: one for each processor.
        parts: Number of parts of the work.
    """
    if multiprocessing.current_process().daemon or parts < 2:  # may not have children
        return 0
    wanted = count_processors() if num_workers is None else num_workers
    return min(wanted, parts) if wanted > 1 or num_workers == 1 else 0


def count_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create a folder, and hold an exclusive lock on it within the block; wait until it is free.

    The operating system releases the lock if the process dies. On a file system without locks
    nothing is held; the writer of the store then refuses a folder that another writer uses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            import logging

            logging.getLogger("seqdata.text").debug("no locks in %s: %s", folder, error)
        yield
    finally:
        os.close(descriptor)
