"""One thread that makes batches ahead, so that reading overlaps with computing.

Batches are handed over in groups: handing over each one would cost more than making it. A consumer
that only draws has nothing to overlap with, so it makes its batches itself until it computes again.
Every wait wakes up by itself from time to time and looks whether it still makes sense. Place in the
flow: between the assembly of batches and the loop that trains. Makes: the same batches in the same
order.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import length_hint
from typing import Generic, TypeVar

from seqdata.loading.start_thread import start

Item = TypeVar("Item")
GROUP_BYTES = 1 << 20
GROUP_BATCHES = 16
_HAND_OVER = 10e-6  # seconds that handing an item over costs: overlapping less does not pay
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
        self._recipe = recipe
        self._channel: _Channel[Item] = _Channel(groups)
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[Item]:
        """Give the items; starts the thread, which ends when the iteration is left.

        Raises:
            BaseException: What making an item raised, after all items before it were given.
        """
        numbers = iter(self._recipe.numbers)
        try:
            while length_hint(numbers):
                yield from self._by_thread(numbers)
                if not self._channel.goes_on():
                    break
                yield from self._by_consumer(numbers)
        finally:
            self._channel.close()
        error = self._channel.error
        if error is not None:
            self._channel.error = None
            raise error

    def _by_thread(self, numbers: Iterator[int]) -> Iterator[Item]:
        """Give items that a thread makes, until there are none or the consumer only draws."""
        channel = self._channel
        self._thread = thread = threading.Thread(
            target=_work,
            args=(self._recipe, numbers, channel),
            name="seqdata-prefetch",
            daemon=True,
        )
        start(thread)
        # A thread inside torch while the interpreter goes away aborts the process.
        weakref.finalize(thread, _end, channel, weakref.ref(thread))
        away, count = 0.0, 0
        while (group := channel.take(thread.is_alive)) is not None:
            while group:
                left = time.perf_counter()
                yield group.popleft()  # nothing here keeps a batch that the consumer let go
                away += time.perf_counter() - left
                count += 1
            if count >= GROUP_BATCHES:
                channel.enough |= away < count * _HAND_OVER
                away, count = 0.0, 0

    def _by_consumer(self, numbers: Iterator[int]) -> Iterator[Item]:
        """Give items that the consumer's own thread makes, until it computes something itself."""
        made: list[Item] = []
        away, most = 0.0, 2 * GROUP_BATCHES * _HAND_OVER
        for count, number in enumerate(numbers):
            if self._channel.closed:
                return
            made.append(self._recipe.make(number)[0])
            left = time.perf_counter()
            yield made.pop()
            away += time.perf_counter() - left
            if away > most:
                return
            if count % GROUP_BATCHES == 0:
                away = 0.0

    def close(self) -> None:
        """Let the thread end before its next item, and the iteration with it."""
        self._channel.close()

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended; say whether it has."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        if thread.ident is not None:
            thread.join(timeout)
        return not thread.is_alive()


class _Channel(Generic[Item]):
    """Groups of items on their way from the thread to the consumer; knows neither."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._changed = threading.Condition()
        self._ready: deque[deque[Item]] = deque()
        self._done = False
        self.closed = False
        self.hungry = False  # the consumer waits
        self.enough = False  # the consumer will make the rest itself
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

    def goes_on(self) -> bool:
        """Say whether the thread has stopped because it was enough; another may begin then."""
        with self._changed:
            stopped = self._done and self.enough and self.error is None and not self.closed
            if stopped:
                self._done = self.enough = False
            return stopped

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._ready.clear()
            self._changed.notify_all()


def _work(recipe: Recipe[Item], numbers: Iterator[int], channel: _Channel[Item]) -> None:
    try:
        _produce(recipe, numbers, channel)
    except BaseException as error:  # handed to the consumer, who raises it
        channel.finish(error)
    else:
        channel.finish(None)


def _produce(recipe: Recipe[Item], numbers: Iterator[int], channel: _Channel[Item]) -> None:
    group: deque[Item] = deque()
    size, since = 0, time.monotonic()
    try:
        for number in numbers:
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
                if channel.enough:
                    return
    finally:  # what is finished is delivered before an error
        if group:
            channel.put(group)


def _end(channel: _Channel[Item], thread: weakref.ref[threading.Thread]) -> None:
    running = thread()
    if running is not None and running is not threading.current_thread():
        channel.close()
        running.join(_AT_EXIT)
