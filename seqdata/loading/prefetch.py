"""One thread that makes batches ahead, so that reading overlaps with computing.

Batches are handed over in groups: handing over each one would cost more than making it. A consumer
that only draws has nothing to overlap with, so it makes its batches itself until it computes again.
Every wait wakes up by itself from time to time and looks whether it still makes sense.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import length_hint
from typing import Generic, TypeVar

from seqdata.errors import ConfigError
from seqdata.protocols import Store, SupportsPrefetch
from seqdata.sharing import RankPlan
from seqdata.storage.local_files import describe_limit
from seqdata.storage.views import View

_PROBE_MAPPINGS = 16  # that a thread needs for its stack and first objects, and some more


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Python waits without end for one that finds no memory for its first step, so that is looked at
    before.

    Raises:
        ConfigError: If the system has no room for it.
    """
    protections = (
        mmap.PROT_READ,
        mmap.PROT_READ | mmap.PROT_WRITE,
    )  # neighbours alike would be one
    try:
        with contextlib.ExitStack() as mappings:
            for i in range(_PROBE_MAPPINGS):
                page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=protections[i % 2])
                mappings.callback(page.close)
        thread.start()
    except OSError as error:
        raise ConfigError(
            f"loader: there is no memory for a thread ({error.strerror}), must be; raise "
            f"{describe_limit(error)}, or pass prefetch=0"
        ) from error
    except RuntimeError as error:
        if thread.ident is not None:  # it runs already
            raise
        raise ConfigError(
            f"loader: a thread cannot be started ({error}), must be; raise `ulimit -u`, or pass "
            "prefetch=0"
        ) from error


Item = TypeVar("Item")
HANDOVER_BYTES = 1 << 20
HANDOVER_BATCHES = 16
_HANDOVER_SECONDS = 10e-6  # seconds that handing an item over costs: overlapping less does not pay
_MAX_GATHER_SECONDS = 0.002  # seconds that a waiting consumer is kept for the sake of a full group
_POLL_SECONDS = 1.0  # seconds after which every wait looks again
_EXIT_TIMEOUT = 5.0  # seconds that the end of the process waits for a thread


@dataclass(frozen=True, slots=True, eq=False)
class PrefetchSource(Generic[Item]):
    """What a thread makes.

    Attributes:
        make: Gives item ``k`` and its size in bytes.
        numbers: Which items, in which order.
        on_handover: Called after each hand-over with the number of the next item.
    """

    make: Callable[[int], tuple[Item, int]]
    numbers: range
    on_handover: Callable[[int], None]


class Prefetcher(Generic[Item]):
    """Items made in a thread, taken in order.

    Args:
        source: What is made.
        max_handovers: Groups that wait for the consumer at most.
    """

    def __init__(self, source: PrefetchSource[Item], max_handovers: int) -> None:
        self._source = source
        self._queue: _HandoverQueue[Item] = _HandoverQueue(max_handovers)
        self._thread: threading.Thread | None = None

    def __iter__(self) -> Iterator[Item]:
        """Yield the items; starts the thread, which ends when the iteration is left.

        Raises:
            BaseException: What making an item raised, after all items before it were given.
        """
        numbers = iter(self._source.numbers)
        try:
            while length_hint(numbers):
                yield from self._iterate_thread(numbers)
                if not self._queue.reset_if_stopped():
                    break
                yield from self._iterate_inline(numbers)
        finally:
            self._queue.close()
        error = self._queue.error
        if error is not None:
            self._queue.error = None
            raise error

    def _iterate_thread(self, numbers: Iterator[int]) -> Iterator[Item]:
        """Yield items that a thread makes, until there are none or the consumer only draws."""
        channel = self._queue
        self._thread = thread = threading.Thread(
            target=_run_thread,
            args=(self._source, numbers, channel),
            name="seqdata-prefetch",
            daemon=True,
        )
        start_thread(thread)
        # A thread inside torch while the interpreter goes away aborts the process.
        weakref.finalize(thread, _end_at_exit, channel, weakref.ref(thread))
        consumer_seconds, count = 0.0, 0
        while (handover := channel.take(thread.is_alive)) is not None:
            while handover:
                yielded_at = time.perf_counter()
                yield handover.popleft()  # nothing here keeps a batch that the consumer let go
                consumer_seconds += time.perf_counter() - yielded_at
                count += 1
            if count >= HANDOVER_BATCHES:
                channel.is_stop_requested |= consumer_seconds < count * _HANDOVER_SECONDS
                consumer_seconds, count = 0.0, 0

    def _iterate_inline(self, numbers: Iterator[int]) -> Iterator[Item]:
        """Yield items that the consumer's own thread makes, until it computes something itself."""
        items: list[Item] = []
        consumer_seconds, max_seconds = 0.0, 2 * HANDOVER_BATCHES * _HANDOVER_SECONDS
        for count, number in enumerate(numbers):
            if self._queue.is_closed:
                return
            items.append(self._source.make(number)[0])
            yielded_at = time.perf_counter()
            yield items.pop()
            consumer_seconds += time.perf_counter() - yielded_at
            if consumer_seconds > max_seconds:
                return
            if count % HANDOVER_BATCHES == 0:
                consumer_seconds = 0.0

    def close(self) -> None:
        """Let the thread end before its next item, and the iteration with it."""
        self._queue.close()

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended; say whether it has."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        if thread.ident is not None:
            thread.join(timeout)
        return not thread.is_alive()


