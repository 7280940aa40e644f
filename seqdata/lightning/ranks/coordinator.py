"""Coordination of the ranks of a fit, which stop, fail and end at the same batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed
from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import PeerFailedError
from seqdata.lightning import adapter
from seqdata.lightning.ranks.collect import all_gather, gather
from seqdata.lightning.ranks.synchronizer import (
    BATCH_TIMEOUT,
    RankCounter,
    RankSynchronizer,
    make_preempted_error,
)
from seqdata.lightning.ranks.watchdog import RankTimeouts, RankWatchdog, describe_own_process
from seqdata.sharing import World

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _RankGroups:
    synchronizer: RankSynchronizer
    watchdog: RankWatchdog
    watchdog_group: Any  # the watchdog's process group


class RankCoordinator:
    """Coordinates the ranks of one Trainer.

    Args:
        timeouts: Bounds on the time that ranks wait for each other.
    """

    def __init__(self, timeouts: RankTimeouts | None = None) -> None:
        self._timeouts = timeouts or RankTimeouts()
        self._groups: _RankGroups | None = None
        self._stop_reason: str | None = None
        self._is_failing_alone = False
        self._last_gathered: tuple[tuple[int, int], list[Any]] | None = None

    def iterate_synchronized(
        self,
        source: Iterator[Item],
        ranks: int,
        counter: RankCounter[Item] | None = None,
        is_last: Callable[[Item], bool] | None = None,
    ) -> Iterator[Item]:
        """Return the items of ``source`` on every rank, or the same error on every rank.

        After an error every further ``next()`` raises it again.

        Args:
            source: Items of this rank; with several ranks it is read one item ahead.
            ranks: Number of ranks; all must call ``next()`` equally often.
            counter: Counter whose counts are summed over ranks; None: no counts.
            is_last: Function that returns whether an item must be trained before the next one is
                read; None: no item.

        Raises:
            PreemptedError: If a rank was requested to stop.
            SeqDataError: If any rank failed.
        """
        return _AgreedIterator(self, source, ranks, counter, is_last)

    def stop(self, reason: str) -> None:
        """Make all ranks stop before the same next batch, by a flag."""
        self._stop_reason = reason

    def leave_by_exception(self, exception: BaseException) -> PeerFailedError | None:
        """Notify the other ranks, without waiting, of an exception that ends this rank's run.

        Args:
            exception: The exception.

        Returns:
            The error to raise from it, if a collective operation failed because a rank has ended;
                None otherwise.
        """
        groups = self._groups
        if groups is None:
            return None
        is_agreed = exception is groups.synchronizer.raised_error
        self._is_failing_alone = not is_agreed
        cause = None if is_agreed else groups.watchdog.find_cause(exception)
        groups.watchdog.leave(None if is_agreed else cause or exception)
        return cause

    def all_gather(self, value: Value, ranks: int, position: tuple[int, int]) -> list[Value]:
        """Return every rank's value, in the order of ranks; all must call it at the same batch.

        If some ranks do not call it, the previous values for the same position are returned.

        Args:
            value: The value of this rank; any picklable object.
            ranks: Number of ranks.
            position: Epoch and position of the value.

        Raises:
            PeerFailedError: If a rank has ended, if this rank ends by an exception but not all
                others do, or if positions differ.
        """
        try:
            gathered = self._all_gather((position, value), ranks)
        except PeerFailedError:
            if self._last_gathered is None or self._last_gathered[0] != position:
                raise
            return self._last_gathered[1]
        positions = {its_position for its_position, _ in gathered}
        if len(positions) > 1:
            raise PeerFailedError.at(
                f"ranks: all must be at the same (epoch, position), but are at {sorted(positions)}"
            )
        self._last_gathered = position, [its_value for _, its_value in gathered]
        return self._last_gathered[1]

    def _all_gather(self, value: Value, ranks: int) -> list[Value]:
        groups = self._groups
        if groups is not None and not self._is_failing_alone:
            return groups.synchronizer.all_gather(value)
        if groups is not None and not groups.watchdog.wait_all_failed():
            raise PeerFailedError.at(
                "ranks: an exception ends only this rank; the others do not respond"
            )
        try:
            timeout = timedelta(seconds=self._timeouts.unresponsive)
            return all_gather(World(0, ranks), value, timeout=timeout)
        except RuntimeError as cause:
            raise PeerFailedError.at(f"ranks: not all ranks responded: {cause}") from cause

    def leave(self) -> None:
        """End the coordination and its threads; the next iteration starts again."""
        groups, self._groups, self._stop_reason = self._groups, None, None
        self._is_failing_alone, self._last_gathered = False, None
        if groups is None or not torch.distributed.is_initialized():
            return
        if groups.watchdog.close():
            torch.distributed.destroy_process_group(groups.watchdog_group)
        if groups.synchronizer.is_quiet:  # otherwise it would wait for a rank that has not answered
            torch.distributed.destroy_process_group(groups.synchronizer.group)

    def check_stop(self) -> None:
        """Raise PreemptedError if the only rank was requested to stop."""
        if self._stop_reason is not None:
            raise make_preempted_error(self._stop_reason, 0)

    def get_synchronizer(self, ranks: int) -> RankSynchronizer | None:
        """Return the synchronizer of all ranks; None if there is only this one."""
        if self._groups is not None:
            return self._groups.synchronizer
        if ranks == 1 or not torch.distributed.is_initialized():
            return None
        rank = torch.distributed.get_rank()
        watchdog_group = _make_group(self._timeouts.unresponsive)
        processes = gather(watchdog_group, describe_own_process(rank))
        watchdog = RankWatchdog(watchdog_group, processes, rank, self._timeouts)
        synchronizer = RankSynchronizer(
            _make_group(BATCH_TIMEOUT), rank, watchdog, lambda: self._stop_reason
        )
        watchdog.start()
        self._groups = _RankGroups(synchronizer, watchdog, watchdog_group)
        return synchronizer


class _AgreedIterator(Iterator[Item]):
    """Items of a source, synchronized over ranks; each ``next()`` raises an error again."""

    def __init__(
        self,
        coordinator: RankCoordinator,
        source: Iterator[Item],
        ranks: int,
        counter: RankCounter[Item] | None,
        is_last: Callable[[Item], bool] | None,
    ) -> None:
        self._coordinator = coordinator
        self._source = source
        self._synchronizer_args = ranks, counter, is_last
        self._items: Iterator[Item] | None = None
        self._error: BaseException | None = None

    def __next__(self) -> Item:
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            if self._items is None:
                self._items = self._begin()
            item = next(self._items)
            if self._items is self._source:
                self._coordinator.check_stop()
        except StopIteration:
            raise
        except BaseException as error:  # Ctrl-C ends it, too
            self._error = error
            raise
        return item

    def _begin(self) -> Iterator[Item]:
        ranks, counter, is_last = self._synchronizer_args
        synchronizer = self._coordinator.get_synchronizer(ranks)
        if synchronizer is None:
            return self._source
        return synchronizer.iterate(self._source, counter, is_last)


class ExceptionNotifier(Callback):
    """First callback of a Trainer: reports exceptions, and sets the number of rows of a batch.

    It reports an exception before another callback handles it and may wait for other ranks.

    Args:
        notify: Function of the exception that returns the error to raise in its place, or None.
        end_validation: Function to call when a validation has ended, perhaps before its last batch;
            None: no function.
    """

    is_rank_local = True  # attached by the DataModule: not compared over ranks

    def __init__(
        self,
        notify: Callable[[BaseException], PeerFailedError | None],
        end_validation: Callable[[], object] | None = None,
    ) -> None:
        self._notify = notify
        self._end_validation = end_validation

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the batch size in Lightning, for logged means."""
        del pl_module, batch_idx
        adapter.set_batch_size(trainer, batch)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Set the batch size in Lightning, for logged means."""
        del pl_module, batch_idx, dataloader_idx
        adapter.set_batch_size(trainer, batch)

    on_test_batch_start = on_validation_batch_start

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the workers of the validation."""
        del trainer, pl_module
        if self._end_validation is not None:
            self._end_validation()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Report the exception.

        Raises:
            PeerFailedError: If a rank that has ended caused the exception; raised after all other
                callbacks were notified.
        """
        del pl_module
        cause = self._notify(exception)
        if cause is None:
            return
        for later_error in adapter.end_run(trainer, exception, after=self):
            cause.add_note(
                f"and when the run was ended: {type(later_error).__name__}: {later_error}"
            )
        raise cause from exception


def _make_group(seconds: float) -> Any:
    return torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
