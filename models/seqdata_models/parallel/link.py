"""Link between processes: notices of sent values, signs of life, and one error for all processes.

Before a process receives a value, it waits for a notice that the value was sent, which is a key of
a ``TCPStore``. It thus detects in time that another process has failed, was killed or stands still.
A receive of gloo would block until its timeout, and then name a socket. Place in the flow: below
``mesh``. Reads: the store on rank 0. Makes: the same error on every process.
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
# Processor time of a thread; less counts as none.
_LEAST_SECONDS = 1e-3
# Share of one processor for all other threads together; less counts as none.
_LEAST_SHARE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimeouts:
    """Limits of the time that processes wait for each other, in seconds.

    Attributes:
        heartbeat: Interval of the signs of life, which a thread of each process sends.
        unresponsive: Time without a sign of life after which a process counts as killed or stopped.
            A process that does not wait for another one, and uses no processor time for so long
            within an update, counts as standing still. Long computations use processor time and
            are not limited. A debugger needs a larger value.
        stall: Maximum time to wait for a value from a process that gives signs of life.
        exit_grace: Time in which a process can end by itself after another process has failed.
    """

    heartbeat: float = 1.0
    unresponsive: float = 6.0
    stall: float = 600.0
    exit_grace: float = 5.0


class Link:
    """Notices and errors between processes, through a store on rank 0.

    A thread gives a sign of life every ``heartbeat`` seconds, and checks those of other processes.
    It ends this process if the main thread does not return after another process has failed.

    Args:
        rank: Rank of this process.
        world: Number of processes; all of them make a link.
        timeouts: Limits of the time that processes wait for each other.

    Attributes:
        place: Name of this process and of its current work, for errors.
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
        # The clock of a thread, and the index of the block that it runs.
        self._computing: tuple[int, int] | None = None
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
        """Note whether this thread computes in the block or waits for other processes."""
        before, self._computing = self._computing, None
        if is_computing and hasattr(time, "pthread_getcpuclockid"):
            clock = time.pthread_getcpuclockid(threading.get_ident())
            self._computing = clock, next(self._blocks)
        try:
            yield
        finally:
            self._computing = None if before is None else (before[0], next(self._blocks))

    def notify(self, key: str) -> None:
        """Set a key, so that a process that waits for it continues.

        Raises:
            PeerFailedError: If rank 0 is gone.
            BaseException: The error of another process, if one has failed.
        """
        try:
            self._store.set(key, "1")
        except RuntimeError as cause:
            self._raise_lost_store(cause)

    def forget(self, key: str) -> None:
        """Delete a key for which no process waits any more.

        Raises:
            PeerFailedError: If rank 0 is gone.
            BaseException: The error of another process, if one has failed.
        """
        try:
            self._store.delete_key(key)
        except RuntimeError as cause:
            self._raise_lost_store(cause)

    def wait(self, key: str, event: str, rank: int, patience: float = math.inf) -> None:
        """Wait until a key is set.

        Args:
            key: Key that was not set before, and that this process does not set.
            event: Name of the awaited event, for errors.
            rank: Rank of the process that sets the key.
            patience: Seconds after which a warning names the event.

        Raises:
            PeerFailedError: If the key is not set within ``stall`` seconds, or can never be set.
            BaseException: The error of another process, if one has failed.
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
                    f"parallel: waited {self._timeouts.stall:g} seconds (`stall`) for {event}; the "
                    "awaited process gives signs of life, but stands still"
                )
            if waited > patience:
                patience = math.inf
                text = f"parallel: rank {self._rank} has waited {waited:.0f} seconds for {event}."
                warnings.warn(text, SeqDataWarning, stacklevel=2)

    def _check_awaited(self) -> None:
        """Raise if the key that this process waits for can never be set.

        A process waits if its awaited key was noted, was not set afterwards, and is still noted. If
        the process that sets the key also waits, directly or through others, for this process, none
        of them ever continues.

        Raises:
            PeerFailedError: If the process that sets the key has closed, or waits for this one,
                directly or through others.
            BaseException: The error of another process, if one has failed.
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
                    "parallel: all processes must call the same methods in the same order, but "
                    f"{'; '.join(places)}{end}. Call `update`, `synchronize`, `close` and the "
                    "Trainer's `save_checkpoint` equally often on every process."
                )
            rank = target

    def fail(self, error: BaseException, place: str) -> None:
        """Report an error to all processes, unless another error was reported before.

        Raises:
            PeerFailedError: If rank 0 is gone.
            BaseException: The error that was reported before.
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
        """Report an error to all processes, unless another was reported before; raise nothing."""
        with contextlib.suppress(RuntimeError):  # rank 0 is gone: others notice that
            self._store.compare_set(_ERROR, "", _pickle_error(error, place, self._rank))
            self._end_after_error()

    def raise_failure(self) -> None:
        """Raise the error of another process, if one has failed.

        Raises:
            PeerFailedError: If rank 0 is gone.
            BaseException: The error of another process.
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
        """End the thread, and note for other processes that this one gives no more signs of life.

        Rank 0 returns only when each other process has closed or is gone, because the store ends
        with it. A process in its last update would mistake the end of the store for a failure.
        """
        if not self._closed.is_set():
            self._sign_off()
            if self._rank == 0:
                failed = self._failure is not None
                self._wait_for_others(self._timeouts.exit_grace if failed else float("inf"))

    def _close_at_exit(self) -> None:
        """Close if the program has not; a failed process must not make others wait for long."""
        if self._closed.is_set():
            return
        # The exception that ends the program.
        error = getattr(sys, "last_value", None)
        if error is not None and not hasattr(sys, "ps1"):
            self.leave(error, self.place)
            return
        self._sign_off()
        if self._rank == 0:
            self._wait_for_others(self._timeouts.exit_grace)

    def _sign_off(self) -> None:
        self._closed.set()
        # Otherwise the thread may give one more sign of life.
        self._thread.join(self._timeouts.heartbeat)
        atexit.unregister(self._close_at_exit)
        with contextlib.suppress(RuntimeError):  # rank 0 has ended before
            self._store.set(f"beat/{self._rank}", _CLOSED)
            # Rank 0 does not wait until this process has read an error.
            self._store.set(f"seen/{self._rank}", "")

    def _wait_for_others(self, longest: float) -> None:
        """Wait until no other process gives signs of life, or for a number of seconds."""
        began = now = time.monotonic()
        seen = dict.fromkeys(range(1, self._world), (b"", began))
        with contextlib.suppress(RuntimeError):  # a process has not started its link
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
        """End the thread; rank 0 waits until others have read the error, as its store ends."""
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
        """End the process, because its main thread waits for a process that is gone."""
        _, text, place, _ = pickle.loads(base64.b64decode(saved))
        print(f"parallel: this process ends, because another failed: {text}\n  at {place}",  # noqa: T201
              file=sys.stderr, flush=True)  # fmt: skip
        os._exit(1)


class Progress:
    """Detector of a process that should compute but uses no processor time.

    Args:
        seconds: Time without computation after which the process counts as standing still.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._block: int | None = None
        self._begin = self._own = self._all = 0.0

    def has_stopped(self, computing: tuple[int, int] | None) -> bool:
        """Return whether no thread of the process has computed for more than ``seconds``.

        Args:
            computing: Clock of the main thread, and index of the block that it runs; None: it waits
                for other processes.
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
    """Return an error as ASCII: the error if it can be pickled, its text, place and traceback."""
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
