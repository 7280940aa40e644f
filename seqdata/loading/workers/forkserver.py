"""The fork server of workers, by which signals to a job are left to the training process.

A cluster sends SIGTERM or SIGUSR1 to every process of a job, a terminal Ctrl-C or SIGHUP. A worker
starts with these signals blocked and then ignores them. They end the fork server of
``multiprocessing`` and its processes, so workers have a server of their own, which has imported
what a worker needs.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import io
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import (
    context,
    forkserver,
    popen_forkserver,
    process,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from multiprocessing.forkserver import ForkServer, read_signed
from multiprocessing.process import BaseProcess
from typing import Any

PARENT_SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
"""Signals that are left to the training process."""
STACK_SIGNAL = signal.SIGUSR1
"""The signal on which a worker writes its stack and continues."""

_SOCKET = "/listener-abcdefgh"  # appended by multiprocessing
_MAX_SOCKET_PATH = 103  # longest path of a socket, in bytes, on any system
_REQUEST_PIPES = 4  # with as many descriptors as the start of a process takes, and two more
_SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
_SET_PARENT_DEATH_SIGNAL = 1  # of Linux's prctl
_ALIVE_PIPE = "_forkserver_alive_fd"  # attribute in which multiprocessing keeps that pipe
_PRELOADED = ["seqdata.loading.workers.worker"]


@contextmanager
def block_signals() -> Iterator[None]:
    """Block ``PARENT_SIGNALS`` in started processes, until they call ``ignore_signals``.

    ``multiprocessing``'s tracker must already run, since starting it unblocks them.
    """
    blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


def ignore_signals() -> None:
    """Ignore ``PARENT_SIGNALS`` except ``STACK_SIGNAL``; called in the main thread."""
    for number in PARENT_SIGNALS:
        if number != STACK_SIGNAL:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENT_SIGNALS)


def end_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux only).

    A thread that watches the parent would not run while a library holds the GIL. This process's
    copy of the fork server's pipe is closed: the server ends once all copies are closed.
    """
    alive_pipe = getattr(forkserver._forkserver, _ALIVE_PIPE, None)
    if alive_pipe is not None:
        os.close(alive_pipe)
        setattr(forkserver._forkserver, _ALIVE_PIPE, None)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))


def get_context(method: str) -> Any:
    """Return the context of a start method, as ``multiprocessing.get_context``, ready to start.

    Args:
        method: ``fork``, ``forkserver`` or ``spawn``.
    """
    if method != "fork":
        with block_signals():  # for the tracker, which itself ignores only Ctrl-C and SIGTERM
            resource_tracker.ensure_running()
    return _Context() if method == "forkserver" else multiprocessing.get_context(method)


class _Popen(popen_forkserver.Popen):
    """A process that this fork server starts."""

    _fds: list[int]

    def _launch(self, process_obj: BaseProcess) -> None:
        data = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process_obj.name), data)
            reduction.dump(process_obj, data)
        finally:
            context.set_spawning_popen(None)
        self.sentinel, writer = _get_server(os.getpid()).connect_to_new_process(self._fds)
        alive = os.dup(writer)  # closed at the parent's end, which the child notices
        self.finalizer = util.Finalize(self, _close_descriptors, (alive, self.sentinel))
        with open(writer, "wb") as file:
            file.write(data.getbuffer())
        self.pid = read_signed(self.sentinel)


def _close_descriptors(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class _Process(context.ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: BaseProcess) -> _Popen:
        return _Popen(process_obj)


class _Context(context.ForkServerContext):
    Process = _Process


class _Server(ForkServer):
    """A fork server whose socket has a short path, also if that of TMPDIR is long."""

    def ensure_running(self) -> None:
        config: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
        usual_folder = util.get_temp_dir()
        config["tempdir"] = _find_short_folder(usual_folder, os.getpid())
        try:
            super().ensure_running()
        finally:
            config["tempdir"] = usual_folder

    def connect_to_new_process(self, fds: Sequence[int]) -> tuple[int, int]:
        """Request a process; see ``ForkServer``.

        A request that is cut off for lack of descriptors would end the server with all workers, so
        spare descriptors are opened first.

        Raises:
            OSError: If too few descriptors are left.
        """
        spare: list[int] = []
        try:
            for _ in range(_REQUEST_PIPES):
                spare.extend(os.pipe())
        finally:
            _close_descriptors(*spare)
        result: tuple[int, int] = super().connect_to_new_process(fds)
        return result


@functools.cache
def _find_short_folder(folder: str, pid: int) -> str:
    """Return a folder for a process's sockets: the given one, or one with a shorter path.

    Raises:
        OSError: If no other folder can be written to.
    """
    del pid
    if len(os.fsencode(folder)) + len(_SOCKET) <= _MAX_SOCKET_PATH:
        return folder
    for base in _SHORT_FOLDERS:
        if os.path.isdir(base) and os.access(base, os.W_OK | os.X_OK):
            short_folder = tempfile.mkdtemp(prefix="pymp-", dir=base)
            util.Finalize(None, shutil.rmtree, args=(short_folder, True), exitpriority=-100)
            return short_folder
    raise OSError(
        errno.ENAMETOOLONG,
        f"{folder}: must be at most {_MAX_SOCKET_PATH - len(_SOCKET)} bytes long, to leave room "
        f"for a socket, but is {len(os.fsencode(folder))}. Set TMPDIR to a shorter path",
    )


@functools.cache
def _get_server(pid: int) -> ForkServer:
    """Return the fork server of this process; a forked process has another."""
    del pid
    server = _Server()
    server.set_forkserver_preload(_PRELOADED)
    return server
