"""What goes wrong in a worker is raised in the loop, with its class, text, details and place.

``make faults`` tries the deaths of workers with every start method; here each message is read.
"""

import copyreg
import errno
import gc
import multiprocessing
import os
import pickle
import re
import resource
import signal
import traceback
from pathlib import Path

import numpy as np
import pytest

from seqdata import Fixed, Loader, open_store, write_store
from seqdata.errors import (
    ConfigError,
    DecodeError,
    IncompleteEpochError,
    LimitError,
    RemoteReadError,
    WorkerDiedError,
)
from seqdata.loading.workers import handle as handles
from seqdata.loading.workers.worker import WorkerTraceback
from seqdata.storage.memory import MemoryStore
from seqdata_testing.waiting import until, within
from tests.loading.workers import parts
from tests.loading.workers.parts import BEFORE, At, loader, play_until_error, playing


def test_an_exception_keeps_class_text_and_fields_and_tells_its_place():
    came, error = play_until_error(At(parts.fails), parts.Custom)
    assert (len(came), error.args, error.code) == (BEFORE, ("told to fail", 7), 7)
    assert isinstance(error.__cause__, WorkerTraceback)
    cause = str(error.__cause__)
    assert "parts.py" in cause
    assert "in fails\n" in cause
    assert 'raise Custom("told to fail", 7)' in cause
    notes = "\n".join(error.__notes__)
    assert "in the transform of sequence 's33'" in notes
    assert error.details["sequence"] == 33
    assert "in worker 0 (pid " in notes
    assert "in epoch 0, batch 8 (step 8, rank 0 of 1)" in notes
    assert cause in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_was_finished_comes_before_an_error_of_another_worker(prefetch):
    came, _ = play_until_error(At(parts.fails), parts.Custom, num_workers=3, prefetch=prefetch)
    assert [int(batch.ids[0]) for batch in came] == list(range(0, 32, 4))


def test_an_error_of_ours_keeps_its_details_and_adds_the_worker():
    _, error = play_until_error(At(parts.fails_as_ours), DecodeError, match="field 'x' is odd")
    details = {"field": "x", "offset": 12, "sequence": 33, "worker": 0, "batch": 8, "epoch": 0}
    assert details.items() <= error.details.items()
    assert "batch 8 (step 8, rank 0 of 1, worker 0)" in str(error)
    assert "in the transform of sequence 's33'" in str(error)
    assert "in fails_as_ours\n" in str(error.__cause__)
    assert "a note of the user" in error.__notes__


def test_an_error_is_the_same_with_and_without_workers():
    texts = []
    for workers in (0, 2):
        came, error = play_until_error(At(parts.fails_as_ours), DecodeError, num_workers=workers)
        assert len(came) == BEFORE
        worker = error.details.pop("worker", 0)
        texts.append((str(error).replace(f", worker {worker}", ""), error.details))
    assert texts[0][0] == texts[1][0].replace(", worker 1", "")
    assert texts[0][1] == texts[1][1]


def test_an_exception_that_cannot_travel_is_told_in_words(monkeypatch):
    # Dask, where a test has begun it, makes all exceptions travel
    monkeypatch.delitem(copyreg.dispatch_table, parts.Stubborn, raising=False)
    came, error = play_until_error(
        At(parts.fails_stubbornly),
        RuntimeError,
        match=r"tests\.loading\.workers\.parts\.Stubborn: cannot travel \(it cannot be "
        r"pickled: .*missing 1 required positional argument: 'other'\)",
    )
    assert len(came) == BEFORE
    assert any("in the transform of sequence 's33'" in note for note in error.__notes__)
    assert "in fails_stubbornly\n" in str(error.__cause__)


def test_the_crew_goes_on_after_an_exception():
    with playing(At(parts.fails), num_workers=2) as mine:
        for _ in range(3):
            with pytest.raises(parts.Custom):
                list(mine)
            pids = mine.worker_pids
        assert mine.worker_pids == pids
        assert len(pids) == 2


