"""All ranks go through a fit together: they stop, fail and end at the same batch."""

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
from seqdata.lightning.ranks.lockstep import (
    BATCH_TIMEOUT,
    RankCounter,
    RankLockstep,
    make_preempted_error,
)
from seqdata.lightning.ranks.peers import describe_own_process
from seqdata.lightning.ranks.watchdog import RankTimeouts, RankWatchdog
from seqdata.world import World

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _RankGroups:
    lockstep: RankLockstep
    watchdog: RankWatchdog
    watchdog_group: Any  # the watcher's process group


class RankCoordinator:
    """What holds the ranks of one Trainer together.

    Args:
        timeouts: How long ranks wait for each other.
    """

    def __init__(self, timeouts: RankTimeouts | None = None) -> None:
        self._timeouts = timeouts or RankTimeouts()
        self._groups: _RankGroups | None = None
        self._stop_reason: str | None = None
        self._is_failing_alone = False
        self._last_gathered: tuple[tuple[int, int], list[Any]] | None = (
            None  # what was gathered last
        )

    def iterate_in_lockstep(
        self, source: Iterator[Item], ranks: int, counter: RankCounter[Item] | None = None
    ) -> Iterator[Item]:
        """Return the items of ``source`` on every rank, or the same error on every rank.

        An error is the last of it: it is raised again by whatever ``next()`` comes after it.

        Args:
            source: Of this rank; drawn from one item ahead where there are others.
            ranks: How many there are; each must play as often.
            counter: What ranks add up beside; with one rank nobody is told. None: nothing.

        Raises:
            Preempted: If a rank was told to stop.
            SeqDataError: What failed on any rank.
        """
        return _StickyErrorIterator(self._iterate(source, ranks, counter))

    def stop(self, reason: str) -> None:
        """Make all ranks stop before the same next batch; it only takes note."""
        self._stop_reason = reason

    def leave_by_exception(self, exception: BaseException) -> PeerFailedError | None:
        """Tell the others that an exception is ending this rank's part; nobody is waited for.

        Args:
            exception: As it was raised.

        Returns:
            The error to raise from it: a collective has failed because a rank is gone. None: it is
            what it says.
        """
        groups = self._groups
        if groups is None:
            return None
        is_agreed = exception is groups.lockstep.raised_error
        self._is_failing_alone = not is_agreed
        cause = None if is_agreed else groups.watchdog.find_cause(exception)
        groups.watchdog.leave(None if is_agreed else cause or exception)
        return cause

    def all_gather(self, value: Value, ranks: int, position: tuple[int, int]) -> list[Value]:
        """Return every rank's value, in the order of ranks; all must call it at the same batch.

        Where not all come, it is what they said of the same place before, if they did.

        Args:
            value: What this rank says; anything that pickles.
            ranks: How many there are.
            position: What it is said of: epoch, and position in it.

        Raises:
            PeerFailedError: If a rank is gone, or not all ranks end by an exception of their own
                where this one does, or they stand at other places.
        """
        try:
            gathered = self._all_gather((position, value), ranks)
        except PeerFailedError:
            if self._last_gathered is None or self._last_gathered[0] != position:
                raise
            return self._last_gathered[1]
        positions = {one for one, _ in gathered}
        if len(positions) > 1:
            raise PeerFailedError.at(
                f"ranks: they stand at {sorted(positions)} (epoch, position), must be at the same"
            )
        self._last_gathered = position, [one for _, one in gathered]
        return self._last_gathered[1]

    def _all_gather(self, value: Value, ranks: int) -> list[Value]:
        groups = self._groups
        if groups is not None and not self._is_failing_alone:
            return groups.lockstep.all_gather(value)
        if groups is not None and not groups.watchdog.wait_all_failed():
            raise PeerFailedError.at(
                "ranks: an exception of this rank alone ends it, the others do not come"
            )
        try:
            timeout = timedelta(seconds=self._timeouts.unresponsive)
            return all_gather(World(0, ranks), value, timeout=timeout)
        except RuntimeError as cause:
            raise PeerFailedError.at(f"ranks: not all ranks came: {cause}") from cause

    def leave(self) -> None:
        """End this rank's part, and its threads; the next iteration begins anew."""
        groups, self._groups, self._stop_reason = self._groups, None, None
        self._is_failing_alone, self._last_gathered = False, None
        if groups is None or not torch.distributed.is_initialized():
            return
        if groups.watchdog.close():
            torch.distributed.destroy_process_group(groups.watchdog_group)
        if groups.lockstep.is_quiet:  # else a rank has yet to answer, and would be waited for
            torch.distributed.destroy_process_group(groups.lockstep.group)

    def _iterate(
        self, source: Iterator[Item], ranks: int, counter: RankCounter[Item] | None
    ) -> Iterator[Item]:
        lockstep = self._get_lockstep(ranks)
        yield from (
            self._iterate_single(source) if lockstep is None else lockstep.iterate(source, counter)
        )

    def _iterate_single(self, source: Iterator[Item]) -> Iterator[Item]:
        for item in source:
            if self._stop_reason is not None:
                raise make_preempted_error(self._stop_reason, 0)
            yield item

    def _get_lockstep(self, ranks: int) -> RankLockstep | None:
        """Return the channel, made with all other ranks; None: there are none."""
        if self._groups is not None:
            return self._groups.lockstep
        if ranks == 1 or not torch.distributed.is_initialized():
            return None
        rank = torch.distributed.get_rank()
        watchdog_group = _make_group(self._timeouts.unresponsive)
        processes = gather(watchdog_group, describe_own_process(rank))
        watchdog = RankWatchdog(watchdog_group, processes, rank, self._timeouts)
        lockstep = RankLockstep(
            _make_group(BATCH_TIMEOUT), rank, watchdog, lambda: self._stop_reason
        )
        watchdog.start()
        self._groups = _RankGroups(lockstep, watchdog, watchdog_group)
        return lockstep


class _StickyErrorIterator(Iterator[Item]):
    """The items of a generator, which after an error would say that it has ended as it should."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._error: Exception | None = None

    def __next__(self) -> Item:
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            return next(self._items)
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            raise


class ExceptionNotifier(Callback):
    """Comes before all other callbacks: tells of an exception, and how many rows a batch has.

    Of an exception it tells before another callback acts on it, and may wait for other ranks.

    Args:
        notify: Called with the exception; gives the error that it means, or None.
    """

    def __init__(self, notify: Callable[[BaseException], PeerFailedError | None]) -> None:
        self._notify = notify

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Tell Lightning the batch size, for means that are logged."""
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
        """Tell Lightning the batch size, for means that are logged."""
        del pl_module, batch_idx, dataloader_idx
        adapter.set_batch_size(trainer, batch)

    on_test_batch_start = on_validation_batch_start

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Tell of the exception.

        Raises:
            PeerFailedError: If that is what it means; all others have been told of it by then.
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
