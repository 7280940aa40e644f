"""Crews over epochs: kept, left in the middle, used twice at once, dropped; nothing is left."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest

from seqdata import Fixed, Loader
from seqdata.errors import IncompleteEpochError
from seqdata.loading.step_requests import StepRequest
from seqdata_testing.waiting import patient, until, within
from tests.loading.workers import parts
from tests.loading.workers.parts import At, Slowly, descriptors, lives, loader, noisy, playing, same
from tests.samples import list_prefetch_threads


def crews_of(mine):
    return mine._engine._worker_pools


def collected():
    """Collect garbage, asked again and again: a thread that reads ahead may have held it before."""
    gc.collect()
    return True


def settled(mine):
    """Wait until no task is under way, and tell whether all slots of the kept crew are free."""
    (crew,) = crews_of(mine)._idle

    def free():
        crew.receive()
        return sorted(crew._free_slots) == list(range(crew._slots.num_slots))

    return until(free)


def test_the_same_workers_play_all_epochs():
    with playing(noisy, num_workers=2) as mine:
        pids = set()
        for _ in range(4):
            list(mine)
            pids.update(mine.worker_pids)
        assert len(pids) == 2
        assert settled(mine)
    assert until(lambda: not any(map(lives, pids)))


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.slow
def test_leaving_fifty_epochs_early_leaves_nothing_behind(prefetch):
    with playing(Slowly(0.0001), num_workers=2, prefetch=prefetch) as mine:
        for _ in range(3):
            next(iter(mine))
        gc.collect()
        pids, before = mine.worker_pids, descriptors()
        for number in range(50):
            for step, _ in enumerate(mine):
                if step == number % 5:
                    break
        assert mine.worker_pids == pids
        assert until(lambda: not list_prefetch_threads())
        assert descriptors() <= before + 1
        assert settled(mine)
        assert same(mine, loader(Slowly(0), num_workers=0, epoch=mine.epoch))


def test_two_iterations_at_once_each_have_workers_of_their_own():
    with playing(noisy, num_workers=1) as mine:
        one, two = iter(mine), iter(mine)
        first, second = [next(one)], [next(two)]
        assert len(set(mine.worker_pids)) == 2
        for left, right in zip(one, two, strict=True):
            first.append(left)
            second.append(right)
        assert same(first, loader(noisy, num_workers=0))
        assert same(second, loader(noisy, num_workers=0, epoch=1))
        assert until(lambda: len(mine.worker_pids) == 1)


@pytest.mark.slow
def test_an_iteration_that_nobody_holds_gives_its_workers_back():
    with playing(Slowly(0.001), num_workers=2) as mine:
        held = [iter(mine)]
        next(held[0])
        held.append(held)  # a cycle: only the collector ends it
        pids = mine.worker_pids
        del held
        assert until(lambda: collected() and crews_of(mine)._idle)
        assert len(list(mine)) == 15
        assert mine.worker_pids == pids


@pytest.mark.parametrize("act", [parts.hangs, parts.is_stopped])
@pytest.mark.slow
def test_a_loader_that_nobody_holds_ends_its_workers_even_stuck_ones(act):
    mine = loader(At(act, 8), num_workers=2, prefetch=0)
    batches = iter(mine)
    next(batches)
    next(batches)
    pids, before = mine.worker_pids, descriptors()
    assert until(Path(parts.ACTS).exists)
    del batches, mine
    assert until(lambda: collected() and not any(map(lives, pids)))
    assert descriptors() < before


@pytest.mark.slow
def test_a_loader_and_an_iteration_that_nobody_holds_end_their_workers():
    mine = loader(num_workers=2)
    batches = iter(mine)
    next(batches)
    pids = mine.worker_pids
    del batches, mine
    assert until(lambda: collected() and not any(map(lives, pids)))


def test_a_run_that_was_ended_sends_no_more_tasks():
    with playing(num_workers=1) as mine:
        span = np.array([[0, 0, 1]], dtype=np.int64)
        requests = [StepRequest(span, span[:, 0], 0)] * 100
        with crews_of(mine).open_session() as run:
            run.begin(iter(requests))
            run.take()
        assert settled(mine)
        with pytest.raises(
            IncompleteEpochError, match="the iteration was interrupted while it made"
        ):
            run.take()
        assert settled(mine)


def test_more_than_was_asked_for_never_comes_and_nobody_waits_for_it():
    with playing(num_workers=1) as mine, crews_of(mine).open_session() as run:
        span = np.array([[0, 0, 1]], dtype=np.int64)
        run.begin(iter([StepRequest(span, span[:, 0], 0)]))
        run.take()
        with pytest.raises(IncompleteEpochError, match="no requested batch is left"):
            run.take()


def test_a_run_gives_up_where_its_iteration_is_left_while_it_waits():
    with playing(At(parts.hangs, 0), num_workers=1) as mine:
        batches = iter(mine)
        caught = []
        taking = threading.Thread(target=lambda: caught.append(_error_of(batches)))
        taking.start()
        assert until(Path(parts.ACTS).exists)
        with within(2.5):
            mine.shutdown()
            taking.join(patient())
        assert isinstance(caught[0], IncompleteEpochError)
        assert mine.worker_pids == []


def _error_of(batches):
    try:
        return next(batches)
    except Exception as error:
        return error


def interrupted(batches):
    signal.setitimer(signal.ITIMER_REAL, 0.03)
    list(batches)


def test_what_ctrl_c_has_interrupted_is_not_used_again():
    with playing(Slowly(0.01), num_workers=1, prefetch=0) as mine:
        batches = iter(mine)
        next(batches)
        pids = mine.worker_pids
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            interrupted(batches)
        assert until(lambda: not any(map(lives, pids)))
        assert len(list(mine)) == 15
        assert mine.worker_pids != pids


def test_a_fork_of_the_training_process_has_workers_of_its_own():
    with playing(noisy, num_workers=1) as mine:
        one = iter(mine)
        first = [next(one)]
        list(mine)
        child = os.fork()
        if not child:
            code = 1
            try:
                kept = [*crews_of(mine)._idle]
                good = same(mine, loader(noisy, num_workers=0, epoch=2))
                mine.shutdown()
                code = 0 if good and kept else 2
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert same([*first, *one], loader(noisy, num_workers=0))


@pytest.mark.parametrize("of", ["numpy", "torch"])
def test_a_worker_has_global_random_numbers_of_its_own(of):
    def drawn(seed, workers):
        store, options = parts.Squares(random=of), {"fields": ("x", "worker")}
        mine = Loader(
            store, Fixed(1, shuffle=False), lengths=parts.SQUARES_LENGTHS, num_workers=workers,
            start_method="fork", seed=seed, **options,
        )  # fmt: skip
        found = {}
        for batch in mine:
            found.setdefault(int(batch["worker"][0]), []).append(batch["x"].flatten().tolist())
        mine.shutdown()
        return list(found.values())

    (one,), (again,), (other,) = drawn(1, 1), drawn(1, 1), drawn(2, 1)
    assert one == again
    assert one != other
    mine, its = drawn(1, 2)
    numbers = [{value for row in rows for value in row} for rows in (mine, its)]
    assert not numbers[0] & numbers[1]


@pytest.mark.slow
def test_many_crews_in_turn_leave_nothing_behind():
    list(loader(num_workers=1))
    gc.collect()
    before = descriptors()
    for _ in range(10):
        with playing(num_workers=1) as mine:
            next(iter(mine))
    gc.collect()
    assert until(lambda: not list_prefetch_threads())
    assert descriptors() <= before + 1


def leaves_early(how):
    """Draw one batch in a process of ``multiprocessing``, and leave the loader as it is."""
    held = Loader(parts.STORE, Fixed(4), num_workers=1, start_method="fork")
    batches = iter(held)
    next(batches)
    sys.modules[__name__].held = held, batches
    if how == "closed":
        batches.close()


@pytest.mark.parametrize("how", ["closed", "as it is"])
def test_a_process_of_multiprocessing_ends_with_the_workers_that_it_left(how):
    """It joins its own children before anything that is registered with ``atexit``."""
    process = multiprocessing.get_context("fork").Process(target=leaves_early, args=(how,))
    process.start()
    process.join(timeout=patient())
    ended = process.exitcode
    process.kill()
    assert ended == 0


@pytest.mark.parametrize("prefetch", [0, 2])
def test_workers_that_are_not_to_stay_end_with_their_epoch(prefetch):
    with playing(num_workers=2, prefetch=prefetch, persistent_workers=False) as mine:
        batches = iter(mine)
        next(batches)
        pids = mine.worker_pids
        assert len(pids) == 2
        assert len(list(batches)) == 14
        assert mine.worker_pids == []
        assert not any(map(lives, pids))
        assert len(list(mine)) == 15


def test_an_epoch_may_be_closed_at_the_exit_once_multiprocessing_is_gone(monkeypatch):
    """As Python does with a generator that something of a module still holds."""
    with playing(noisy, num_workers=1) as mine:
        iteration = iter(mine)
        next(iteration)
        (pool,) = crews_of(mine)._busy
        pool._before_joining()  # what multiprocessing calls at the exit
        with monkeypatch.context() as gone:
            gone.setattr("multiprocessing.util._finalizer_registry", None)
            crews_of(mine).close()
        try:
            assert len(list(iteration)) == 14  # the worker had made them all before
        except IncompleteEpochError:
            assert not any(map(lives, mine.worker_pids))