class _HandoverQueue(Generic[Item]):
    """Groups of items on their way from the thread to the consumer; knows neither."""

    def __init__(self, max_handovers: int) -> None:
        self._max_handovers = max_handovers
        self._changed = threading.Condition()
        self._ready: deque[deque[Item]] = deque()
        self._is_finished = False
        self.is_closed = False
        self.is_consumer_waiting = False  # the consumer waits
        self.is_stop_requested = False  # the consumer will make the rest itself
        self.error: BaseException | None = None

    def put(self, handover: deque[Item]) -> None:
        with self._changed:
            while len(self._ready) >= self._max_handovers and not self.is_closed:
                self._changed.wait(_POLL_SECONDS)
            if not self.is_closed:
                self._ready.append(handover)
                self._changed.notify_all()

    def take(self, is_alive: Callable[[], bool]) -> deque[Item] | None:
        """Return the next group; None where no more will come."""
        with self._changed:
            self.is_consumer_waiting = not self._ready
            while not (self._ready or self._is_finished or self.is_closed):
                if not self._changed.wait(_POLL_SECONDS) and not is_alive():
                    break
            self.is_consumer_waiting = False
            if not self._ready:
                return None
            handover = self._ready.popleft()
            self._changed.notify_all()
            return handover

    def finish(self, error: BaseException | None) -> None:
        with self._changed:
            self._is_finished = True
            self.error = None if self.is_closed else error  # nobody is left to raise it
            self._changed.notify_all()

    def reset_if_stopped(self) -> bool:
        """Say whether the thread has stopped because it was enough; another may begin then."""
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
            self._changed.notify_all()


def _run_thread(
    source: PrefetchSource[Item], numbers: Iterator[int], channel: _HandoverQueue[Item]
) -> None:
    try:
        _produce(source, numbers, channel)
    except BaseException as error:  # handed to the consumer, who raises it
        channel.finish(error)
    else:
        channel.finish(None)


def _produce(
    source: PrefetchSource[Item], numbers: Iterator[int], channel: _HandoverQueue[Item]
) -> None:
    handover: deque[Item] = deque()
    size, handed_over_at = 0, time.monotonic()
    try:
        for number in numbers:
            if channel.is_closed:
                return
            item, item_bytes = source.make(number)
            handover.append(item)
            del item  # the channel alone keeps it
            size += item_bytes
            is_late = (
                channel.is_consumer_waiting
                and time.monotonic() - handed_over_at > _MAX_GATHER_SECONDS
            )
            if is_late or size >= HANDOVER_BYTES or len(handover) >= HANDOVER_BATCHES:
                channel.put(handover)
                handover, size = deque(), 0
                source.on_handover(number + 1)
                handed_over_at = time.monotonic()
                if channel.is_stop_requested:
                    return
    finally:  # what is finished is delivered before an error
        if handover:
            channel.put(handover)


def _end_at_exit(channel: _HandoverQueue[Item], thread: weakref.ref[threading.Thread]) -> None:
    live_thread = thread()
    if live_thread is not None and live_thread is not threading.current_thread():
        channel.close()
        live_thread.join(_EXIT_TIMEOUT)


_MAX_STEPS = 64  # that it is told at most


def make_plan_ahead(steps: RankPlan, store: Store, first_step: int) -> Callable[[int], None]:
    """Return what plans the next block ahead, and hints to a store what will be read.

    Args:
        steps: Of this rank.
        store: What is read.
        first_step: The first step that is made; the store is told of it at once.

    Returns:
        A function that is called with the next step to make.
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
    """Return what tells a store of the steps from one on; None where it has no use for that.

    Args:
        store: What is read; of a view its base is told.
        steps: Of this rank.
    """
    base = store.base if isinstance(store, View) else store
    if not isinstance(base, SupportsPrefetch):
        return None
    hinted = steps.first_step

    def hint(step: int) -> None:
        nonlocal hinted
        hinted = max(hinted, step)
        while hinted < min(len(steps), step + _MAX_STEPS):
            if not base.expect(store.base_numbers(steps[hinted].spans[:, 0])):
                return
            hinted += 1

    return hint
