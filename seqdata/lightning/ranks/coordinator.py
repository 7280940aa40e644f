"""All ranks go through a fit together: they stop, fail and end at the same batch.

Place in the flow: the DataModule has one, its loaders play through it. Reads: batches, and what
this rank was told. Makes: the channel and the watcher, where there are other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed
from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import PeerFailedError
from seqdata.lightning import adapter
from seqdata.lightning.ranks.collect import gather
from seqdata.lightning.ranks.lockstep import PATIENCE, Channel, Counting, stopped
from seqdata.lightning.ranks.peers import myself
from seqdata.lightning.ranks.watchdog import Bounds, Watcher
from seqdata.world import World

Item = TypeVar("Item")
Told = TypeVar("Told")


@dataclass(frozen=True, slots=True)
class _Joined:
    channel: Channel
    watcher: Watcher
    watched: Any  # the watcher's process group


class Together:
    """What holds the ranks of one Trainer together.

    Args:
        bounds: How long ranks wait for each other.
    """

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._joined: _Joined | None = None
        self._stop: str | None = None
        self._ends_alone = False
        self._told: tuple[tuple[int, int], list[Any]] | None = None  # what was gathered last

    def agreed(
        self, source: Iterator[Item], ranks: int, counting: Counting[Item] | None = None
    ) -> Iterator[Item]:
        """Give the items of ``source`` on every rank, or the same error on every rank.

        An error is the last of it: it is raised again by whatever ``next()`` comes after it.

        Args:
            source: Of this rank; drawn from one item ahead where there are others.
            ranks: How many there are; each must play as often.
            counting: What ranks add up beside; with one rank nobody is told. None: nothing.

        Raises:
            Preempted: If a rank was told to stop.
            SeqDataError: What failed on any rank.
        """
        return _Final(self._played(source, ranks, counting))

    def stop(self, why: str) -> None:
        """Make all ranks stop before the same next batch; it only takes note."""
        self._stop = why

    def part(self, exception: BaseException) -> PeerFailedError | None:
        """Tell the others that an exception is ending this rank's part; nobody is waited for.

        Args:
            exception: As it was raised.

        Returns:
            The error to raise from it: a collective has failed because a rank is gone. None: it is
            what it says.
        """
        joined = self._joined
        if joined is None:
            return None
        agreed = exception is joined.channel.raised
        self._ends_alone = not agreed
        meant = None if agreed else joined.watcher.meant(exception)
        joined.watcher.part(None if agreed else meant or exception)
        return meant

    def gathered(self, mine: Told, ranks: int, place: tuple[int, int]) -> list[Told]:
        """Give what every rank says, in the order of ranks; all must come between the same batches.

        Where not all come, it is what they said of the same place before, if they did.

        Args:
            mine: What this rank says; anything that pickles.
            ranks: How many there are.
            place: What it is said of: epoch, and position in it.

        Raises:
            PeerFailedError: If a rank is gone, or not all ranks end by an exception of their own
                where this one does, or they stand at other places.
        """
        try:
            both = self._gathered((place, mine), ranks)
        except PeerFailedError:
            if self._told is None or self._told[0] != place:
                raise
            return self._told[1]
        places = {one for one, _ in both}
        if len(places) > 1:
            raise PeerFailedError.at(
                f"ranks: they stand at {sorted(places)} (epoch, position), must be at the same"
            )
        self._told = place, [one for _, one in both]
        return self._told[1]

    def _gathered(self, mine: Told, ranks: int) -> list[Told]:
        joined = self._joined
        if joined is not None and not self._ends_alone:
            return joined.channel.gather(mine)
        if joined is not None and not joined.watcher.all_fail():
            raise PeerFailedError.at(
                "ranks: an exception of this rank alone ends it, the others do not come"
            )
        try:
            patience = timedelta(seconds=self._bounds.patience)
            return gather(World(0, ranks), mine, patience=patience)
        except RuntimeError as cause:
            raise PeerFailedError.at(f"ranks: not all ranks came: {cause}") from cause

    def leave(self) -> None:
        """End this rank's part, and its threads; the next iteration begins anew."""
        joined, self._joined, self._stop = self._joined, None, None
        self._ends_alone, self._told = False, None
        if joined is None or not torch.distributed.is_initialized():
            return
        if joined.watcher.leave():
            torch.distributed.destroy_process_group(joined.watched)
        if joined.channel.quiet:  # else a rank has yet to answer, and would be waited for
            torch.distributed.destroy_process_group(joined.channel.group)

    def _played(
        self, source: Iterator[Item], ranks: int, counting: Counting[Item] | None
    ) -> Iterator[Item]:
        channel = self._channel(ranks)
        yield from self._alone(source) if channel is None else channel.play(source, counting)

    def _alone(self, source: Iterator[Item]) -> Iterator[Item]:
        for item in source:
            if self._stop is not None:
                raise stopped(self._stop, 0)
            yield item

    def _channel(self, ranks: int) -> Channel | None:
        """Give the channel, made with all other ranks; None: there are none."""
        if self._joined is not None:
            return self._joined.channel
        if ranks == 1 or not torch.distributed.is_initialized():
            return None
        me = torch.distributed.get_rank()
        watched = _group(self._bounds.patience)
        peers = [myself(me)] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(peers, peers[0], group=watched)
        watcher = Watcher(watched, peers, me, self._bounds)
        channel = Channel(_group(PATIENCE), me, watcher, lambda: self._stop)
        watcher.start()
        self._joined = _Joined(channel, watcher, watched)
        return channel


class _Final(Iterator[Item]):
    """The items of a generator, which after an error would say that it has ended as it should."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self._failed: Exception | None = None

    def __next__(self) -> Item:
        if self._failed is not None:
            raise self._failed.with_traceback(None)
        try:
            return next(self._items)
        except StopIteration:
            raise
        except Exception as error:
            self._failed = error
            raise


class PartNotice(Callback):
    """Comes before all other callbacks: tells of an exception, and how many rows a batch has.

    Of an exception it tells before another callback acts on it, and may wait for other ranks.

    Args:
        tell: Called with the exception; gives the error that it means, or None.
    """

    def __init__(self, tell: Callable[[BaseException], PeerFailedError | None]) -> None:
        self._tell = tell

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Tell Lightning the batch size, for means that are logged."""
        del pl_module, batch_idx
        adapter.tell_batch_size(trainer, batch)

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
        adapter.tell_batch_size(trainer, batch)

    on_test_batch_start = on_validation_batch_start

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Tell of the exception.

        Raises:
            PeerFailedError: If that is what it means; all others have been told of it by then.
        """
        del pl_module
        meant = self._tell(exception)
        if meant is None:
            return
        for other in adapter.end(trainer, exception, behind=self):
            meant.add_note(f"and when the run was ended: {type(other).__name__}: {other}")
        raise meant from exception


def _group(seconds: float) -> Any:
    return torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
