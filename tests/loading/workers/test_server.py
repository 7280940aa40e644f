"""Signals to all processes of a job: the training process decides, workers go on."""

import os
import signal
import subprocess
import sys

import pytest

from seqdata.testing.waiting import patient

JOB = """
import os, signal, sys, time
import numpy as np
from seqdata import Fixed, Loader

def slow(sequence, rng):
    time.sleep(0.01)
    return sequence

if __name__ == "__main__":
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append("SIGTERM"))
    signal.signal(signal.SIGINT, lambda *_: told.append("SIGINT"))
    data = [np.full(20, i) for i in range(64)]
    loader = Loader(
        data, Fixed(2, shuffle=False), transform=slow, num_workers=2, start_method=sys.argv[1]
    )
    seen = []
    for batch in loader:
        seen += batch.ids.tolist()
        if len(seen) == 2:
            os.killpg(0, int(sys.argv[2]))
    loader.shutdown()
    print(seen == list(range(64)), told)
"""


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("forkserver", signal.SIGTERM),
        pytest.param("fork", signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param("spawn", signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param("forkserver", signal.SIGINT, marks=pytest.mark.nightly),
    ],
)
def test_a_signal_to_all_processes_leaves_the_workers_at_work(tmp_path, method, number):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(script), method, str(int(number))],
        capture_output=True, text=True, timeout=patient(), check=False, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == f"True ['{number.name}']", done.stderr


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


def test_processes_of_others_end_by_sigterm_as_ever(tmp_path):
    script = tmp_path / "others.py"
    script.write_text(OTHERS)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=patient(),
        check=False,
    )
    assert done.stdout.strip() == "True set()", done.stderr