class Unsendable:
    def __init__(self):
        self.content = lambda: None

    def __len__(self):
        return 2

    def __getitem__(self, number):
        return {"x": np.arange(3)}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"transform": At(parts.fails)}, "the store"),
        ({"collate_fn": lambda items: items}, r"[\w.]*<lambda>"),
    ],
)
def test_what_cannot_be_sent_is_named_alone(options, named):
    data = Unsendable() if named == "the store" else [[1], [2]]
    mine = Loader(
        data, Fixed(1), lengths=[3, 3] if named == "the store" else None, num_workers=1,
        start_method="spawn", **options,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=rf"loader: {named} cannot be pickled for a worker pro"):
        list(mine)


@pytest.mark.slow
def test_a_transform_that_does_not_unpickle_in_the_worker_is_an_error_of_its_first_batch():
    message = (
        r"loader: a worker process cannot unpickle its work \(ValueError: does not "
        r"want to be made again\). Define functions in a module, or pass start_method='fork'"
    )
    came, error = play_until_error(
        parts.Unmakeable(), ConfigError, match=message, start_method="forkserver", on_error="mask"
    )
    assert came == []
    assert "_refused" in str(error.__cause__)


def test_data_that_is_damaged_before_a_worker_opens_it_is_told_as_that(tmp_path):
    rows = [{"x": np.arange(4) + number} for number in range(9)]
    write_store(tmp_path / "data", rows, progress=False)
    store = open_store(tmp_path / "data")
    os.truncate(tmp_path / "data" / "part-00000.arrow", 64)
    came, error = play_until_error(
        None,
        ConfigError,
        match=r"(?s)loader: a worker process cannot open the data \(CorruptShardError: .*must "
        r"have \d+ bytes, but has 64.*\), which the training process could. Restore it",
        store=store,
        start_method="forkserver",
        on_error="mask",
    )
    assert came == []
    assert {"shard": 0, "worker": 0, "batch": 0}.items() <= error.details.items()


@pytest.mark.slow
def test_a_server_that_does_not_answer_a_worker_is_told_as_in_the_training_process():
    came, error = play_until_error(
        parts.Unreachable(), RemoteReadError, match="no answer", start_method="forkserver"
    )
    assert came == []
    assert {"attempts": 7, "worker": 0, "batch": 0}.items() <= error.details.items()


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_transform_that_cannot_be_sent_is_refused(method):
    store = MemoryStore.from_sequences([[1], [2]])
    mine = Loader(
        store, Fixed(1), transform=lambda sequence, rng: sequence, num_workers=1,
        start_method=method,
    )  # fmt: skip
    message = (
        r"loader: [\w.]*.<locals>.<lambda> cannot be pickled for a worker process \(.*\). "
        r"Define functions in a module, or pass start_method='fork'"
    )
    with pytest.raises(ConfigError, match=message):
        list(mine)
    assert mine.worker_pids == []


DEATHS = [
    (
        parts.leaves,
        (
            r"ended with exit code 3 at .*: the transform or dataset ended the process: raise an "
            r"error there instead"
        ),
        {"exitcode": 3},
    ),
    (parts.leaves_at_once, r"ended with exit code 4 at ", {"exitcode": 4}),
    (
        parts.is_killed,
        (
            r"was killed by SIGKILL at .*, with \d+ MiB of memory: the system kills a process when "
            r"memory runs out: use fewer workers or smaller batches"
        ),
        {"signal": "SIGKILL", "exitcode": -9},
    ),
    (
        parts.crashes,
        (
            r"was killed by SIGSEGV at .*: compiled code of the transform, dataset or a library "
            r"crashed: debug it with num_workers=0"
        ),
        {"signal": "SIGSEGV"},
    ),
]


@pytest.mark.parametrize(("act", "message", "details"), DEATHS)
def test_the_death_of_a_worker_is_an_error_within_two_seconds(act, message, details):
    with within(2.0):
        came, error = play_until_error(At(act), WorkerDiedError, match=message)
    assert len(came) == BEFORE
    known = {"worker": 0, "sequence": 33, "batch": BEFORE, "epoch": 0, "rank": 0} | details
    assert known.items() <= error.details.items()
    assert error.details["pid"] > 0
    assert str(error).startswith(f"loader: worker 0 (pid {error.details['pid']}) ")
    assert "epoch 0, batch 8 (step 8, rank 0 of 1, worker 0)" in str(error)


