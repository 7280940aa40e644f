"""The thread: order, groups, errors, and that it always ends."""

import gc
import threading
import time
import traceback

import pytest

from seqdata.loading import prefetch
from seqdata.loading.prefetch import (
    _MAX_GATHER_SECONDS,
    HANDOVER_BATCHES,
    HANDOVER_BYTES,
    Prefetcher,
    PrefetchSource,
)
from seqdata_testing.waiting import patient, until
from tests.samples import list_prefetch_threads, prefetch_threads_end


def recipe(make=lambda number: (number, 1), numbers=range(100), idle=lambda number: None):
    return PrefetchSource(make, numbers, idle)


def test_items_come_in_order_and_the_thread_ends():
    assert list(Prefetcher(recipe(), 2)) == list(range(100))
    assert prefetch_threads_end()


def test_no_thread_begins_before_the_first_item_is_asked_for():
    items = iter(Prefetcher(recipe(), 2))
    assert not list_prefetch_threads()
    assert next(items) == 0
    assert list_prefetch_threads()
    items.close()


def test_it_makes_no_more_than_is_asked_ahead():
    made, taken, ahead = [], [0], []

    def make(number):
        made.append(number)
        ahead.append(len(made) - taken[0])
        return number, HANDOVER_BYTES

    items = iter(Prefetcher(recipe(make), 3))
    for number in range(HANDOVER_BATCHES - 1):
        taken[0] += 1
        assert next(items) == number
        assert until(lambda: len(made) == taken[0] + 4)  # three waiting, one in its hand
    assert max(ahead) == 4
    items.close()


