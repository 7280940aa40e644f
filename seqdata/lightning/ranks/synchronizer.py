"""Synchronized iteration of all ranks: each batch is returned on all ranks, or on none.

Before each batch the ranks exchange whether they have one, in a small reduction that starts a step
earlier and costs no waiting. So an error on one rank is raised by all of them at the same batch,
before the Trainer counts it.
"""

from __future__ import annotations

import functools
import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, NoReturn, TypeVar

import torch
import torch.distributed

from seqdata.errors import IncompleteEpochError, PeerFailedError, PreemptedError, SeqDataError
from seqdata.lightning.ranks.collect import gather, with_rank
from seqdata.lightning.ranks.watchdog import RankWatchdog

BATCH_TIMEOUT = 1800.0
"""Longest wait, in seconds, for a rank that is alive; torch's default for collective operations."""

_WAIT_SLICE = timedelta(seconds=1)
_OK, _END, _STOP, _ERROR = range(4)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class RankCounter(Generic[Item]):
    """Counter whose counts are summed over ranks together with their batches.

    Attributes:
        count: Function that returns this rank's count up to and including an item.
        on_total: Function of an item and the sum over ranks, called before the item is returned.
    """

    count: Callable[[Item], int]
    on_total: Callable[[Item, int], None]


@dataclass(frozen=True, slots=True)
class PendingItem(Generic[Item]):
    """Next item, and the reductions that announce it to the other ranks."""

    code: int
    items: list[Item]
    error: Exception | None
    codes: torch.Tensor
    counts: torch.Tensor
    works: list[Any]


@dataclass(frozen=True, slots=True)
class _RankReport:
    """Report of a rank, exchanged if not every rank has a batch."""

    code: int
    error: bytes = b""
    text: str = ""
    traceback: str = ""
    stop: str | None = None


class RankTraceback(Exception):
    """Traceback of an error on another rank, as the cause of the same error here."""


class RankSynchronizer:
    """Propagates the end and errors of a rank to all ranks.

    Args:
        group: A gloo process group of all ranks.
        rank: The rank.
        watchdog: Watchdog that detects ranks that have ended.
        get_stop_reason: Function that returns why this rank was requested to stop, or None.
    """

    def __init__(
        self,
        group: Any,
        rank: int,
        watchdog: RankWatchdog,
        get_stop_reason: Callable[[], str | None],
    ) -> None:
        self.group = group
        self.raised_error: Exception | None = None  # on every rank
        self._rank = rank
        self._watchdog = watchdog
        self._get_stop_reason = get_stop_reason
        self._latest_work: Any = None

    @property
    def is_quiet(self) -> bool:
        """Whether no operation waits for another rank."""
        return self._latest_work is None or bool(self._latest_work.is_completed())

    def iterate(
        self,
        source: Iterator[Item],
        counter: RankCounter[Item] | None = None,
        is_last: Callable[[Item], bool] | None = None,
    ) -> Iterator[Item]:
        """Return the items of ``source``, each once every rank has its own; it reads one ahead.

        Every rank must call ``next()`` equally often.

        Args:
            source: Items of this rank.
            counter: Counter whose counts are summed over ranks, on all ranks or none; None: no
                counts.
            is_last: Function that returns whether an item must be trained before the next one is
                read; None: no item.

        Raises:
            SeqDataError: The error of the rank that failed, with its rank, on every rank.
            PreemptedError: If a rank was requested to stop.
            IncompleteEpochError: If some ranks have no item left, but not all.
            PeerFailedError: If the process of a rank has ended or does not respond.
        """
        return _SynchronizedIterator(self, source, counter, is_last)

    def await_ranks(self, pending: PendingItem[Item]) -> bool:
        """Wait for the ranks; return True if all have an item, False if none has.

        Raises:
            SeqDataError: As ``iterate`` does.
        """
        for work in pending.works:
            self._wait(work)
        highest, lowest = int(pending.codes[0]), -int(pending.codes[1])
        if highest == lowest == _END:
            return False
        if highest != _OK:
            self._raise_agreed(pending)
        return True

    def all_gather(self, value: Item) -> list[Item]:
        """Return the values of every rank; all must call it between the same two batches.

        Args:
            value: Any picklable object.

        Raises:
            PeerFailedError: If the process of a rank has ended or does not respond.
        """
        return gather(self.group, value, functools.partial(self._wait, is_leaving=True))

    def draw_ahead(
        self, source: Iterator[Item], counter: RankCounter[Item] | None
    ) -> PendingItem[Item]:
        """Draw the next item of a source, and announce it to the other ranks."""
        items: list[Item] = []
        error: Exception | None = None
        try:
            items.append(next(source))
            code = _OK if self._get_stop_reason() is None else _STOP
        except StopIteration:
            code = _END
        except Exception as failure:  # raised later, on all ranks
            code, error = _ERROR, failure
        codes = torch.tensor([code, -code], dtype=torch.int32, device="cpu")
        count = counter.count(items[0]) if counter and items else 0
        counts = torch.tensor(count, dtype=torch.int64, device="cpu")
        works = [self._start_reduction(codes, torch.distributed.ReduceOp.MAX)]
        if counter is not None:
            works.append(self._start_reduction(counts, torch.distributed.ReduceOp.SUM))
        return PendingItem(code, items, error, codes, counts, works)

    def _start_reduction(self, values: torch.Tensor, operation: Any) -> Any:
        self._latest_work = torch.distributed.all_reduce(
            values, op=operation, group=self.group, async_op=True
        )
        return self._latest_work

    def _wait(self, work: Any, *, is_leaving: bool = False) -> None:
        """Wait until all ranks have reported; with ``is_leaving`` also ranks that are leaving."""
        deadline = time.monotonic() + BATCH_TIMEOUT
        while not work.is_completed():
            failure = self._watchdog.failure or (None if is_leaving else self._watchdog.left_error)
            try:
                work.wait(_WAIT_SLICE)
            except RuntimeError as cause:
                if work.is_completed():  # it has failed, or was late and is complete now
                    break
                if failure is not None:
                    raise failure from cause
                if time.monotonic() > deadline:
                    raise self._watchdog.make_lost_error(cause) from cause
        try:
            work.wait()  # ends: it is complete
        except RuntimeError as cause:
            raise self._watchdog.await_lost_error(cause) from cause

    def _raise_agreed(self, pending: PendingItem[Item]) -> NoReturn:
        own_report = _make_report(pending.code, pending.error, self._get_stop_reason())
        try:
            reports = gather(self.group, own_report)
        except RuntimeError as cause:
            raise self._watchdog.await_lost_error(cause) from cause
        self.raised_error, error_cause = self._choose_error(reports, pending.error)
        raise self.raised_error from error_cause

    def _choose_error(
        self, reports: Sequence[_RankReport], own_error: Exception | None
    ) -> tuple[Exception, BaseException | None]:
        """Return the error that every rank raises, and its cause."""
        for rank, report in enumerate(reports):
            if report.code == _ERROR and rank == self._rank and own_error is not None:
                named_error = _add_rank(own_error, rank)
                return named_error, own_error.__cause__ if named_error is own_error else own_error
            if report.code == _ERROR:
                return _rebuild_error(report, rank), RankTraceback(f"\n{report.traceback}")
        for rank, report in enumerate(reports):
            if report.stop is not None and report.code == _STOP:
                return make_preempted_error(report.stop, rank), None
        ended = [rank for rank, report in enumerate(reports) if report.code == _END]
        return IncompleteEpochError.at(
            f"ranks: rank {ended[0]} has no batch left, but {len(reports) - len(ended)} of "
            f"{len(reports)} ranks have one. Give every rank the same limits.",
            rank=ended[0],
        ), None


