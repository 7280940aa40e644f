"""A thread that looks after the other ranks: a rank that is gone ends this one, in a bound.

A rank that was killed leaves the others in a collective for half an hour. Here ranks exchange one
number every few seconds: who was killed closes its connections, so that the exchange fails at once;
who is stopped lets it time out. Place in the flow: beside everything, from the first batch to the
end of a fit. Reads: the other ranks' signs. Makes: nothing, or the end of this process.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from seqdata.errors import PeerFailedError
from seqdata.lightning.ranks.peers import Fallen, Peer, fallen_of

_LOG = logging.getLogger(__name__)
_STAYS, _LEFT, _FAILED, _GIVES_UP = range(4)
_EXIT = 1
_WHERE = re.compile(r"^\[[^\]]*\] *")  # gloo's own source line
_SHOWN = 160
_TO_FALL = 1.0  # seconds for a process to be gone whose connections are closed
_OFTEN = 0.02  # seconds between two looks
_TO_LOOK = 2.0  # seconds to find out why the training thread's collective failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long ranks wait for each other, in seconds.

    Attributes:
        beat: Between two exchanges; who was killed is noticed within it.
        patience: For a rank that gives no sign: it is stopped, or holds Python's lock.
        grace: For the training thread to end by itself once a rank is known to have failed; and
            for all other ranks to fail, too, where one of them has.
        parting: For the training thread to follow a rank that left because of an exception.
    """

    beat: float = 5.0
    patience: float = 45.0
    grace: float = 3.0
    parting: float = 10.0