@pytest.mark.parametrize(
    ("size", "expected"), [(1, HANDOVER_BATCHES), (HANDOVER_BYTES // 4, 4), (HANDOVER_BYTES, 1)]
)
def test_a_group_is_full_by_bytes_or_by_number(size, expected):
    handed, taken = [], threading.Event()

    def make(number):
        if number == 0:
            hold_up(ahead)
        if number == 1:
            taken.wait(timeout=patient())
        return number, size

    ahead = Prefetcher(recipe(make, range(65), handed.append), 100)
    consumer = iter(ahead)
    assert next(consumer) == 0
    taken.set()
    assert until(lambda: len(handed) == 1 + 64 // expected)
    assert handed == [*range(1, 66, expected)]
    consumer.close()


def hold_up(ahead):
    """Keep a consumer waiting for longer than it is kept for the sake of a full group."""
    assert until(lambda: ahead._queue.is_consumer_waiting)
    time.sleep(2 * _MAX_GATHER_SECONDS)


def test_a_consumer_that_waits_gets_what_is_there():
    release = threading.Event()

    def make(number):
        if number == 3:
            hold_up(ahead)
        if number == 4:
            release.wait(timeout=patient())
        return number, 1

    ahead = Prefetcher(recipe(make), 2)
    items = iter(ahead)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    release.set()
    items.close()


def test_an_item_that_is_made_does_not_wait_for_a_slow_one_after_it():
    came = threading.Event()

    def make(number):
        return (number if number != 1 or came.wait(patient()) else "too late"), 1

    items = iter(Prefetcher(recipe(make, range(3)), 2))
    assert next(items) == 0
    came.set()
    assert list(items) == [1, 2]
    assert prefetch_threads_end()


def test_an_error_comes_after_the_items_before_it_with_its_traceback():
    def make(number):
        if number == 21:
            raise ValueError("number 21 is broken")
        return number, 1

    given = []
    with pytest.raises(ValueError, match="number 21 is broken") as caught:
        given.extend(Prefetcher(recipe(make), 2))
    assert "in make" in "".join(traceback.format_exception(caught.value))
    assert prefetch_threads_end()


def test_items_before_an_error_are_all_given():
    def make(number):
        if number == 21:
            raise SystemExit("even this")
        return number, 1

    items = iter(Prefetcher(recipe(make), 2))
    assert [next(items) for _ in range(21)] == list(range(21))
    with pytest.raises(SystemExit, match="even this"):
        next(items)


def test_an_iteration_that_is_left_ends_its_thread():
    for item in Prefetcher(recipe(numbers=range(10**9)), 2):
        if item == 50:
            break
    assert prefetch_threads_end()


@pytest.mark.slow
def test_an_iteration_that_is_forgotten_ends_its_thread():
    items = iter(Prefetcher(recipe(numbers=range(10**9)), 2))
    next(items)
    del items

    def gone():
        gc.collect()  # the thread may have held what is collected
        return not list_prefetch_threads()

    assert until(gone)


def test_closing_ends_an_iteration_that_waits():
    ahead = Prefetcher(recipe(lambda number: (number, 1), range(10**9)), 2)
    items = iter(ahead)
    assert next(items) == 0
    ahead.close()
    assert len(list(items)) < HANDOVER_BATCHES
    assert ahead.join(timeout=patient())


def test_an_ahead_that_never_began_is_joined_at_once():
    assert Prefetcher(recipe(), 2).join(timeout=0.0)


def test_a_thread_that_is_gone_is_not_waited_for():
    """As in a process that was forked while the thread ran."""
    assert prefetch._HandoverQueue(2).take(lambda: False) is None


def test_what_the_consumer_let_go_is_kept_by_nobody():
    class Item:
        alive = 0

        def __init__(self):
            Item.alive += 1

        def __del__(self):
            Item.alive -= 1

    items = iter(Prefetcher(recipe(lambda number: (Item(), HANDOVER_BYTES), range(3)), 5))
    first = next(items)
    assert until(lambda: Item.alive == 3)
    del first
    assert Item.alive == 2
    assert len(list(items)) == 2


def test_idle_is_called_between_hand_overs():
    seen = []
    list(Prefetcher(recipe(numbers=range(5, 40), idle=seen.append), 100))
    assert seen[-1] <= 40
    assert all(6 <= number <= 40 for number in seen)


def makers(clock, count=400, seconds=lambda number: 0):
    """Return the items, and which of them the consumer's own thread made."""
    clock.rule("seqdata.loading.prefetch")
    own = threading.get_ident()
    made = {}

    def make(number):
        made[number] = threading.get_ident() == own
        return number, 1

    given = []
    for item in Prefetcher(recipe(make, range(count)), 2):
        given.append(item)
        clock.seconds += seconds(item)
    return given, [made[number] for number in range(count)]


def test_a_consumer_that_only_draws_makes_the_items_itself_after_a_few_groups(clock):
    given, by_consumer = makers(clock, 1000)
    assert given == list(range(1000))
    assert not any(by_consumer[:HANDOVER_BATCHES])
    assert sum(by_consumer) > 900
    assert prefetch_threads_end()


def test_a_consumer_that_computes_is_given_items_of_the_thread(clock):
    given, by_consumer = makers(clock, seconds=lambda number: 0.0005)
    assert given == list(range(400))
    assert not any(by_consumer)


def test_a_consumer_that_computes_after_drawing_is_given_items_of_the_thread_again(clock):
    given, by_consumer = makers(clock, 1000, lambda number: 0 if number < 900 else 0.002)
    assert given == list(range(1000))
    assert any(by_consumer)
    assert not any(by_consumer[910:])
    assert prefetch_threads_end()


def test_an_error_in_an_item_that_the_consumer_makes_comes_after_those_before_it():
    def make(number):
        if threading.current_thread() is threading.main_thread():
            raise ValueError(f"number {number} is broken")
        return number, 1

    given = []
    with pytest.raises(ValueError, match="is broken") as caught:
        given.extend(Prefetcher(recipe(make, range(10**6)), 2))
    assert given == list(range(len(given)))
    assert str(caught.value) == f"number {len(given)} is broken"
    assert prefetch_threads_end()


def test_closing_ends_an_iteration_whose_consumer_makes_the_items():
    made = []

    def make(number):
        made.append(threading.current_thread() is threading.main_thread())
        return number, 1

    ahead = Prefetcher(recipe(make, range(10**9)), 2)
    items = iter(ahead)
    while not (made and made[-1]):
        next(items)
    ahead.close()
    assert list(items) == []
    assert ahead.join(timeout=patient())
