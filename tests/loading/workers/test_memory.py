"""Memory and open files of worker processes stay as they are after the first epoch."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from seqdata import write_store
from seqdata_testing.waiting import patient
from tests.preloaded import python

RUN = Path(__file__).with_name("memory_run.py")
GROWTH = 1.05  # private memory after a later epoch, over that after the first
WORKERS = 2

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="Linux says what a process alone holds"
)


def write(folder, count):
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 60, count)
    values = rng.integers(0, 1000, lengths.sum(), dtype=np.int32)
    pieces = np.split(values, np.cumsum(lengths)[:-1])
    sequences = ({"x": one, "y": number % 5} for number, one in enumerate(pieces))
    write_store(folder, sequences, shard_bytes=1 << 19, progress=False)
    return folder


def play(store, method, transform, epochs=3):
    """Return [epoch][process] -> (private bytes, open files); the training process is the last."""
    done = subprocess.run(
        [python(), str(RUN), str(store), method, transform, str(epochs)],
        capture_output=True, text=True, timeout=patient(150), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [len(one) for one in found] == [WORKERS + 1] * epochs
    return found


def grown(found):
    """Return what the workers' private memory has grown by since the first epoch, at most."""
    return max(
        later[worker][0] / found[0][worker][0] for later in found[1:] for worker in range(WORKERS)
    )


def files(found):
    return [[open_files for _, open_files in epoch] for epoch in found]


@pytest.mark.parametrize(
    ("method", "transform", "count"),
    [
        ("forkserver", "each", 5_000),
        pytest.param("forkserver", "each", 200_000, marks=pytest.mark.nightly),
        pytest.param("fork", "each", 200_000, marks=pytest.mark.nightly),
        pytest.param("spawn", "whole", 200_000, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow
def test_sequences_with_a_transform_leave_nothing_in_workers(tmp_path, method, transform, count):
    found = play(write(tmp_path / "store", count), method, transform)
    assert grown(found) <= GROWTH
    assert files(found) == [files(found)[0]] * 3


@pytest.mark.slow
def test_what_a_transform_keeps_is_seen(tmp_path):
    """The measure can fail: 5,000 arrays of 4 KiB are more than a twentieth of a worker."""
    found = play(write(tmp_path / "store", 5_000), "forkserver", "leaking", epochs=2)
    assert grown(found) > GROWTH
