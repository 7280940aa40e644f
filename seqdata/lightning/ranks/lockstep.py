"""One channel between all ranks: each batch is handed out everywhere, or nowhere.

Before each batch every rank says whether it has one, in one small reduction that was begun a step
earlier and costs no waiting. So an error on one rank is raised by all of them at the same batch,
before the Trainer counts it. Place in the flow: between a player and the Trainer. Reads: batches.
Makes: the same batches, or the same error on every rank.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, NoReturn, TypeVar

import torch
import torch.distributed

from seqdata.errors import IncompleteEpochError, PeerFailedError, Preempted, SeqDataError
from seqdata.lightning.ranks.collect import of_rank
from seqdata.lightning.ranks.watchdog import Watcher

PATIENCE = 1800.0
"""Seconds for a rank that lives but brings no batch; torch's own for a collective."""

_SLICE = timedelta(seconds=1)
_OK, _END, _STOP, _ERROR = range(4)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Counting(Generic[Item]):
    """What ranks add up beside their batches.

    Attributes:
        mine: Gives this rank's count up to and with an item.
        told: Called with an item before it is handed out, and the sum over all ranks.
    """

    mine: Callable[[Item], int]
    told: Callable[[Item, int], None]


@dataclass(frozen=True, slots=True)
class _Ahead(Generic[Item]):
    """What the next request will give, and the reductions that say so to the others."""

    code: int
    items: list[Item]
    error: Exception | None
    codes: torch.Tensor
    counts: torch.Tensor
    works: list[Any]


@dataclass(frozen=True, slots=True)
class _Told:
    """What a rank says where not every rank has a batch."""

    code: int
    error: bytes = b""
    text: str = ""
    trace: str = ""
    stop: str | None = None


class RankTraceback(Exception):
    """The traceback of an error on another rank, as text: the cause of the same error here."""


