"""Signals to all processes of a job: the training process decides, workers go on."""

import os
import signal
import subprocess
import sys
from multiprocessing import process, util

import pytest

from seqdata.errors import ConfigError
from seqdata.loading.workers import forkserver
from seqdata_testing.waiting import patient
from tests.loading.workers import parts
from tests.preloaded import python

JOB = """
import os, signal, sys, time

def slow(sequence, rng):
    time.sleep(0.01)
    return sequence

if __name__ == "__main__":  # a worker, which runs the rest, does without torch
    from multiprocessing.resource_tracker import _resource_tracker as tracker
    import numpy as np
    from seqdata import Fixed, Loader
    os.setsid()
    told = []
    number = signal.Signals(int(sys.argv[2]))
    signal.signal(number, lambda *_: told.append(number.name))
    data = [np.full(20, i) for i in range(64)]
    loader = Loader(
        data, Fixed(2, shuffle=False), transform=slow, num_workers=2, start_method=sys.argv[1]
    )
    seen = []
    for batch in loader:
        seen += batch.ids.tolist()
        if len(seen) == 2:
            os.killpg(0, number)
    loader.shutdown()
    lives = tracker._fd is None or tracker._check_alive()  # or what others share may be left
    print(seen == list(range(64)) and lives, told)
"""


def run_job(folder, text, method, number):
    """Run a script in a session of its own; it must see all and be told of the signal once."""
    (folder / "job.py").write_text(text)
    done = subprocess.run(
        [python(), "job.py", method, str(int(number))],
        capture_output=True, text=True, timeout=patient(), check=False, cwd=folder,
    )  # fmt: skip
    assert done.stdout.strip() == f"True ['{number.name}']", done.stderr


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("forkserver", signal.SIGTERM),
        ("forkserver", signal.SIGUSR1),
        pytest.param("forkserver", signal.SIGUSR2, marks=pytest.mark.nightly),
        pytest.param("forkserver", signal.SIGHUP, marks=pytest.mark.nightly),
        ("fork", signal.SIGUSR1),
        pytest.param("fork", signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param("spawn", signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param("forkserver", signal.SIGINT, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow
def test_a_signal_to_all_processes_leaves_the_workers_at_work(tmp_path, method, number):
    run_job(tmp_path, JOB, method, number)


START = """
import os, signal, sys, threading, time
from pathlib import Path

def wait_for(path):
    while not path.exists():  # ends: the test ends this process
        time.sleep(0.01)

def same(sequence, rng):
    return sequence

def interrupt():
    wait_for(Path("here"))
    os.killpg(0, signal.Signals(int(sys.argv[2])))
    Path("go").touch()

if __name__ == "__main__":
    from seqdata import Fixed, Loader
    os.setsid()
    told = []
    signal.signal(int(sys.argv[2]), lambda number, _: told.append(signal.Signals(number).name))
    threading.Thread(target=interrupt).start()
    loader = Loader([[1], [2]], Fixed(1), transform=same, num_workers=1, start_method=sys.argv[1])
    print(len(list(loader)) == 2, told)
    loader.shutdown()
else:  # a worker imports the script before it does anything else
    Path("here").touch()
    wait_for(Path("go"))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_a_signal_to_all_processes_leaves_a_worker_that_is_just_starting(tmp_path, method, number):
    run_job(tmp_path, START, method, number)


OTHERS = """
import multiprocessing, signal, time
from seqdata import Fixed, Loader

if __name__ == "__main__":
    loader = Loader([[1], [2]], Fixed(1), num_workers=1)
    assert len(list(loader)) == 2
    other = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(600,))
    other.start()
    other.terminate()
    other.join(timeout=600)
    print(other.exitcode == -signal.SIGTERM, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    loader.shutdown()
"""


@pytest.mark.slow
def test_processes_of_others_end_by_sigterm_as_ever(tmp_path):
    script = tmp_path / "others.py"
    script.write_text(OTHERS)
    done = subprocess.run(
        [python(), str(script)],
        capture_output=True,
        text=True,
        timeout=patient(20),
        check=False,
    )
    assert done.stdout.strip() == "True set()", done.stderr


@pytest.fixture
def long_folder(tmp_path, monkeypatch):
    """Files for a time go to a folder of 140 characters."""
    folder = tmp_path / ("x" * (140 - len(str(tmp_path)) - 1))
    folder.mkdir()
    config = process.current_process()._config
    monkeypatch.setitem(config, "tempdir", str(folder))
    return folder


def test_a_server_starts_where_the_path_of_a_socket_would_be_too_long(long_folder):
    made = forkserver._Server()
    try:
        made.ensure_running()
        address = made._forkserver_address
        assert len(address) <= 107
        assert not address.startswith(str(long_folder))
        assert util.get_temp_dir() == str(long_folder)  # of others' files nothing has changed
    finally:
        made._stop()
    assert not os.path.exists(address)


def test_the_folder_is_the_given_one_where_there_is_room(tmp_path):
    short = f"/{'x' * 80}"
    assert forkserver._find_short_folder(short, os.getpid()) == short
    assert forkserver._find_short_folder(f"/{'x' * 90}", os.getpid()) != f"/{'x' * 90}"


def test_without_a_folder_with_a_short_path_it_says_what_to_set(long_folder, monkeypatch):
    monkeypatch.setattr(forkserver, "_SHORT_FOLDERS", ("/does/not/exist",))
    monkeypatch.setattr(forkserver, "_get_server", lambda pid: forkserver._Server())
    forkserver._find_short_folder.cache_clear()
    message = r"cannot start 1 worker processes \(.*: must be at most \d+ bytes .* Set TMPDIR to"
    with pytest.raises(ConfigError, match=message) as caught:
        next(iter(parts.loader(start_method="forkserver")))
    assert "ulimit" not in str(caught.value)


FEW = """
import errno, os, resource, time
from seqdata.loading.workers import forkserver

if __name__ == "__main__":
    context = forkserver.get_context("forkserver")
    earlier = context.Process(target=time.sleep, args=(600,))
    earlier.start()
    server = forkserver._get_server(os.getpid())._forkserver_pid
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    refused = 0
    for more in range(1, 16):
        process = context.Process(target=int)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, limits[1]))
        try:
            process.start()
        except OSError as error:
            refused += error.errno == errno.EMFILE
        else:
            process.join(timeout=600)
            process.close()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    last = context.Process(target=int)
    last.start()
    last.join(timeout=600)
    same = forkserver._get_server(os.getpid())._forkserver_pid == server
    print(refused >= 5, earlier.is_alive(), last.exitcode, same)
    earlier.kill()
    earlier.join()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_too_few_descriptors_do_not_end_the_server_nor_other_workers(tmp_path):
    script = tmp_path / "few.py"
    script.write_text(FEW)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True, text=True, timeout=patient(), check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "True True 0 True", done.stderr