def test_a_crash_shows_the_stack_down_to_the_transform():
    _, error = play_until_error(At(parts.crashes), WorkerDiedError)
    assert "  | Fatal Python error: Segmentation fault" in str(error)
    assert " in crashes" in str(error)
    assert " in __call__" in str(error)
    assert "_answer" not in str(error)


def held_up(sequence, rng):
    """Wait before sequence 20 and all after it until the test lets them go."""
    if int(sequence["id"][1:]) >= 20:
        until(Path("go").exists)
    return sequence


def is_held(pool, member):
    """Return whether a worker is at a sequence that it is held up before."""
    return (pool._take_snapshot(member).sequence or 0) >= 20


def has_stack(member):
    """Return whether a worker has written its stack; ask again: one that starts ignores signals."""
    if handles.read_stack(member.stacks):
        return True
    os.kill(member.pid, signal.SIGUSR1)  # writes its stack, and continues
    return False


def test_a_worker_killed_from_outside_says_what_it_had():
    with playing(held_up, num_workers=2) as mine:
        batches = iter(mine)
        next(batches)
        pool = mine._engine._worker_pools._busy[0]
        members = pool._workers
        os.kill(mine.worker_pids[1], signal.SIGTERM)  # ignored: the training process decides
        assert until(lambda: all(has_stack(member) for member in members))
        assert until(lambda: any(is_held(pool, member) for member in members))
        hit = next(member for member in members if is_held(pool, member))  # the other may have done
        os.kill(hit.pid, signal.SIGKILL)
        Path("go").touch()
        with pytest.raises(WorkerDiedError, match="was killed by SIGKILL") as caught:
            list(batches)
        assert "  | " not in str(caught.value)
        assert caught.value.details["worker"] == hit.number
        assert mine.worker_pids == []


def test_a_worker_that_is_gone_between_epochs_is_replaced():
    with playing() as mine:
        list(mine)
        (old,) = mine.worker_pids
        os.kill(old, signal.SIGKILL)
        os.waitid(os.P_PID, old, os.WEXITED | os.WNOWAIT)
        assert len(list(mine)) == 15
        assert mine.worker_pids != [old]


def last(**known):
    given = {
        "worker": 1,
        "pid": 77,
        "is_ready": True,
        "sequence": None,
        "batch_sequences": (),
        "peak_kib": 0,
    }
    return handles.WorkerSnapshot(**given | known)


STORE = MemoryStore.from_sequences([[1], [2, 2]])
WORDS = [
    (
        last(is_ready=False),
        1,
        (
            "ended with exit code 1 before it was ready: its error is printed above; put the call "
            "of a script under `if __name__ == '__main__':`, or pass start_method='fork'"
        ),
    ),
    (last(is_ready=False), -11, "was killed by SIGSEGV before it was ready: compiled code"),
    (last(), None, "ended with exit code None while it had nothing to do: the"),
    (
        last(batch_sequences=(0, 1)),
        -7,
        (
            "was killed by SIGBUS in the batch of memory, sequence 0 and 1 more: a file was "
            "truncated while it was read, or memory ran out: verify the store"
        ),
    ),
    (
        last(batch_sequences=(1,)),
        -2,
        ("was killed by SIGINT in the batch of memory, sequence 1: find out what sent the signal"),
    ),
    (
        last(batch_sequences=(0, 1), sequence=1, peak_kib=2048),
        -40,
        (
            "was killed by signal 40 at memory, sequence 1, with 2 MiB of memory: find out what "
            "sent the signal"
        ),
    ),
]


@pytest.mark.parametrize(("known", "exitcode", "text"), WORDS)
def test_every_end_has_its_words(known, exitcode, text):
    error = handles.make_died_error(known, exitcode, "", STORE)
    assert str(error).startswith(f"loader: worker 1 (pid 77) {text}")
    assert error.details["rss"] == known.peak_kib << 10
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.details) == (str(error), error.details)


