"""What ranks wait for, and errors of one rank, which arrive on the others as what they are."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore, ProcessGroupGloo

from seqdata.errors import DecodeError, PeerFailedError
from seqdata.lightning.ranks import watchdog
from seqdata.lightning.ranks.synchronizer import RankSynchronizer, _make_report, _rebuild_error
from seqdata.lightning.ranks.watchdog import RankTimeouts, RankWatchdog, describe_own_process
from seqdata_testing.waiting import patient
from tests.lightning.ranks.watchers import Batch, make_watched

LONG = timedelta(seconds=patient(60))


class Local(Exception):
    """An error that one rank makes, and another may not know."""

    def __reduce__(self):
        return made, (os.getpid(),)


def made(pid):
    if pid != int(os.environ.get("MADE", pid)):
        raise LookupError("there is no such thing here")
    return Local("local")


def test_an_error_that_cannot_be_made_on_another_rank_is_told_in_words(monkeypatch):
    told = _make_report(3, Local("local"), None)
    monkeypatch.setenv("MADE", "0")
    error = _rebuild_error(told, 2)
    assert isinstance(error, PeerFailedError)
    assert str(error) == (
        "ranks: rank 2 failed: Local: local (it cannot be unpickled here: there is no such "
        "thing here)"
    )


def test_an_error_of_ours_arrives_with_class_text_facts_and_rank():
    error = _rebuild_error(_make_report(3, DecodeError.at("field 'x' is bad", shard=7), None), 2)
    assert type(error) is DecodeError
    assert (str(error), error.details) == ("rank 2: field 'x' is bad", {"shard": 7, "rank": 2})


@pytest.fixture
def groups():
    """The gloo groups of two ranks, both in this process."""
    store = HashStore()
    with ThreadPoolExecutor(2) as executor:
        begun = [executor.submit(ProcessGroupGloo, store, rank, 2, LONG) for rank in range(2)]
    return [group.result(timeout=LONG.seconds) for group in begun]


@pytest.fixture
def synchronizer():
    """That of rank 0, whose watchdog does not run."""
    own = RankWatchdog(None, [describe_own_process(0)], 0, RankTimeouts())
    return RankSynchronizer(None, 0, own, lambda: None)


class JustInTime:
    """A reduction that is complete when the wait for it says that it has timed out."""

    def __init__(self, work, complete):
        self.work = work
        self.complete = complete
        self.is_completed = work.is_completed

    def wait(self, timeout=None):
        if timeout is not None:
            self.complete()
            raise RuntimeError("Timed out waiting 1000ms for recv operation to complete")
        return self.work.wait(LONG)


def test_a_reduction_that_is_complete_as_its_wait_times_out_has_not_failed(groups, synchronizer):
    mine, other = torch.tensor([1]), torch.tensor([2])
    work = groups[0].allreduce([mine])

    def complete():
        groups[1].allreduce([other]).wait(LONG)
        work.wait(LONG)

    synchronizer._wait(JustInTime(work, complete))
    assert mine.tolist() == other.tolist() == [3]


def test_a_reduction_that_has_failed_as_its_wait_times_out_is_the_error_of_a_lost_rank(
    groups, synchronizer, monkeypatch
):
    monkeypatch.setattr(watchdog, "_CAUSE_TIMEOUT", 0)
    work = groups[0].allreduce([torch.tensor([1])])

    def complete():
        groups.pop()  # its connections are closed
        with pytest.raises(RuntimeError):
            work.wait(LONG)

    with pytest.raises(PeerFailedError, match=r"rank 0 has lost another rank: .*[Cc]onnection"):
        synchronizer._wait(JustInTime(work, complete))


class Done:
    """A reduction that need not be waited for."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True


@pytest.mark.parametrize(("is_last", "expected"), [(None, [0, 1, 1, 1]), (bool, [0, 0, 0, 0])])
def test_a_batch_that_the_loop_drops_is_freed_before_the_next_is_made(
    synchronizer, monkeypatch, is_last, expected
):
    monkeypatch.setattr(synchronizer, "_start_reduction", lambda values, operation: Done())
    alive = []
    items = synchronizer.iterate(make_watched(alive), None, is_last)
    for _ in range(4):
        assert isinstance(next(items), Batch)
    assert alive == expected  # without `is_last`, one is in hand while the next is made
