"""Threads that fetch: results in order, the first error once all have ended, new after a fork."""

import os
import signal
import threading

import pytest

from seqdata.storage.remote.transport import ForkSafeThreadPool
from seqdata_testing.waiting import patient


def test_results_come_in_order_whatever_ends_first():
    pool, last = ForkSafeThreadPool(3), threading.Event()

    def double(number):
        if number == 2:
            last.set()
        elif number == 0:
            assert last.wait(patient())
        return 2 * number

    assert pool.map(double, range(3)) == [0, 2, 4]


def test_one_thing_is_done_by_whoever_asks():
    pool = ForkSafeThreadPool(3)
    assert pool.map(lambda _: threading.current_thread(), [1]) == [threading.current_thread()]
    assert pool.map(abs, []) == []


def test_the_threads_are_started_once():
    pool = ForkSafeThreadPool(1)
    first, second = (pool.submit(threading.current_thread).result(patient()) for _ in range(2))
    assert first is second


def test_no_more_threads_work_than_there_may_be():
    pool, both = ForkSafeThreadPool(2), threading.Barrier(2)

    def name(_):
        both.wait(patient())
        return threading.current_thread().name

    names = set(pool.map(name, range(6)))
    assert len(names) == 2
    assert all(one.startswith("seqdata-remote") for one in names)


def test_the_first_error_is_raised_once_all_that_runs_has_ended():
    pool, ended, begun = ForkSafeThreadPool(2), [], threading.Event()

    def fail(number):
        if number == 0:
            assert begun.wait(patient())
            raise OSError("first")
        if number == 1:
            begun.set()
            ended.append(number)
            raise ValueError("second")
        return number

    with pytest.raises(OSError, match="first"):
        pool.map(fail, range(2))
    assert ended == [1]


def test_a_single_function_runs_beside():
    assert ForkSafeThreadPool(1).submit(pow, 2, 5).result(patient()) == 32


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    pool = ForkSafeThreadPool(2)
    assert pool.map(abs, [-1, -2]) == [1, 2]
    with pool._lock:  # as if another thread was about to fetch
        pid = os.fork()
        if not pid:
            signal.alarm(round(patient()))  # where it would wait for ever
            os._exit(0 if pool.map(abs, [-3, -4]) == [3, 4] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
