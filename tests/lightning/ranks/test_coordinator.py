"""One rank alone: it stops between batches, an error is raised again, and nothing is left."""

import pytest

from seqdata.errors import PeerFailedError, PreemptedError
from seqdata.lightning.ranks.coordinator import ExceptionNotifier, RankCoordinator
from tests.lightning.ranks.watchers import Batch, make_watched


@pytest.fixture
def coordinator():
    return RankCoordinator()


def test_items_come_as_they_are(coordinator):
    assert list(coordinator.iterate_synchronized(iter([1, 2]), 1)) == [1, 2]
    assert list(coordinator.iterate_synchronized(iter([]), 1)) == []


def test_a_batch_that_the_loop_drops_is_freed_before_the_next_is_made(coordinator):
    alive = []
    items = coordinator.iterate_synchronized(make_watched(alive), 1)
    for _ in range(4):
        assert isinstance(next(items), Batch)
    assert alive == [0, 0, 0, 0]


def test_a_stop_comes_before_the_next_batch(coordinator):
    items = coordinator.iterate_synchronized(iter([1, 2, 3]), 1)
    assert next(items) == 1
    coordinator.stop("SIGTERM")
    for _ in range(2):  # again and again
        with pytest.raises(PreemptedError, match="SIGTERM"):
            next(items)
    coordinator.leave()
    assert list(coordinator.iterate_synchronized(iter([4]), 1)) == [4]  # it begins again


def test_an_error_is_raised_again_and_never_the_end(coordinator):
    def broken():
        yield 1
        raise KeyError("mine")

    items = coordinator.iterate_synchronized(broken(), 1)
    assert next(items) == 1
    errors = []
    for _ in range(2):
        with pytest.raises(KeyError, match="mine") as caught:
            next(items)
        errors.append(caught.value)
    assert errors[0] is errors[1]


def test_one_rank_gathers_its_own_value(coordinator):
    assert coordinator.all_gather("a", 1, (0, 3)) == ["a"]
    assert coordinator.leave_by_exception(KeyError()) is None  # nobody waits
    coordinator.leave()


def test_an_exception_is_reported_and_stays_what_it_is():
    reported = []
    notifier = ExceptionNotifier(reported.append)
    error = KeyError("mine")
    assert notifier.on_exception(None, None, error) is None
    assert reported == [error]


def test_the_error_of_another_rank_is_raised_in_its_place(monkeypatch):
    from seqdata.lightning.ranks import coordinator as module

    cause, error = PeerFailedError.at("rank 1 has ended"), RuntimeError("connection reset")
    monkeypatch.setattr(module.adapter, "end_run", lambda *_, **__: [ValueError("and this")])
    with pytest.raises(PeerFailedError, match="rank 1 has ended") as caught:
        ExceptionNotifier(lambda _: cause).on_exception(None, None, error)
    assert caught.value.__cause__ is error
    assert caught.value.__notes__ == ["and when the run was ended: ValueError: and this"]