class Watcher:
    """Exchanges signs with the other ranks until one of them leaves.

    Args:
        group: A process group of all ranks that nothing else uses; its timeout is the patience.
        peers: All ranks, in order.
        me: The rank that watches.
        bounds: How long ranks wait for each other.

    Attributes:
        failure: Why this process is about to end; None: nothing is known.
        parted: Why no batch can be had any more: a rank has ended in good order; None: nobody has.
    """

    def __init__(self, group: Any, peers: Sequence[Peer], me: int, bounds: Bounds) -> None:
        self.failure: PeerFailedError | None = None
        self.parted: PeerFailedError | None = None
        self._group = group
        self._peers = peers
        self._me = me
        self._bounds = bounds
        self._sign = _STAYS
        self._why = ""
        self._wake = threading.Event()
        self._parting = threading.Event()
        self._over = threading.Event()
        self._known = threading.Event()
        self._all_fail = False
        self._settled = threading.Event()  # whether all ranks fail
        self._thread = threading.Thread(target=self._watch, name="seqdata-watcher", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def meant(self, exception: BaseException) -> PeerFailedError | None:
        """Give the error that an exception of a step is, once; None: it is what it says.

        A collective that failed because a rank is gone says neither that nor which. Another
        exception, while a rank is gone, is this rank's own, and gets a note.
        """
        if self._sign != _STAYS or isinstance(exception, PeerFailedError):
            return None
        if _of_collective(exception):
            self._look()
            lost = self.failure or self.parted
            return lost or (self.told(exception) if self._fallen() else None)
        if self._fallen():
            exception.add_note(str(self.failure or self.told(exception)))
        return None

    def part(self, exception: BaseException | None = None) -> None:
        """Tell the others that this rank is about to leave; nobody is waited for.

        Args:
            exception: Why, where the others do not leave with the same one.
        """
        if self._sign == _STAYS:
            self._why = "" if exception is None else _line(exception)
            self._sign = _LEFT if exception is None else _FAILED
        self._parting.set()
        self._wake.set()

    def all_fail(self) -> bool:
        """Return whether every rank is ending by an exception of its own.

        Waits a while for those that are not. Every rank that asks is told the same, so that all of
        them may go through a collective, or none.
        """
        bounds = self._bounds
        self._wake.set()
        self._settled.wait(timeout=bounds.beat + bounds.grace + bounds.patience)
        return self._all_fail

    def leave(self) -> bool:
        """End the watch once the others know; gives whether the thread has ended."""
        self.part()
        self._over.set()
        self._thread.join(timeout=2 * self._bounds.beat + 1)
        return not self._thread.is_alive()

    def gone(self, cause: BaseException) -> PeerFailedError:
        """Give the error for a collective of the training thread that failed."""
        self._look()
        return self.failure or self.parted or self.told(cause)

    def told(self, cause: BaseException) -> PeerFailedError:
        """Give the error for a collective that failed, with the rank where it can be told."""
        fallen = self._fallen()
        who = " and ".join(f"rank {one.rank} ({one.cause})" for one in fallen) or "another rank"
        return PeerFailedError.at(
            f"ranks: rank {self._me} has lost {who}: {_line(cause)}. All ranks must run; begin "
            "again from the latest checkpoint",
            rank=fallen[0].rank if fallen else None,
            cause=fallen[0].cause if fallen else _line(cause),
        )

    def _fallen(self) -> list[Fallen]:
        return fallen_of(self._peers, self._me)

    def _look(self) -> None:
        """Wait, not for long, until it is known which rank is gone."""
        self._wake.set()
        until = time.monotonic() + _TO_LOOK
        while not (self._known.is_set() or self._fallen()) and time.monotonic() < until:
            time.sleep(_OFTEN)

    def _watch(self) -> None:
        while True:
            try:
                signs = self._exchange()
                whys = self._tell() if _FAILED in signs else []
            except RuntimeError as cause:
                self._settled.set()
                self._lost(cause)
                return
            if any(signs):
                self._follow(signs, whys)
                return
            self._wake.wait(timeout=self._bounds.beat)
            self._wake.clear()

    def _exchange(self, *, gives_up: bool = False) -> list[int]:
        """Return every rank's sign; each rank hears each, so that all notice a dead one at once."""
        sign = _GIVES_UP if gives_up else self._sign
        mine = torch.full((len(self._peers),), sign, dtype=torch.int64, device="cpu")
        signs = torch.empty_like(mine)
        torch.distributed.all_to_all_single(signs, mine, group=self._group)
        return [int(sign) for sign in signs.tolist()]

    def _tell(self) -> list[str]:
        whys = [""] * len(self._peers)
        torch.distributed.all_gather_object(whys, self._why, group=self._group)
        return whys

    def _lost(self, cause: RuntimeError) -> None:
        """End the process, if the training thread does not by itself."""
        if self._over.is_set():
            return
        until = time.monotonic() + _TO_FALL  # connections close before a process is seen to end
        while not self._fallen() and time.monotonic() < until:
            time.sleep(_OFTEN)
        self.failure = self.told(cause)
        self._known.set()
        self._say(self.failure)
        if not self._over.wait(timeout=self._bounds.grace):
            _end()

    def _follow(self, signs: Sequence[int], whys: Sequence[str]) -> None:
        """Leave after a rank that failed by itself; one that ended in good order is only noted."""
        failed = [rank for rank, sign in enumerate(signs) if sign == _FAILED]
        until = time.monotonic() + self._bounds.parting
        if failed and len(failed) < len(signs):
            self.failure = PeerFailedError.at(
                f"ranks: rank {failed[0]} has left because of {whys[failed[0]]}. All ranks must "
                "run; look at its own traceback, and begin again from the latest checkpoint",
                rank=failed[0],
                cause=whys[failed[0]],
            )
            self._known.set()
        self._all_fail = self._settle(signs)
        if self._all_fail or not failed:
            gone = [rank for rank, sign in enumerate(signs) if sign and rank != self._me]
            self.failure, self.parted = None, self._alone(gone[0]) if gone else None
        self._known.set()
        self._settled.set()
        if self.failure is None:
            return
        if not self._parting.wait(timeout=max(0.0, until - time.monotonic())):
            self._say(self.failure)
            _end()
        if not self._over.wait(timeout=self._bounds.patience):  # saving, where others no longer do
            self._say(self.failure)
            _end()

    def _settle(self, signs: Sequence[int]) -> bool:
        """Return whether all ranks fail, the same on every rank; in the time of ``grace``."""
        until = time.monotonic() + self._bounds.grace
        while _FAILED in signs and not {_LEFT, _GIVES_UP} & {*signs} and _STAYS in signs:
            time.sleep(_OFTEN)
            gives_up = self._over.is_set() or time.monotonic() > until
            try:
                signs = self._exchange(gives_up=gives_up)
            except RuntimeError:  # a rank is gone
                return False
        return {*signs} == {_FAILED}

    def _alone(self, rank: int) -> PeerFailedError:
        return PeerFailedError.at(
            f"ranks: rank {rank} has ended its part while rank {self._me} asks for another batch, "
            "must end at the same batch; decide on all ranks together when to stop",
            rank=rank,
            cause="it has ended its part",
        )

    def _say(self, failure: PeerFailedError) -> None:
        line = f"PeerFailedError: {failure}"
        if _LOG.hasHandlers():
            _LOG.error(line)
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _of_collective(exception: BaseException) -> bool:
    """Tell whether a collective raised it; gloo's errors have no class of their own."""
    if not isinstance(exception, RuntimeError):
        return False
    return isinstance(exception, torch.distributed.DistError) or "gloo" in str(exception).lower()


def _line(exception: BaseException) -> str:
    text = " ".join(_WHERE.sub("", str(exception)).split())
    return f"{type(exception).__name__}: {text[:_SHOWN]}"


def _end() -> None:
    """End the process at once: the training thread waits in a collective that nobody answers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_EXIT)
