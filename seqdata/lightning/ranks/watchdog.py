"""Thread that watches the other ranks: if one has ended, this process ends in bounded time.

A rank that is killed leaves the others in a collective operation for half an hour. Here ranks
exchange one number every few seconds: when a rank is killed, its connections close and the exchange
fails immediately; when a rank is stopped, the exchange times out.

A failed collective operation reports a closed connection, but not the rank. Processes on the same
machine are inspected to find the ranks that have ended.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from seqdata.errors import PeerFailedError
from seqdata.lightning.ranks.collect import gather

_LOG = logging.getLogger(__name__)
_RUNNING, _LEFT, _FAILED, _GAVE_UP = range(4)
_EXIT_CODE = 1
_SOURCE_PREFIX = re.compile(r"^\[[^\]]*\] *")  # source line of gloo
_MAX_SHOWN = 160
_PROCESS_EXIT_SECONDS = 1.0  # seconds for a process to end after its connections closed
_POLL_SECONDS = 0.02  # seconds between two checks
_CAUSE_TIMEOUT = 2.0  # seconds to find out why a collective of the training thread failed
_PROC = Path("/proc")
_ENDED_STATES = "ZXx"
_STOPPED_STATES = "Tt"


@dataclass(frozen=True, slots=True)
class RankProcess:
    """Process of a rank.

    Attributes:
        rank: Rank in the default process group.
        host: Name of the machine, and namespace of ``pid``.
        pid: Id of the process.
        start_ticks: Start of the process, in ticks since the machine started, since ids are reused.
    """

    rank: int
    host: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class LostRank:
    """A rank that cannot respond any more, and the cause."""

    rank: int
    cause: str


def describe_own_process(rank: int) -> RankProcess:
    """Return the description of this process for the other ranks."""
    pid = os.getpid()
    return RankProcess(rank, _get_host(), pid, _read_process_stat(pid)[1])


def find_lost_ranks(processes: Sequence[RankProcess], rank: int) -> list[LostRank]:
    """Return the ranks of this machine that have ended or are stopped.

    Args:
        processes: All ranks.
        rank: This rank.
    """
    host = _get_host()
    local_processes = [
        process for process in processes if process.rank != rank and process.host == host
    ]
    observed = [
        (process, _read_process_stat(process.pid))
        for process in local_processes
        if process.start_ticks
    ]
    return [
        LostRank(process.rank, f"its process {process.pid} {loss}")
        for process, (state, start_ticks) in observed
        if (loss := _describe_loss(process, state, start_ticks))
    ]


def _describe_loss(process: RankProcess, state: str, start_ticks: int) -> str:
    if not state or state in _ENDED_STATES or start_ticks != process.start_ticks:
        return "has ended"
    return "is stopped" if state in _STOPPED_STATES else ""


def _get_host() -> str:
    space = _PROC / "self" / "ns" / "pid"
    return f"{socket.gethostname()} {os.readlink(space) if space.is_symlink() else ''}"


def _read_process_stat(pid: int) -> tuple[str, int]:
    """Return the state letter and start of a process; "" and 0 if there is no such process."""
    try:
        content = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return "", 0
    fields = content.rpartition(")")[2].split()  # a name may contain spaces and parentheses
    return fields[0], int(fields[19])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeouts:
    """Bounds on the time that ranks wait for each other, in seconds.

    Attributes:
        heartbeat: Time between two exchanges, within which a killed rank is noticed.
        unresponsive: Longest wait for a rank that does not respond, because it is stopped or a
            library holds the GIL.
        exit_grace: Time for the training thread to end by itself after a rank has failed, and for
            all other ranks to fail as well.
        leave_grace: Time for the training thread to follow a rank that left because of an
            exception.
    """

    heartbeat: float = 5.0
    unresponsive: float = 45.0
    exit_grace: float = 3.0
    leave_grace: float = 10.0


class RankWatchdog:
    """Exchanges heartbeats with the other ranks until one of them leaves.

    Args:
        group: A process group of all ranks for this purpose only; its timeout limits each exchange.
        processes: All ranks, in order.
        rank: This rank.
        timeouts: Bounds on the time that ranks wait for each other.

    Attributes:
        failure: Error because of which this process is about to end; None if it is not.
        left_error: Error of the next batch after a rank has ended normally; None if none has.
    """

    def __init__(
        self, group: Any, processes: Sequence[RankProcess], rank: int, timeouts: RankTimeouts
    ) -> None:
        self.failure: PeerFailedError | None = None
        self.left_error: PeerFailedError | None = None
        self._group = group
        self._processes = processes
        self._rank = rank
        self._timeouts = timeouts
        self._status = _RUNNING
        self._reason = ""
        self._wake_event = threading.Event()
        self._leaving_event = threading.Event()
        self._closed_event = threading.Event()
        self._cause_known_event = threading.Event()
        self._has_all_failed = False
        self._settled_event = threading.Event()  # set once it is known whether all ranks fail
        self._thread = threading.Thread(target=self._watch, name="seqdata-watcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def find_cause(self, exception: BaseException) -> PeerFailedError | None:
        """Return the error that caused an exception of a step; None if it has no such cause.

        A collective operation that failed because a rank has ended does not report the rank. Any
        other exception in that state is this rank's own, and gets a note.
        """
        if self._status != _RUNNING or isinstance(exception, PeerFailedError):
            return None
        if _is_collective_error(exception):
            self._await_cause()
            failure = self.failure or self.left_error
            return failure or (self.make_lost_error(exception) if self._find_lost_ranks() else None)
        if self._find_lost_ranks():
            exception.add_note(str(self.failure or self.make_lost_error(exception)))
        return None

    def leave(self, exception: BaseException | None = None) -> None:
        """Notify the other ranks, without waiting, that this one is about to leave.

        Args:
            exception: The cause, unless the others leave with the same exception.
        """
        if self._status == _RUNNING:
            self._reason = "" if exception is None else _format_error(exception)
            self._status = _LEFT if exception is None else _FAILED
        self._leaving_event.set()
        self._wake_event.set()

    def wait_all_failed(self) -> bool:
        """Wait some time for the others; return whether every rank ends by an exception of its own.

        The result is equal on all ranks, so that either all begin a collective operation or none.
        """
        timeouts = self._timeouts
        self._wake_event.set()
        self._settled_event.wait(
            timeout=timeouts.heartbeat + timeouts.exit_grace + timeouts.unresponsive
        )
        return self._has_all_failed

    def close(self) -> bool:
        """Stop watching once the others are notified; return whether the thread has ended."""
        self.leave()
        self._closed_event.set()
        self._thread.join(timeout=2 * self._timeouts.heartbeat + 1)
        return not self._thread.is_alive()

    def await_lost_error(self, cause: BaseException) -> PeerFailedError:
        """Wait for the cause of a failed collective operation, and return the error."""
        self._await_cause()
        return self.failure or self.left_error or self.make_lost_error(cause)

    def make_lost_error(self, cause: BaseException) -> PeerFailedError:
        """Return the error for a failed collective operation, with the rank if it is known."""
        lost_ranks = self._find_lost_ranks()
        lost_text = (
            " and ".join(f"rank {lost.rank} ({lost.cause})" for lost in lost_ranks)
            or "another rank"
        )
        return PeerFailedError.at(
            f"ranks: rank {self._rank} has lost {lost_text}: {_format_error(cause)}. All ranks "
            "must run; resume from the latest checkpoint",
            rank=lost_ranks[0].rank if lost_ranks else None,
            cause=lost_ranks[0].cause if lost_ranks else _format_error(cause),
        )

    def _find_lost_ranks(self) -> list[LostRank]:
        return find_lost_ranks(self._processes, self._rank)

    def _await_cause(self) -> None:
        """Wait a short time until the rank that has ended is known."""
        self._wake_event.set()
        deadline = time.monotonic() + _CAUSE_TIMEOUT
        while (
            not (self._cause_known_event.is_set() or self._find_lost_ranks())
            and time.monotonic() < deadline
        ):
            time.sleep(_POLL_SECONDS)

    def _watch(self) -> None:
        while True:
            try:
                statuses = self._exchange_statuses()
                reasons = self._exchange_reasons() if _FAILED in statuses else []
            except RuntimeError as cause:
                self._settled_event.set()
                self._handle_lost_rank(cause)
                return
            if any(statuses):
                self._handle_left_ranks(statuses, reasons)
                return
            self._wake_event.wait(timeout=self._timeouts.heartbeat)
            self._wake_event.clear()

    def _exchange_statuses(self, *, gives_up: bool = False) -> list[int]:
        """Return the status of every rank; all notice a dead rank at the same time."""
        status = _GAVE_UP if gives_up else self._status
        own_statuses = torch.full((len(self._processes),), status, dtype=torch.int64, device="cpu")
        statuses = torch.empty_like(own_statuses)
        torch.distributed.all_to_all_single(statuses, own_statuses, group=self._group)
        return [int(status) for status in statuses.tolist()]

    def _exchange_reasons(self) -> list[str]:
        return gather(self._group, self._reason)

    def _handle_lost_rank(self, cause: RuntimeError) -> None:
        """End the process, unless the training thread does."""
        if self._closed_event.is_set():
            return
        # connections close before the process has ended
        deadline = time.monotonic() + _PROCESS_EXIT_SECONDS
        while not self._find_lost_ranks() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.failure = self.make_lost_error(cause)
        self._cause_known_event.set()
        self._report(self.failure)
        if not self._closed_event.wait(timeout=self._timeouts.exit_grace):
            _exit_process()

    def _handle_left_ranks(self, statuses: Sequence[int], reasons: Sequence[str]) -> None:
        """End this process after a rank has failed; if a rank ended normally, only record it."""
        failed = [rank for rank, sign in enumerate(statuses) if sign == _FAILED]
        deadline = time.monotonic() + self._timeouts.leave_grace
        if failed and len(failed) < len(statuses):
            self.failure = PeerFailedError.at(
                f"ranks: rank {failed[0]} has left because of {reasons[failed[0]]}. All ranks "
                "must run; see its traceback, and resume from the latest checkpoint",
                rank=failed[0],
                cause=reasons[failed[0]],
            )
            self._cause_known_event.set()
        self._has_all_failed = self._await_all_failed(statuses)
        if self._has_all_failed or not failed:
            left_ranks = [rank for rank, sign in enumerate(statuses) if sign and rank != self._rank]
            self.failure, self.left_error = (
                None,
                self._make_left_error(left_ranks[0]) if left_ranks else None,
            )
        self._cause_known_event.set()
        self._settled_event.set()
        if self.failure is None:
            return
        if not self._leaving_event.wait(timeout=max(0.0, deadline - time.monotonic())):
            self._report(self.failure)
            _exit_process()
        # it may still save after the others have ended
        if not self._closed_event.wait(timeout=self._timeouts.unresponsive):
            self._report(self.failure)
            _exit_process()

    def _await_all_failed(self, statuses: Sequence[int]) -> bool:
        """Return whether all ranks fail within ``exit_grace``, equal on every rank."""
        deadline = time.monotonic() + self._timeouts.exit_grace
        while _FAILED in statuses and not {_LEFT, _GAVE_UP} & {*statuses} and _RUNNING in statuses:
            time.sleep(_POLL_SECONDS)
            has_given_up = self._closed_event.is_set() or time.monotonic() > deadline
            try:
                statuses = self._exchange_statuses(gives_up=has_given_up)
            except RuntimeError:  # a rank has ended
                return False
        return {*statuses} == {_FAILED}

    def _make_left_error(self, rank: int) -> PeerFailedError:
        return PeerFailedError.at(
            f"ranks: rank {rank} has ended its part, but rank {self._rank} requests another "
            "batch. Decide on all ranks together when to stop.",
            rank=rank,
            cause="it has ended its part",
        )

    def _report(self, failure: PeerFailedError) -> None:
        line = f"PeerFailedError: {failure}"
        if _LOG.hasHandlers():
            _LOG.error(line)
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _is_collective_error(exception: BaseException) -> bool:
    """Return whether a collective operation raised an error; gloo has no error class of its own."""
    if not isinstance(exception, RuntimeError):
        return False
    return isinstance(exception, torch.distributed.DistError) or "gloo" in str(exception).lower()


def _format_error(exception: BaseException) -> str:
    text = " ".join(_SOURCE_PREFIX.sub("", str(exception)).split())
    return f"{type(exception).__name__}: {text[:_MAX_SHOWN]}"


def _exit_process() -> None:
    """End the process at once, since the training thread waits in a collective operation."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_EXIT_CODE)
