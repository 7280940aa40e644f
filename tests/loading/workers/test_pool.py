"""Workers that make progress are not given up; tasks of those that ended are not answered."""

import os
import signal
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from seqdata.errors import WorkerDiedError
from seqdata.loading.workers import messages as slots
from seqdata.loading.workers.handle import WorkerHandle
from seqdata.loading.workers.pool import WorkerPool
from tests.loading.workers import parts

LIMIT = 30.0


def watching():
    """A crew with one worker that has a task, and its line of status; no process is started."""
    made = WorkerPool.__new__(WorkerPool)
    made._options = SimpleNamespace(stall_timeout=LIMIT)
    made._status = np.zeros((1, slots.STATUS_WIDTH), dtype=np.int64)
    made._fetcher = SimpleNamespace(reader=SimpleNamespace(store=parts.STORE))
    made._workers = [WorkerHandle(0, 0, None, None, None, tasks=deque([SimpleNamespace()]))]
    made._take_snapshot = lambda member: None
    return made


def test_a_slow_worker_that_makes_progress_is_not_given_up(monkeypatch):
    told = []
    monkeypatch.setattr(
        "seqdata.loading.workers.handle.make_stalled_error", lambda *known: told.append(known)
    )
    monkeypatch.setattr("seqdata.loading.workers.handle.dump_stack", lambda *known: "")
    monkeypatch.setattr("seqdata.loading.workers.handle.describe_slow", lambda *known: "slow")
    crew = watching()
    (member,) = crew._workers
    crew._fail_worker = lambda member, error: told.append("given up")
    for _ in range(100):  # 2,900 s for a hundred sequences
        crew._status[0, slots.PROGRESS] += 1
        for _ in range(30):
            crew._check_worker(member, 29 / 30)
        assert told == []
    for _ in range(30):
        crew._check_worker(member, 1.0)
    assert told[-1] == "given up"


def test_each_sequence_that_a_worker_begins_is_progress():
    def transform(sequence, rng):
        return sequence

    with parts.playing(transform, prefetch=0) as mine:
        for _ in mine:
            pass
        (crew,) = mine._engine._worker_pools._idle
        assert int(crew._status[0, slots.PROGRESS]) >= parts.ITEMS


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_task_that_no_worker_began_is_not_answered_by_an_earlier_one(num_workers, monkeypatch):
    """All slots have been used; the workers end before they begin a task of the next epoch."""
    submit, ending = WorkerPool.submit, []

    def submit_and_end(pool, requests):
        for pid in pool.pids if ending else ():
            os.kill(pid, signal.SIGSTOP)  # before it sees the task
        task = submit(pool, requests)
        for pid in pool.pids if ending else ():
            os.kill(pid, signal.SIGKILL)
        return task

    monkeypatch.setattr(WorkerPool, "submit", submit_and_end)
    with parts.playing(num_workers=num_workers, prefetch=2) as mine:
        for _ in range(2):
            assert len(list(mine)) == parts.ITEMS // 4
        ending.append(True)
        came = []
        with pytest.raises(WorkerDiedError):
            came.extend(mine)
        assert not came