class Channel:
    """Makes the ends and errors of one rank those of all.

    Args:
        group: A gloo process group of all ranks.
        me: The rank.
        watcher: Knows of ranks that are gone.
        asked: Gives why this rank was told to stop; None: it was not.
    """

    def __init__(
        self, group: Any, me: int, watcher: Watcher, asked: Callable[[], str | None]
    ) -> None:
        self.group = group
        self.raised: Exception | None = None  # on every rank
        self._me = me
        self._watcher = watcher
        self._asked = asked
        self._latest: Any = None

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way that another rank has yet to answer."""
        return self._latest is None or bool(self._latest.is_completed())

    def play(
        self, source: Iterator[Item], counting: Counting[Item] | None = None
    ) -> Iterator[Item]:
        """Give the items of ``source``, each once every rank has its own; one is drawn ahead.

        Every rank must ask equally often.

        Args:
            source: Of this rank.
            counting: What ranks add up beside; all must, or none. None: nothing.

        Raises:
            SeqDataError: The error of the rank that has one, with its rank, on every rank.
            Preempted: If a rank was told to stop.
            IncompleteEpochError: If some ranks have ended and others have not.
            PeerFailedError: If a rank is gone.
        """
        ahead = self._ahead(source, counting)
        while True:
            for work in ahead.works:
                self._wait(work)
            highest, lowest = int(ahead.codes[0]), -int(ahead.codes[1])
            if highest == lowest == _END:
                return
            if highest != _OK:
                self._raise(ahead)
            following = self._ahead(source, counting)
            item = ahead.items.pop()
            if counting is not None:
                counting.told(item, int(ahead.counts))
            yield item
            ahead = following

    def gather(self, mine: Item) -> list[Item]:
        """Give what every rank says; every rank must call it between the same two batches.

        Args:
            mine: Anything that pickles.

        Raises:
            PeerFailedError: If a rank is gone.
        """
        packed = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8)
        ranks = torch.distributed.get_world_size(self.group)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
        self._exchange(sizes, torch.tensor([len(packed)]))
        room = max(int(size) for size in sizes)
        told = [torch.empty(room, dtype=torch.uint8) for _ in range(ranks)]
        self._exchange(told, torch.cat([packed, packed.new_zeros(room - len(packed))]))
        return [
            pickle.loads(one[: int(size)].numpy().tobytes())
            for one, size in zip(told, sizes, strict=True)
        ]

    def _exchange(self, told: list[torch.Tensor], mine: torch.Tensor) -> None:
        self._wait(
            torch.distributed.all_gather(told, mine, group=self.group, async_op=True),
            parting=True,
        )

    def _ahead(self, source: Iterator[Item], counting: Counting[Item] | None) -> _Ahead[Item]:
        items: list[Item] = []
        error: Exception | None = None
        try:
            items.append(next(source))
            code = _OK if self._asked() is None else _STOP
        except StopIteration:
            code = _END
        except Exception as failure:  # is raised by all ranks, this one too
            code, error = _ERROR, failure
        codes = torch.tensor([code, -code], dtype=torch.int32, device="cpu")
        counts = torch.tensor(counting.mine(items[0]) if counting and items else 0, device="cpu")
        works = [self._reduced(codes, torch.distributed.ReduceOp.MAX)]
        if counting is not None:
            works.append(self._reduced(counts, torch.distributed.ReduceOp.SUM))
        return _Ahead(code, items, error, codes, counts, works)

    def _reduced(self, values: torch.Tensor, how: Any) -> Any:
        self._latest = torch.distributed.all_reduce(values, op=how, group=self.group, async_op=True)
        return self._latest

    def _wait(self, work: Any, *, parting: bool = False) -> None:
        """Return once all ranks have said what they have; ``parting`` ranks still do."""
        limit = time.monotonic() + PATIENCE
        while True:
            known = self._watcher.failure or (None if parting else self._watcher.parted)
            try:
                work.wait(_SLICE)
                return
            except RuntimeError as cause:
                if work.is_completed():
                    raise self._watcher.gone(cause) from cause
                if known is not None:
                    raise known from cause
                if time.monotonic() > limit:
                    raise self._watcher.told(cause) from cause

    def _raise(self, ahead: _Ahead[Item]) -> NoReturn:
        told = [_Told(_OK)] * torch.distributed.get_world_size(self.group)
        try:
            torch.distributed.all_gather_object(
                told, _told(ahead.code, ahead.error, self._asked()), group=self.group
            )
        except RuntimeError as cause:
            raise self._watcher.gone(cause) from cause
        self.raised, cause_of_it = self._agreed(told, ahead.error)
        raise self.raised from cause_of_it

    def _agreed(
        self, told: Sequence[_Told], mine: Exception | None
    ) -> tuple[Exception, BaseException | None]:
        """Give the error that every rank raises, and its cause."""
        for rank, one in enumerate(told):
            if one.code == _ERROR and rank == self._me and mine is not None:
                made = _named(mine, rank)
                return made, mine.__cause__ if made is mine else mine
            if one.code == _ERROR:
                return _again(one, rank), RankTraceback(f"\n{one.trace}")
        for rank, one in enumerate(told):
            if one.stop is not None and one.code == _STOP:
                return stopped(one.stop, rank), None
        ended = [rank for rank, one in enumerate(told) if one.code == _END]
        return IncompleteEpochError.at(
            f"ranks: rank {ended[0]} has no batch left where {len(told) - len(ended)} of "
            f"{len(told)} ranks have one, must be equally many; give every rank the same limits",
            rank=ended[0],
        ), None


def stopped(why: str, rank: int) -> Preempted:
    """Give the error by which all ranks stop."""
    return Preempted.at(
        f"preempted: rank {rank} was told to stop by {why}, and every rank stops before the same "
        "batch; go on from the checkpoint that ModelCheckpoint(save_on_exception=True) saves",
        rank=rank,
        cause=why,
    )


def _told(code: int, error: Exception | None, stop: str | None) -> _Told:
    if error is None:
        return _Told(code, stop=stop)
    text = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception as other:  # pickling runs anybody's code
        packed, text = b"", f"{text} (it cannot be sent as it is: {other})"
    return _Told(code, packed, text, trace, stop)


def _again(told: _Told, rank: int) -> Exception:
    """Make another rank's error here."""
    text, error = told.text, None
    try:
        error = pickle.loads(told.error) if told.error else None
    except Exception as other:  # unpickling runs anybody's code
        text = f"{text} (it cannot be made here: {other})"
    if isinstance(error, Exception):
        return _named(error, rank)
    return PeerFailedError.at(f"ranks: rank {rank} failed: {text}", rank=rank, cause=text)


def _named(error: Exception, rank: int) -> Exception:
    """Give the error with its rank: in the text of ours, as a note of others'."""
    if isinstance(error, SeqDataError):
        return of_rank(error, rank)
    error.add_note(f"on rank {rank}")
    return error
