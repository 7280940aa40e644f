"""One thread that makes batches ahead, so that reading overlaps with computing.

Batches are handed over in groups: handing over each one would cost more than making it. Every wait
wakes up by itself from time to time and looks whether it still makes sense. Place in the flow:
between the assembly of batches and the loop that trains. Makes: the same batches in the same order.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from seqdata.loading.threads import start

Item = TypeVar("Item")
GROUP_BYTES = 1 << 20
GROUP_BATCHES = 16
_PATIENCE = 0.002  # seconds that a waiting consumer is kept for the sake of a full group
_WAKE_UP = 1.0  # seconds after which every wait looks again
_AT_EXIT = 5.0  # seconds that the end of the process waits for a thread


@dataclass(frozen=True, slots=True, eq=False)
class Recipe(Generic[Item]):
    """What a thread makes.

    Attributes:
        make: Gives item ``k`` and its size in bytes.
        numbers: Which items, in which order.
        idle: Called after each hand-over with the number of the next item.
    """

    make: Callable[[int], tuple[Item, int]]
    numbers: range
    idle: Callable[[int], None]


class Ahead(Generic[Item]):
    """Items made in a thread, taken in order.

    Args:
        recipe: What is made.
        groups: Groups that wait for the consumer at most.
    """

    def __init__(self, recipe: Recipe[Item], groups: int) -> None:
        self._channel: _Channel[Item] = _Channel(groups)
        self._thread = threading.Thread(
            target=_work, args=(recipe, self._channel), name="seqdata-prefetch", daemon=True
        )

    def __iter__(self) -> Iterator[Item]:
        """Give the items; starts the thread, which ends when the iteration is left.

        Raises:
            BaseException: What making an item raised, after all items before it were given.
        """
        start(self._thread)
        # A thread inside torch while the interpreter goes away aborts the process.
        weakref.finalize(self._thread, _end, self._channel, weakref.ref(self._thread))
        try:
            while (group := self._channel.take(self._thread.is_alive)) is not None:
                while group:
                    yield group.popleft()  # nothing here keeps a batch that the consumer let go
        finally:
            self._channel.close()
        error = self._channel.error
        if error is not None:
            self._channel.error = None
            raise error

    def close(self) -> None:
        """Let the thread end before its next item, and the iteration with it."""
        self._channel.close()

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended; say whether it has."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()


class _Channel(Generic[Item]):
    """Groups of items on their way from the thread to the consumer; knows neither."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._changed = threading.Condition()
        self._ready: deque[deque[Item]] = deque()
        self._done = False
        self.closed = False
        self.hungry = False  # the consumer waits
        self.error: BaseException | None = None

    def put(self, group: deque[Item]) -> None:
        with self._changed:
            while len(self._ready) >= self._groups and not self.closed:
                self._changed.wait(_WAKE_UP)
            if not self.closed:
                self._ready.append(group)
                self._changed.notify_all()

    def take(self, alive: Callable[[], bool]) -> deque[Item] | None:
        """Give the next group; None where no more will come."""
        with self._changed:
            self.hungry = not self._ready
            while not (self._ready or self._done or self.closed):
                if not self._changed.wait(_WAKE_UP) and not alive():
                    break
            self.hungry = False
            if not self._ready:
                return None
            group = self._ready.popleft()
            self._changed.notify_all()
            return group

    def finish(self, error: BaseException | None) -> None:
        with self._changed:
            self._done = True
            self.error = None if self.closed else error  # nobody is left to raise it
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._ready.clear()
            self._changed.notify_all()


def _work(recipe: Recipe[Item], channel: _Channel[Item]) -> None:
    try:
        _produce(recipe, channel)
    except BaseException as error:  # handed to the consumer, who raises it
        channel.finish(error)
    else:
        channel.finish(None)


def _produce(recipe: Recipe[Item], channel: _Channel[Item]) -> None:
    group: deque[Item] = deque()
    size, since = 0, time.monotonic()
    try:
        for number in recipe.numbers:
            if channel.closed:
                return
            item, more = recipe.make(number)
            group.append(item)
            del item  # the channel alone keeps it
            size += more
            late = channel.hungry and time.monotonic() - since > _PATIENCE
            if late or size >= GROUP_BYTES or len(group) >= GROUP_BATCHES:
                channel.put(group)
                group, size = deque(), 0
                recipe.idle(number + 1)
                since = time.monotonic()
    finally:  # what is finished is delivered before an error
        if group:
            channel.put(group)


def _end(channel: _Channel[Item], thread: weakref.ref[threading.Thread]) -> None:
    channel.close()
    running = thread()
    if running is not None and running is not threading.current_thread():
        running.join(_AT_EXIT)
