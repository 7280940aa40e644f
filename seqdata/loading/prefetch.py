"""A thread that makes batches ahead, so that reading overlaps with computing.

Batches are handed over in groups: a hand-over of each would cost more than making it. A consumer
that computes nothing between batches has nothing to overlap with, so it makes its batches itself
until it computes again. Every wait has a timeout, after which its condition is checked again.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from operator import length_hint
from typing import Generic, TypeVar

from seqdata.errors import ConfigError, find_interruption
from seqdata.protocols import Store, SupportsBase, SupportsLocality, SupportsPrefetch
from seqdata.sharing import RankPlan
from seqdata.storage.local_files import describe_limit

_PROBE_MAPPINGS = 16  # that a thread needs for its stack and first objects, with a reserve


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, if there is memory for it.

    Python waits without end for a thread that finds no memory for its first step, so memory is
    checked before.

    Raises:
        ConfigError: If there is no memory for it, or a limit on threads is reached.
    """
    protections = (
        mmap.PROT_READ,
        mmap.PROT_READ | mmap.PROT_WRITE,
    )  # equal neighbours would be merged
    try:
        with contextlib.ExitStack() as mappings:
            for i in range(_PROBE_MAPPINGS):
                page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=protections[i % 2])
                mappings.callback(page.close)
        thread.start()
    except OSError as error:
        if find_interruption(error) is not None:
            raise
        raise ConfigError(
            f"loader: cannot start the prefetch thread: out of memory ({error.strerror}). Raise "
            f"{describe_limit(error)}, or pass prefetch=0."
        ) from error
    except RuntimeError as error:
        if thread.ident is not None or find_interruption(error) is not None:  # already running
            raise
        raise ConfigError(
            f"loader: cannot start the prefetch thread ({error}). Raise `ulimit -u`, or pass "
            "prefetch=0."
        ) from error


Item = TypeVar("Item")
HANDOVER_BYTES = 1 << 20
HANDOVER_BATCHES = 16
_HANDOVER_SECONDS = 10e-6  # seconds of a hand-over: overlapping less is not worth it
_MAX_CONSUMER_SECONDS = 2 * HANDOVER_BATCHES * _HANDOVER_SECONDS  # between as many batches
_MAX_GATHER_SECONDS = 0.002  # seconds that a consumer waits for a full group
_POLL_SECONDS = 1.0  # timeout of every wait, in seconds
_EXIT_TIMEOUT = 5.0  # seconds that the interpreter's exit waits for a thread


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchSource(Generic[Item]):
    """The items that a thread makes.

    Attributes:
        make: Called with the index of an item; returns the item and its size in bytes.
        numbers: Indices of the items, in order.
        on_handover: Called after each hand-over with the index of the next item.
    """

    make: Callable[[int], tuple[Item, int]]
    numbers: range
    on_handover: Callable[[int], None]


class Prefetcher(Generic[Item]):
    """An iterable of items that a thread makes ahead.

    Args:
        source: The items.
        max_handovers: Maximum number of groups that wait for the consumer.
    """

    def __init__(self, source: PrefetchSource[Item], max_handovers: int) -> None:
        self._source = source
        self._queue: _HandoverQueue[Item] = _HandoverQueue(max_handovers)
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Generator[Item, None, None]:
        """Yield the items, which a thread makes while the consumer computes between them.

        A thread is started here; it stops while the consumer computes nothing, and at the end.

        Raises:
            BaseException: The error of an item, after all items before it.
        """
        numbers, queue, make = iter(self._source.numbers), self._queue, self._source.make
        items: deque[Item] | None = deque()
        consumer_seconds, count = 0.0, 0
        try:
            is_alive = self._start_thread(numbers)
            while items is not None:
                if is_alive is not None:
                    items = queue.take(is_alive)
                    if items is None and queue.reset_if_stopped():  # made here from now on
                        items, is_alive, consumer_seconds, count = deque(), None, 0.0, 0
                elif queue.is_closed or (number := next(numbers, None)) is None:
                    break
                else:
                    items.append(make(number)[0])
                while items:
                    yielded_at = time.perf_counter()
                    yield items.popleft()  # keeps no reference to a batch that was released
                    consumer_seconds += time.perf_counter() - yielded_at
                    count += 1
                if is_alive is None and consumer_seconds > _MAX_CONSUMER_SECONDS:
                    is_alive, consumer_seconds, count = self._start_thread(numbers), 0.0, 0
                elif count >= HANDOVER_BATCHES:
                    is_idle = consumer_seconds < count * _HANDOVER_SECONDS
                    queue.is_stop_requested |= is_alive is not None and is_idle
                    consumer_seconds, count = 0.0, 0
        finally:
            queue.close()
        error = queue.error
        if error is not None:
            queue.error = None
            raise error

    def _start_thread(self, numbers: Iterator[int]) -> Callable[[], bool] | None:
        """Start the thread; return its ``is_alive``, or None if no item is left."""
        if not length_hint(numbers):
            return None
        self._thread = thread = threading.Thread(
            target=_run_thread,
            args=(self._source, numbers, self._queue),
            name="seqdata-prefetch",
            daemon=True,
        )
        start_thread(thread)
        # A thread that runs torch while the interpreter exits aborts the process.
        weakref.finalize(thread, _end_at_exit, self._queue, weakref.ref(thread))
        return thread.is_alive

    def close(self) -> None:
        """Stop the thread before its next item, and end the iteration."""
        self._queue.close()

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread; return whether it has ended."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        if thread.ident is not None:
            thread.join(timeout)
        return not thread.is_alive()


