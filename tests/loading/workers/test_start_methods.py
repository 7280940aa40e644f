"""Every way to start workers: the same batches, no torch or script where nothing needs them.

And nothing is left of them when the training process ends, however it does.
"""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from seqdata import Fixed, Loader
from seqdata.loading.workers import worker
from seqdata_testing.waiting import patient, until, within
from tests.loading.workers import light
from tests.loading.workers.parts import descriptors, lives, loader, playing, same
from tests.preloaded import python

ROOT = Path(__file__).parents[3]

METHODS = ["fork", "forkserver", "spawn"]


@pytest.mark.parametrize("method", METHODS)
def test_batches_are_the_same_and_workers_are_kept(method):
    with playing(light.noise, num_workers=2, start_method=method) as mine:
        assert same(mine, loader(light.noise, num_workers=0))
        pids = mine.worker_pids
        assert same(mine, loader(light.noise, num_workers=0, epoch=1))
        assert mine.worker_pids == pids
    assert not any(map(lives, pids))


@pytest.mark.parametrize("method", METHODS)
def test_workers_that_have_ended_leave_no_descriptor_open(method):
    counts = []
    for _ in range(3):  # the first starts servers, which stay
        with playing(light.noise, num_workers=2, start_method=method) as mine:
            next(iter(mine))
        gc.collect()
        counts.append(descriptors())
    assert counts[2] <= counts[1]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_worker_does_without_torch(method):
    options = {"lengths": [1] * 8, "num_workers": 1, "start_method": method}
    mine = Loader(light.Modules(), Fixed(4), **options)
    assert [batch["torch"].tolist() for batch in mine] == [[0] * 4] * 2
    mine.shutdown()


class Tensors:
    """A Dataset over tensors, which tells whether they lie in shared memory."""

    def __init__(self):
        self.shared = torch.ones(8).share_memory_()
        self.own = torch.arange(8.0)
        self.odd = [torch.ones(0), torch.nn.Parameter(torch.ones(1))]

    def __len__(self):
        return 8

    def __getitem__(self, number):
        told = [self.own.is_shared(), self.shared.is_shared(), float(self.shared[0]) == 7.0]
        return {"x": self.own[number : number + 1], "told": torch.tensor(told)}


@pytest.mark.slow
def test_tensors_go_by_value_unless_somebody_has_shared_them():
    data = Tensors()
    mine = Loader(data, Fixed(8), lengths=[1] * 8, num_workers=1, start_method="forkserver")
    data.shared[0] = 7.0
    (batch,) = mine
    assert batch["told"].tolist() == [[False, True, True]] * 8
    assert sorted(batch["x"].flatten().tolist()) == list(range(8))
    mine.shutdown()


@pytest.mark.slow
def test_what_only_a_started_process_may_have_reaches_it():
    data = light.Counting()
    mine = Loader(data, Fixed(8), lengths=[1] * 8, num_workers=1, start_method="forkserver")
    before = data.read.value
    assert len(list(mine)) == 1
    assert data.read.value == before + 8
    mine.shutdown()


def run_script(path, code, *arguments, program=None):
    path.write_text(textwrap.dedent(code))
    known = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [program or python(), str(path), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=known
    )


UNGUARDED = """
    import sys
    print("the script runs")
    from seqdata import Fixed, Loader, WorkerDiedError
    from seqdata.storage.memory import MemoryStore

    store = MemoryStore.from_sequences([[1] * 100_000, [2, 2]])  # larger than a pipe
    options = {"num_workers": 1, "start_method": sys.argv[1]}
    print(len(list(Loader(store, Fixed(1), **options))), "batches", flush=True)

    def own(sequence, rng):
        return sequence

    try:
        list(Loader(store, Fixed(1), transform=own, **options))
    except WorkerDiedError as error:
        print(error)
"""


@pytest.mark.parametrize("method", [pytest.param("forkserver", marks=pytest.mark.nightly), "spawn"])
@pytest.mark.slow
def test_a_script_without_a_guard_works_where_nothing_of_it_is_needed_else_says_so(
    method, tmp_path
):
    done = run_script(tmp_path / "script.py", UNGUARDED, method)
    out, err = done.communicate(timeout=patient())
    lines = out.splitlines()
    assert lines[:2] == ["the script runs", "2 batches"], err
    assert "the script runs" in lines[2:]  # the second time
    message = (
        "ended with exit code 1 before it was ready: its error is printed above; put the call "
        "of a script under `if __name__ == '__main__':`, or pass start_method='fork'"
    )
    assert any(message in line for line in lines)
    assert "An attempt has been made to start a new process" in err


