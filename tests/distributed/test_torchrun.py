"""Under ``torchrun``: the same run, and an end in a bound where a rank is gone."""

import ast
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from seqdata_testing.waiting import patient
from tests.preloaded import python

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(folder: Path, how: str, other: str, *, preemption: bool) -> subprocess.CompletedProcess:
    given = [str(folder), how, other, str(preemption)]
    return subprocess.run(
        [python(), *TORCHRUN, "-m", "tests.distributed.under_torchrun", *given],
        cwd=ROOT, capture_output=True, text=True, timeout=patient(120), check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def is_gone(pid: str) -> bool:
    try:
        return (Path("/proc") / pid / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.nightly
@pytest.mark.parametrize("preemption", [False, True])
@pytest.mark.parametrize("other", ["train", "hang"])
def test_a_killed_rank_ends_the_job(tmp_path, other, preemption):
    done = run(tmp_path, "SIGKILL", other, preemption=preemption)
    took = time.time() - float((tmp_path / "hurt").read_text())
    assert done.returncode != 0
    assert took < patient(15 + 5), done.stderr  # and the launcher's own end
    assert not list(tmp_path.glob("ended-*"))
    for path in tmp_path.glob("pid-*"):
        assert is_gone(path.read_text())
    assert re.search(r"Signal 9 \(SIGKILL\) received by PID", done.stderr)


@pytest.mark.nightly
def test_a_signal_to_one_rank_stops_both_and_is_saved(tmp_path):
    done = run(tmp_path, "SIGTERM", "train", preemption=True)
    took = time.time() - float((tmp_path / "hurt").read_text())
    assert done.returncode != 0
    assert took < patient(10 + 5)
    stopped = "PreemptedError: preempted: rank 1 was requested to stop by SIGTERM"
    assert stopped in done.stderr
    assert (tmp_path / "saved.ckpt").exists()
    assert all(is_gone(path.read_text()) for path in tmp_path.glob("pid-*"))


@pytest.mark.nightly
def test_a_run_under_torchrun_shares_one_plan(tmp_path):
    done = run(tmp_path, "", "train", preemption=True)
    assert done.returncode == 0, done.stderr
    told = [ast.literal_eval((tmp_path / f"ended-{rank}").read_text()) for rank in range(2)]
    for epoch in (0, 1):
        ids = [one for log in told for at, _, found in log if at == epoch for one in found]
        assert sorted(ids) == list(range(40))