@pytest.mark.parametrize("free", [0, 3, 8])
def test_processes_that_cannot_be_started_say_how_many_descriptors_they_need(free):
    message = (
        r"loader: cannot start 2 worker processes \(Too many open files\). Raise `ulimit -n` \(now "
        r"(\d+)\) to at least (\d+): (\d+) descriptors are open, and 22 more are needed; or use "
        r"fewer `num_workers`."
    )
    made = loader(num_workers=2)
    with no_descriptors(free), pytest.raises(ConfigError, match=message) as caught:
        list(made)
    limit, advised, opened = map(int, re.search(message, str(caught.value)).groups())
    assert advised > limit  # `opened` may be more: some are of before it was lowered
    assert advised >= opened + 22
    assert len(list(made)) == 15  # once there are enough
    made.shutdown()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (BlockingIOError(errno.EAGAIN, "none left"), r"\(none left\). Raise `ulimit -u` \(now"),
        (
            BrokenPipeError(errno.EPIPE, "Broken pipe"),
            r"one ended while it was sent its work \(Broken pipe\); its error is printed above; "
            r"put the call of a script under `if __name__ == '__main__':`",
        ),
        (EOFError(), r"one ended while it was sent its work \(EOFError\); its error is"),
        (OSError(errno.EIO, "bad"), r"\(bad\). Change what the error names, or use num_workers=0"),
    ],
)
def test_processes_that_cannot_be_started_say_why(error, message, monkeypatch):
    def fail(self, *_):
        raise error

    monkeypatch.setattr("multiprocessing.context.ForkProcess.start", fail)
    with pytest.raises(ConfigError, match=r"loader: cannot start 2 worker processes:? " + message):
        list(loader(num_workers=2))


@pytest.mark.parametrize("free", [0, 1])
@pytest.mark.slow
def test_a_batch_that_needs_a_descriptor_and_gets_none_says_so(monkeypatch, free):
    monkeypatch.setattr("seqdata.loading.workers.pool.SLOT_BYTES", 8192)
    monkeypatch.setattr("seqdata.loading.workers.session.SLOT_BYTES", 8192)
    store = MemoryStore.from_sequences([np.zeros(10)] * 4 + [np.zeros(2000)] * 8)
    with playing(store=store, prefetch=0) as mine:
        batches = iter(mine)
        next(batches)
        message = "bytes does not fit its slot, and separate memory could not be"
        with no_descriptors(free), pytest.raises(LimitError, match=message) as one:
            list(batches)
        assert "or raise `ulimit -n` (now " in str(one.value)
        assert "descriptors are open, and 1 more is needed" in str(one.value)
        assert one.value.details["batch"] == 1
        assert until(lambda: mine.worker_pids == [])


class no_descriptors:
    """Takes all descriptors of this process but a few."""

    def __init__(self, free):
        self.free = free

    def __enter__(self):
        gc.collect()  # what earlier tests left gives none back in between
        self.before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (parts.descriptors() + 8, self.before[1]))
        self.taken = []
        try:
            while True:
                self.taken.append(os.dup(0))
        except OSError:
            for _ in range(self.free):
                os.close(self.taken.pop())

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_NOFILE, self.before)
        for one in self.taken:
            os.close(one)


def test_a_loader_inside_a_worker_of_others_says_what_to_do(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    message = (
        r"loader: `num_workers` must be 0 in a daemon process, such as a worker of another library"
        r", but is 2. Such a process may not"
    )
    with pytest.raises(ConfigError, match=message):
        list(loader(num_workers=2))


def test_an_iteration_that_is_shut_down_says_so():
    with playing(parts.Slowly(), prefetch=0, num_workers=2) as mine:
        batches = iter(mine)
        next(batches)
        mine.shutdown()
        with pytest.raises(
            IncompleteEpochError, match="its worker processes were shut down during"
        ):
            list(batches)
        assert len(list(mine)) == 15
