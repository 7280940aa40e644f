"""Workers that do not go on: given up after a bound, with a warning before and their stack."""

import logging
from pathlib import Path

import pytest

from seqdata.errors import StallError
from seqdata.loading.workers import handle as handles
from seqdata_testing.waiting import patient, until
from tests.loading.workers import parts
from tests.loading.workers.parts import BEFORE, At, Heard, lives, play_until_error, playing


@pytest.fixture
def stalls(clock):
    """Return a limit for workers that do not go on; no time passes before an ``At`` acts."""

    def now():
        clock.seconds += 0.3 * Path(parts.ACTS).exists()
        return clock.seconds

    clock.rule("seqdata.loading.workers.pool", now=now)
    return 0.6


def test_a_stuck_worker_is_given_up_with_its_stack_after_a_warning(stalls, monkeypatch):
    monkeypatch.setattr(handles, "_DUMP_TIMEOUT", patient())
    heard = Heard()
    logging.getLogger("seqdata").addHandler(heard)
    try:
        came, error = play_until_error(At(parts.hangs), StallError, stall_timeout=stalls)
    finally:
        logging.getLogger("seqdata").removeHandler(heard)
    assert len(came) == BEFORE
    assert error.details["sequence"] == 33
    head, _, stack = str(error).partition("\n")
    assert 'made no progress for 1 s at memory, sequence 33 ("s33"). Look at' in head
    assert head.endswith("or raise `stall_timeout`")
    assert " in hangs" in stack
    (line,) = heard.lines
    assert line.startswith("loader: worker 0 (pid ")
    assert "has made no progress for 0 s at memory, sequence 33" in line


def test_a_stopped_worker_gives_no_stack(monkeypatch, stalls):
    monkeypatch.setattr(handles, "_DUMP_TIMEOUT", 0.1)
    _, error = play_until_error(
        At(parts.is_stopped), StallError, match="its process wrote no stack", stall_timeout=stalls
    )
    assert not lives(error.details["pid"])


def test_time_counts_from_the_first_task_on(clock):
    """Not from the start of the pool, nor from the end of the epoch before."""
    clock.rule("seqdata.loading.workers.pool")
    with playing(num_workers=2, stall_timeout=0.5, persistent_workers=True) as mine:
        for _ in range(2):
            clock.seconds += 100.0
            assert len(list(mine)) == 15


@pytest.mark.timeout(30)
def test_a_stuck_worker_whose_task_nobody_wants_any_more_is_found_out_too(stalls):
    with playing(At(parts.hangs, 0), stall_timeout=stalls, prefetch=0, num_workers=1) as mine:
        run = iter(mine)
        with pytest.raises(StallError):
            next(run)
    Path(parts.ACTS).unlink()
    with playing(At(parts.hangs, 4), stall_timeout=stalls, num_workers=1) as mine:
        run = iter(mine)
        next(run)
        run.close()  # the worker hangs in the second batch
        with pytest.raises(StallError):
            list(mine)


def test_a_training_process_that_was_stopped_itself_does_not_give_up_its_workers(clock):
    looks = [0]

    def now():
        looks[0] += Path(parts.ACTS).exists()
        clock.seconds += 600.0 * (looks[0] == 3)  # as between Ctrl-Z and fg
        if looks[0] == 6:
            Path("go").touch()
        return clock.seconds

    clock.rule("seqdata.loading.workers.pool", now=now)
    with playing(At(lambda: until(Path("go").exists)), stall_timeout=3.0) as mine:
        assert len(list(mine)) == 15
    assert looks[0] >= 6