class _HandoverQueue(Generic[Item]):
    """A bounded queue of groups of items between the thread and the consumer."""

    def __init__(self, max_handovers: int) -> None:
        self._max_handovers = max_handovers
        self._changed = threading.Condition()
        self._ready: deque[deque[Item]] = deque()
        self._gathered: deque[Item] = deque()  # taken out only under the lock, added without
        self._is_finished = False
        self.is_closed = False
        self.is_consumer_waiting = False  # the consumer is waiting
        self.is_stop_requested = False  # the consumer makes the rest itself
        self.error: BaseException | None = None

    def gather(self, item: Item) -> int:
        """Add an item to the next group; return the number of items in it."""
        self._gathered.append(item)
        return len(self._gathered)

    def hand_over(self) -> None:
        """Make a group of the gathered items, as soon as there is room for it."""
        with self._changed:
            while len(self._ready) >= self._max_handovers and not self.is_closed:
                self._changed.wait(_POLL_SECONDS)
            if self.is_closed:
                self._gathered.clear()
            else:
                self._make_group()
                self._changed.notify_all()

    def take(self, is_alive: Callable[[], bool]) -> deque[Item] | None:
        """Return the next group; None at the end.

        Items that are ready do not wait for a later one that takes long.
        """
        with self._changed:
            self.is_consumer_waiting = not self._ready
            timeout = _MAX_GATHER_SECONDS
            while not (self._ready or self._is_finished or self.is_closed):
                has_changed = self._changed.wait(timeout)
                if not self._ready:
                    self._make_group()
                if not (has_changed or self._ready or is_alive()):
                    break
                timeout = _POLL_SECONDS
            self.is_consumer_waiting = False
            if not self._ready:
                return None
            handover = self._ready.popleft()
            self._changed.notify_all()
            return handover

    def finish(self, error: BaseException | None) -> None:
        with self._changed:
            self._is_finished = True
            self.error = None if self.is_closed else error  # no consumer is left to raise it
            self._changed.notify_all()

    def reset_if_stopped(self) -> bool:
        """Return whether the thread has stopped as the consumer wanted; another may then start."""
        with self._changed:
            has_stopped = (
                self._is_finished
                and self.is_stop_requested
                and self.error is None
                and not self.is_closed
            )
            if has_stopped:
                self._is_finished = self.is_stop_requested = False
            return has_stopped

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._ready.clear()
            self._gathered.clear()
            self._changed.notify_all()

    def _make_group(self) -> None:
        if self._gathered:
            items = range(len(self._gathered))
            self._ready.append(deque(self._gathered.popleft() for _ in items))


def _run_thread(
    source: PrefetchSource[Item], numbers: Iterator[int], channel: _HandoverQueue[Item]
) -> None:
    try:
        _produce(source, numbers, channel)
    except BaseException as error:  # raised by the consumer
        channel.finish(error)
    else:
        channel.finish(None)


def _produce(
    source: PrefetchSource[Item], numbers: Iterator[int], channel: _HandoverQueue[Item]
) -> None:
    size, handed_over_at = 0, time.monotonic()
    try:
        for number in numbers:
            if channel.is_closed:
                return
            item, item_bytes = source.make(number)
            count = channel.gather(item)
            del item  # only the queue keeps it
            size += item_bytes
            is_late = (
                channel.is_consumer_waiting
                and time.monotonic() - handed_over_at > _MAX_GATHER_SECONDS
            )
            if is_late or size >= HANDOVER_BYTES or count >= HANDOVER_BATCHES:
                channel.hand_over()
                size = 0
                source.on_handover(number + 1)
                handed_over_at = time.monotonic()
                if channel.is_stop_requested:
                    return
    finally:  # finished items are delivered before an error
        channel.hand_over()


def _end_at_exit(channel: _HandoverQueue[Item], thread: weakref.ref[threading.Thread]) -> None:
    live_thread = thread()
    if live_thread is not None and live_thread is not threading.current_thread():
        channel.close()
        live_thread.join(_EXIT_TIMEOUT)


_MAX_STEPS = 64  # of a hint, at most


def make_plan_ahead(steps: RankPlan, store: Store, first_step: int) -> Callable[[int], None]:
    """Return a function that plans the next block ahead, and announces reads to a store.

    Args:
        steps: The steps of this rank.
        store: The store to read.
        first_step: Index of the first step, which is announced at once.

    Returns:
        A function to be called with the next step.
    """
    planned_until = -1
    hint = make_prefetch_hint(store, steps)
    if hint is not None:
        hint(first_step)

    def plan_ahead(step: int) -> None:
        nonlocal planned_until
        number = steps.position(step)
        if number >= planned_until and number < len(steps.plan):
            planned_until = steps.plan.prepare(number)
            if planned_until < len(steps.plan):
                steps.plan.prepare(planned_until)
        if hint is not None:
            hint(step)

    return plan_ahead


def make_prefetch_hint(store: Store, steps: RankPlan) -> Callable[[int], None] | None:
    """Return a function that announces the reads of the next steps to a store.

    None if the store is local, or takes no announcements.

    Args:
        store: The store to read; a view announces reads to its base.
        steps: The steps of this rank.
    """
    base = store.base if isinstance(store, SupportsBase) else store
    is_local = isinstance(base, SupportsLocality) and base.is_local
    if is_local or not isinstance(base, SupportsPrefetch):
        return None
    hinted = steps.first_step

    def hint(step: int) -> None:
        nonlocal hinted
        hinted = max(hinted, step)
        while hinted < min(len(steps), step + _MAX_STEPS):
            if not base.prefetch(store.base_numbers(steps[hinted].spans[:, 0])):
                return
            hinted += 1

    return hint