GUARDED = """
    if __name__ == "__main__":
        import os
        import sys
        import time
        from pathlib import Path
        import numpy as np
        from seqdata import Fixed, Loader
        from seqdata.storage.memory import MemoryStore
        from tests.loading.workers import light

        os.setsid()
        store = MemoryStore.from_sequences([np.full(2, number) for number in range(200)])
        playing = []
        for method in ("fork", "forkserver", "spawn"):
            for transform in (light.slowly, getattr(light, sys.argv[2])):
                loader = Loader(
                    store, Fixed(2, shuffle=False), num_workers=2, start_method=method,
                    transform=transform,
                )
                playing.append((loader, iter(loader)))
                next(playing[-1][1])
        pids = [pid for loader, _ in playing for pid in loader.worker_pids]
        if sys.argv[1] == "wait":
            child = os.fork()  # holds all pipes that this process has
            if not child:
                os.close(1)
                os.close(2)
                time.sleep(600)
                os._exit(0)
            print(os.getpid(), child, *pids, flush=True)
            time.sleep(600)
        print(*pids, flush=True)
        if sys.argv[1] == "die":
            while len(list(Path.cwd().glob("stuck-*"))) < 3:
                time.sleep(0.01)
            os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_process_that_ends_while_epochs_are_played_leaves_no_worker(tmp_path):
    done = run_script(tmp_path / "script.py", GUARDED, "end", "stuck_in_c", program=sys.executable)
    out, err = done.communicate(timeout=patient())
    pids = [int(pid) for pid in out.split()]
    # a busy machine takes so long to start the last workers that the stuck ones are named
    unexpected = [line for line in err.splitlines() if "has made no progress for" not in line]
    assert (done.returncode, unexpected, len(pids)) == (0, [], 12)
    assert not any(map(lives, pids))


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_no_worker_whoever_holds_its_pipes(tmp_path):
    done = run_script(tmp_path / "script.py", GUARDED, "wait", "stuck")
    main, child, *pids = (int(pid) for pid in done.stdout.readline().split())
    try:
        assert len(pids) == 12
        assert all(map(lives, pids))
        os.kill(main, signal.SIGKILL)
        with within(2.0):
            assert until(lambda: not any(map(lives, pids)))
        assert lives(child)
    finally:
        os.killpg(main, signal.SIGKILL)
        done.communicate(timeout=patient())


def test_a_worker_ends_whose_parent_ended_while_it_was_starting(monkeypatch):
    ended = multiprocessing.get_context("fork").Process(target=int)
    ended.start()
    ended.join(patient())
    held, holder = os.pipe()  # the parent's, held by another process
    parent = types.SimpleNamespace(pid=ended.pid, sentinel=held)
    monkeypatch.setattr(worker, "parent_process", lambda: parent)
    slots = types.SimpleNamespace(view_status=lambda: np.zeros((1, 8), "i8"))
    context = types.SimpleNamespace(number=0, slots=slots)
    process = multiprocessing.get_context("fork").Process(
        target=worker._exit_with_parent, args=(context,)
    )
    process.start()
    process.join(patient(10))
    try:
        assert process.exitcode == 1
    finally:
        process.kill()
        os.close(held)
        os.close(holder)


def test_a_parent_that_must_not_be_signalled_is_there(monkeypatch):
    held, holder = os.pipe()
    parent = types.SimpleNamespace(pid=os.getpid(), sentinel=held)
    monkeypatch.setattr(worker, "parent_process", lambda: parent)

    def refuse(pid, number):
        raise PermissionError

    monkeypatch.setattr(worker.os, "kill", refuse)
    opened = worker._open_parent_sentinels()
    assert opened[0] == held
    for descriptor in (*opened, holder):
        os.close(descriptor)


@pytest.mark.slow
def test_a_worker_that_is_stuck_in_c_ends_with_its_killed_parent(tmp_path):
    done = run_script(tmp_path / "script.py", GUARDED, "die", "stuck_in_c")
    out, _ = done.communicate(timeout=patient())
    pids = [int(pid) for pid in out.split()]
    assert (done.returncode, len(pids)) == (-signal.SIGKILL, 12)
    with within(2.0):
        assert until(lambda: not any(map(lives, pids)))
