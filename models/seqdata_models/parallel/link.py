"""The link between processes: notices, signs of life, and one error for all.

Before a process waits for a value, it waits for the notice that the value was sent: a key of a
``TCPStore``. So it sees in time that another process has raised, was killed or stands still, where
a receive of gloo would block until its timeout and then name a socket. Place in the flow: below
``mesh``. Reads: the store that rank 0 keeps. Makes: the same error on every process.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import itertools
import json
import math
import os
import pickle
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NoReturn

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from seqdata import PeerFailedError, SeqDataError, SeqDataWarning

_SLICE = timedelta(seconds=0.5)
_ERROR, _CLOSED = "error", "closed"
_LEAST_SECONDS = 1e-3  # of a thread's processor time: less is none
_LEAST_SHARE = 0.02  # of one processor, of all other threads


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimeouts:
    """Bounds on the time that processes wait for each other, in seconds.

    Attributes:
        heartbeat: Between two signs of life; they come from a thread.
        unresponsive: Without a sign: the process was killed or stopped. Or, within an update,
            without any processor time, though the process does not wait for another: it stands
            still. A long computation has processor time, and may last. In a debugger, raise it.
        stall: Without the value that is waited for, though its process gives signs and computes.
        exit_grace: For a process to end by itself once one has failed.
    """

    heartbeat: float = 1.0
    unresponsive: float = 6.0
    stall: float = 600.0
    exit_grace: float = 5.0


class Link:
    """Notices and errors between processes, through a store that rank 0 keeps.

    A thread gives a sign of life every second, looks at those of the others, and ends a process
    whose main thread does not come back after another process has failed.

    Attributes:
        place: Role of this process, for errors.
    """

    def __init__(self, rank: int, world: int, timeouts: LinkTimeouts) -> None:
        self._rank, self._world, self._timeouts = rank, world, timeouts
        wait = timedelta(seconds=timeouts.unresponsive)
        host = os.environ.get("MASTER_ADDR", "localhost")
        connect = partial(TCPStore, host, wait_for_workers=False, timeout=wait)
        port = [0]
        if rank == 0:
            self._server = connect(0, is_master=True)
            port = [self._server.port]
        dist.broadcast_object_list(port)
        self._store, self._thread_store = (connect(port[0], is_master=False) for _ in range(2))
        self.place = ""
        self._computing: tuple[int, int] | None = None  # a thread's clock, and which block it is
        self._blocks = itertools.count()
        self._closed = threading.Event()
        self._failure: str | None = None  # of a process, once the thread has seen it
        self._store.set(f"wait/{rank}", "")
        self._store.set(f"beat/{rank}", "")
        self._thread = threading.Thread(target=self._watch, name="parallel-link", daemon=True)
        self._thread.start()
        atexit.register(self._close_at_exit)

    @contextlib.contextmanager
    def computing(self, *, is_computing: bool) -> Iterator[None]:
        """Note whether this thread computes in the block, or waits for other processes."""
        before, self._computing = self._computing, None
        if is_computing and hasattr(time, "pthread_getcpuclockid"):
            clock = time.pthread_getcpuclockid(threading.get_ident())
            self._computing = clock, next(self._blocks)
        try:
            yield
        finally:
            self._computing = None if before is None else (before[0], next(self._blocks))

    def notify(self, key: str) -> None:
        """Set a key."""
        try:
            self._store.set(key, "1")
        except RuntimeError as cause:
            self._raise_lost_store(cause)

    def forget(self, key: str) -> None:
        """Delete a key for which no process waits any more."""
        try:
            self._store.delete_key(key)
        except RuntimeError as cause:
            self._raise_lost_store(cause)

    def wait(self, key: str, event: str, rank: int, patience: float = math.inf) -> None:
        """Return once a key is set.

        Args:
            key: Never set before, and not by this process.
            event: Name of the awaited event, for errors.
            rank: Rank of the process that sets it.
            patience: Seconds after which a warning names what is waited for.

        Raises:
            PeerFailedError: If it is not set in time, or never can be; or a process has failed.
        """
        with self.computing(is_computing=False):
            self._wait(key, event, rank, patience)

    def _wait(self, key: str, event: str, rank: int, patience: float) -> None:
        began = time.monotonic()
        is_noted = False
        while True:
            try:
                self._store.wait([key], _SLICE)
                if is_noted:  # before the key is deleted, which others would take for one not set
                    self._store.set(f"wait/{self._rank}", "")
                return
            except dist.DistNetworkError as cause:
                self._raise_lost_store(cause)
            except RuntimeError:  # not yet
                self.raise_failure()
            if not is_noted:
                self._store.set(f"wait/{self._rank}", json.dumps([rank, key, event]))
                is_noted = True
            self._check_awaited()
            waited = time.monotonic() - began
            if waited > self._timeouts.stall:
                raise PeerFailedError.at(
                    f"parallel: waited {self._timeouts.stall:g} seconds for {event}; it stands "
                    "still"
                )
            if waited > patience:
                patience = math.inf
                text = f"parallel: rank {self._rank} has waited {waited:.0f} seconds for {event}."
                warnings.warn(text, SeqDataWarning, stacklevel=2)

    def _check_awaited(self) -> None:
        """Return if what this process waits for may still come.

        A process waits if what it waits for was noted, was not set after, and is noted still. If
        the one that sets it waits in turn, at last for this process, none of them ever ends.

        Raises:
            PeerFailedError: If it cannot: its process has closed, or waits for this one, itself or
                through others.
        """
        rank, places = self._rank, []
        for _ in range(self._world):
            note = bytes(self._store.get(f"wait/{rank}"))
            if not note:
                return
            target, key, event = json.loads(note)
            has_closed = bytes(self._store.get(f"beat/{target}")) == _CLOSED.encode()
            self.raise_failure()  # a process that has failed closes, too
            if self._store.check([key]) or bytes(self._store.get(f"wait/{rank}")) != note:
                return
            places.append(f"rank {rank} waits for {event}")
            if has_closed or target == self._rank:
                end = f", which has closed or ended: rank {target}" if has_closed else ""
                raise PeerFailedError.at(
                    "parallel: all processes must call the same things in the same order, but "
                    f"{'; '.join(places)}{end}. Call `update`, `synchronize`, `close` and the "
                    "Trainer's `save_checkpoint` as often on each process."
                )
            rank = target

    def fail(self, error: BaseException, place: str) -> None:
        """Make an error that of all processes, unless another one was before.

        Raises:
            BaseException: The error that was before.
        """
        saved = _pickle_error(error, place, self._rank)
        try:
            first = bytes(self._store.compare_set(_ERROR, "", saved)).decode()
        except RuntimeError as cause:
            if isinstance(error, PeerFailedError):
                return
            self._raise_lost_store(cause)
        self._end_after_error()
        if first != saved:
            _raise_saved(first, error)
        error.add_note(f"at {place}")

    def leave(self, error: BaseException, place: str) -> None:
        """Make an error that of all processes, unless another one was before; raise nothing."""
        with contextlib.suppress(RuntimeError):  # rank 0 is gone: others notice that
            self._store.compare_set(_ERROR, "", _pickle_error(error, place, self._rank))
            self._end_after_error()

    def raise_failure(self) -> None:
        """Return if no process has failed.

        Raises:
            BaseException: The error of the process that has.
        """
        saved = self._failure
        try:
            if saved is None and self._store.check([_ERROR]):
                saved = bytes(self._store.get(_ERROR)).decode()
        except RuntimeError as cause:
            self._raise_lost_store(cause)
        if saved is not None:
            _raise_saved(saved, None)

    def close(self) -> None:
        """End the thread, and tell the others that this process gives no more signs.

        Rank 0, whose store ends with it, returns once each other process has closed or is gone:
        one that is still in its last update would take a store that ends for a process that died.
        """
        if not self._closed.is_set():
            self._sign_off()
            if self._rank == 0:
                failed = self._failure is not None
                self._wait_for_others(self._timeouts.exit_grace if failed else float("inf"))

    def _close_at_exit(self) -> None:
        """Close where the program has not; a process that failed must not keep others for long."""
        if self._closed.is_set():
            return
        error = getattr(sys, "last_value", None)  # what ends the program
        if error is not None and not hasattr(sys, "ps1"):
            self.leave(error, self.place)
            return
        self._sign_off()
        if self._rank == 0:
            self._wait_for_others(self._timeouts.exit_grace)

    def _sign_off(self) -> None:
        self._closed.set()
        self._thread.join(self._timeouts.heartbeat)  # or it may give one more sign of life
        atexit.unregister(self._close_at_exit)
        with contextlib.suppress(RuntimeError):  # rank 0 has ended before
            self._store.set(f"beat/{self._rank}", _CLOSED)
            self._store.set(f"seen/{self._rank}", "")  # an error is not waited for with it

    def _wait_for_others(self, longest: float) -> None:
        """Wait until no other process gives signs of life, or for a number of seconds."""
        began = now = time.monotonic()
        seen = dict.fromkeys(range(1, self._world), (b"", began))
        with contextlib.suppress(RuntimeError):  # one has not even begun
            while seen and now - began < longest:
                for rank, (before, since) in list(seen.items()):
                    beat = bytes(self._store.get(f"beat/{rank}"))
                    if beat == _CLOSED.encode() or now - since > self._timeouts.unresponsive:
                        del seen[rank]
                    elif beat != before:
                        seen[rank] = beat, now
                time.sleep(0.02)
                now = time.monotonic()

    def _end_after_error(self) -> None:
        """End the thread; rank 0, whose store goes with it, waits until the others have read."""
        self._sign_off()
        with contextlib.suppress(RuntimeError):
            if self._rank == 0:
                keys = [f"seen/{rank}" for rank in range(self._world)]
                self._store.wait(keys, timedelta(seconds=self._timeouts.exit_grace))

    def _raise_lost_store(self, cause: BaseException) -> NoReturn:
        self._sign_off()
        if self._failure is not None:
            _raise_saved(self._failure, cause)
        raise _make_lost_error(0) from cause

    def _watch(self) -> None:
        seen: dict[int, tuple[bytes, float]] = {}
        progress = Progress(self._timeouts.unresponsive)
        try:
            while not self._closed.wait(self._timeouts.heartbeat):
                self._beat(time.monotonic(), seen)
                if progress.has_stopped(self._computing):
                    self._report_still()
                if self._thread_store.check([_ERROR]):
                    self._failure = bytes(self._thread_store.get(_ERROR)).decode()
                    self._thread_store.set(f"seen/{self._rank}", "")
                    break
        except RuntimeError:  # rank 0 keeps the store
            self._failure = _pickle_error(_make_lost_error(0), "rank 0", 0)
        if self._failure is not None and not self._closed.wait(self._timeouts.exit_grace):
            self._exit(self._failure)

    def _beat(self, now: float, seen: dict[int, tuple[bytes, float]]) -> None:
        self._thread_store.set(f"beat/{self._rank}", str(now))
        for rank in range(self._world):
            key = f"beat/{rank}"
            if rank == self._rank or not self._thread_store.check([key]):
                continue
            beat = bytes(self._thread_store.get(key))
            if rank not in seen or seen[rank][0] != beat:
                seen[rank] = beat, now
            elif beat != _CLOSED.encode() and now - seen[rank][1] > self._timeouts.unresponsive:
                saved = _pickle_error(_make_lost_error(rank), f"rank {rank}", rank)
                self._thread_store.compare_set(_ERROR, "", saved)

    def _report_still(self) -> None:
        error = PeerFailedError.at(
            f"parallel: rank {self._rank} stands still: it has computed nothing for "
            f"{self._timeouts.unresponsive:g} seconds, at {self.place}",
            rank=self._rank,
        )
        self._thread_store.compare_set(_ERROR, "", _pickle_error(error, self.place, self._rank))

    def _exit(self, saved: str) -> None:
        """End the process: its main thread waits for one that is gone."""
        _, text, place, _ = pickle.loads(base64.b64decode(saved))
        print(f"parallel: this process is ended, for another failed: {text}\n  at {place}",  # noqa: T201
              file=sys.stderr, flush=True)  # fmt: skip
        os._exit(1)


class Progress:
    """Whether a thread that should compute gets any processor time.

    Args:
        seconds: Maximum time without a sign of life.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._block: int | None = None
        self._begin = self._own = self._all = 0.0

    def has_stopped(self, computing: tuple[int, int] | None) -> bool:
        """Return whether neither the thread nor the other ones of the process have computed.

        Args:
            computing: The thread's clock, and the number of the block that it runs; None: it does
                not compute, but waits for others.
        """
        if computing is None:
            self._block = None
            return False
        clock, block = computing
        try:
            own = time.clock_gettime(clock)
        except OSError:  # the thread has ended
            return False
        now = time.monotonic()
        others = time.process_time() - time.thread_time()
        is_idle = (
            block == self._block
            and own - self._own < _LEAST_SECONDS
            and others - self._all < _LEAST_SHARE * (now - self._begin) + _LEAST_SECONDS
        )
        if not is_idle:
            self._block, self._begin, self._own, self._all = block, now, own, others
        return is_idle and now - self._begin > self._seconds


def _make_lost_error(rank: int) -> PeerFailedError:
    text = f"parallel: rank {rank} gives no sign of life; it was killed or stopped"
    return PeerFailedError.at(text, rank=rank)


def _pickle_error(error: BaseException, place: str, rank: int) -> str:
    """Return an error as ASCII: itself if it pickles, its text, its place, its traceback."""
    lines = "".join(traceback.format_exception(error))
    text = f"{type(error).__name__}: {error}"
    try:
        saved = pickle.dumps(error)
        pickle.loads(saved)
    except (pickle.PickleError, TypeError, AttributeError, ValueError, ImportError):
        saved = pickle.dumps(PeerFailedError.at(f"rank {rank}: {text}", rank=rank))
    return base64.b64encode(pickle.dumps((saved, text, place, lines))).decode()


def _raise_saved(saved: str, cause: BaseException | None) -> NoReturn:
    content, _, place, lines = pickle.loads(base64.b64decode(saved))
    error = pickle.loads(content)
    error.add_note(f"at {place}")
    if not isinstance(error, SeqDataError):
        error.add_note(f"there:\n{lines}")
    raise error from cause