class _SynchronizedIterator(Iterator[Item]):
    """Synchronized iterator over items; a generator would end after an error."""

    def __init__(
        self,
        synchronizer: RankSynchronizer,
        source: Iterator[Item],
        counter: RankCounter[Item] | None,
        is_last: Callable[[Item], bool] | None,
    ) -> None:
        self._synchronizer = synchronizer
        self._source = source
        self._counter = counter
        self._is_last = is_last
        self._pending: PendingItem[Item] | None = None
        self._has_ended = False

    def __next__(self) -> Item:
        pending = None if self._has_ended else self._pending or self._draw_ahead()
        if pending is None or not self._synchronizer.await_ranks(pending):
            self._has_ended = True
            raise StopIteration
        item = pending.items[0]
        must_wait = self._is_last is not None and self._is_last(item)
        self._pending = None if must_wait else self._draw_ahead()
        if self._counter is not None:
            self._counter.on_total(item, int(pending.counts))
        return item

    def _draw_ahead(self) -> PendingItem[Item]:
        return self._synchronizer.draw_ahead(self._source, self._counter)


def make_preempted_error(reason: str, rank: int) -> PreemptedError:
    """Return the error that stops all ranks."""
    return PreemptedError.at(
        f"preempted: rank {rank} was requested to stop by {reason}, and every rank stops before "
        "the same batch. Resume from the checkpoint that "
        "ModelCheckpoint(save_on_exception=True) saves",
        rank=rank,
        cause=reason,
    )


def _make_report(code: int, error: Exception | None, stop: str | None) -> _RankReport:
    if error is None:
        return _RankReport(code, stop=stop)
    text = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception as pickle_error:  # pickling may raise anything
        pickled, text = b"", f"{text} (it cannot be pickled: {pickle_error})"
    return _RankReport(code, pickled, text, trace, stop)


def _rebuild_error(report: _RankReport, rank: int) -> Exception:
    """Return the error of another rank."""
    text, error = report.text, None
    try:
        error = pickle.loads(report.error) if report.error else None
    except Exception as unpickle_error:  # unpickling may raise anything
        text = f"{text} (it cannot be unpickled here: {unpickle_error})"
    if isinstance(error, Exception):
        return _add_rank(error, rank)
    return PeerFailedError.at(f"ranks: rank {rank} failed: {text}", rank=rank, cause=text)


def _add_rank(error: Exception, rank: int) -> Exception:
    """Return the error with its rank: in the message of a seqdata error, else as a note."""
    if isinstance(error, SeqDataError):
        return with_rank(error, rank)
    error.add_note(f"on rank {rank}")
    return error
