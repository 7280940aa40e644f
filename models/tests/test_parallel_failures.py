"""A stage that fails: every process ends with the same error, in a plain loop and under a Trainer.

Waits are for events; how long a process may take to end is what a machine under load allows.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from seqdata_testing.waiting import patient, until
from tests.preloaded import python

sys.path.insert(0, str(Path(__file__).parent))
from mesh_processes import start
from seqdata_models.parallel.link import Progress

HERE = Path(__file__).parent
LOST = "rank {} gives no sign of life; it was killed or stopped"
STILL = "rank 1 stands still: it has computed nothing for 6 seconds, at rank 1 (replica 0, stage 1)"
NIGHTLY = pytest.mark.nightly
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(200)]


def end(processes: list[subprocess.Popen[str]], folder: Path, fault: str, rank: int) -> list[str]:
    """Return what each process has said, of those that say something; all must have failed."""
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.callback(dispose, process)
        broken = folder / "broken"
        until(lambda: broken.exists() or any(one.poll() is not None for one in processes))
        assert broken.exists(), [one.stderr.read() for one in processes if one.poll() is not None]
        silent = {rank} if fault in ("kill", "stop") else set()
        errors = [
            process.communicate(timeout=patient(15))[1]
            for number, process in enumerate(processes)
            if number not in silent
        ]
        ended = [process for number, process in enumerate(processes) if number not in silent]
        assert all(process.returncode not in (0, None) for process in ended)
    return errors


def dispose(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(timeout=patient())
    process.stderr.close()


def start_trainers(folder: Path, spec: dict[str, Any]) -> list[subprocess.Popen[str]]:
    """Start two processes of a Trainer as torchrun does."""
    spec = {**spec, "group": str(folder / "group")}
    common = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test",
    }  # fmt: skip
    return [
        subprocess.Popen(
            [python(), str(HERE / "on_ranks_parallel.py"), json.dumps(spec)],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=folder,
        )
        for rank in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fault", "rank", "message"),
    [
        ("wave", "raise", 0, "ValueError: broken on purpose"),
        pytest.param("ring", "raise", 1, "ValueError: broken on purpose", marks=NIGHTLY),
        ("torch+1F1B", "raise", 1, "broken on purpose"),
        pytest.param("wave", "kill", 0, LOST.format(0), marks=NIGHTLY),
        pytest.param("ring", "kill", 0, LOST.format(0), marks=NIGHTLY),
        pytest.param("ring", "kill", 1, LOST.format(1), marks=NIGHTLY),
        ("wave", "stop", 1, LOST.format(1)),
        ("wave", "stall", 1, STILL),
    ],
)
def test_a_stage_that_fails_ends_all_with_the_same_error(kind, fault, rank, message, tmp_path):
    spec = {"size": 2, "kinds": [kind], "cases": ["lstm"], "dtypes": ["float64"], "lane_groups": 1}
    processes = start(2, tmp_path, {**spec, "fault": {"rank": rank, "kind": fault}})
    errors = end(processes, tmp_path, fault, rank)
    for error in errors:
        assert message in error, error[-3000:]
        if fault == "raise":
            assert f"at rank {rank} (replica 0, stage {rank}), forward of" in error


def test_a_stage_that_computes_for_ever_ends_all_after_the_time_that_was_chosen(tmp_path):
    spec = {"size": 2, "kinds": ["wave"], "cases": ["lstm"], "dtypes": ["float64"], "stall": 4}
    processes = start(2, tmp_path, {**spec, "fault": {"rank": 1, "kind": "spin"}})
    errors = end(processes, tmp_path, "spin", 1)
    assert all(
        "waited 4 seconds (`stall`) for rank 1 (replica 0, stage 1)" in error for error in errors
    )


def test_processes_that_miss_each_other_are_told_at_once(tmp_path):
    processes = start(3, tmp_path, {"scenes": True})
    said = [process.communicate(timeout=patient(60))[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1, 1]
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert told[0]["circle"] == told[1]["circle"] == told[2]["circle"]
    for rank, after in enumerate([1, 2, 0]):
        waits = f"rank {rank} waits for rank {after} (replica 0, stage {after}) to send nothing"
        assert waits in told[0]["circle"]
    assert told[0]["closed"] == told[1]["closed"]
    assert "to come to: all, which has closed or ended: rank 2. Call `update`" in told[0]["closed"]
    for error in said:
        assert "ValueError: broken between updates" in error, error[-3000:]
    text = (tmp_path / "warned").read_text()
    assert "for rank 2 (replica 0, stage 2) to come to: the last one is late" in text


@pytest.mark.parametrize("first", ["closes", pytest.param("exits", marks=NIGHTLY)])
def test_rank_0_ends_after_those_that_still_use_the_mesh(first, tmp_path):
    spec = {"size": 2, "kinds": [], "cases": [], "dtypes": [], "first": first, "grace": 60}
    processes = start(2, tmp_path, spec)
    for process in processes:
        said = process.communicate(timeout=patient(60))[1]
        assert process.returncode == 0, said[-3000:]
    assert (tmp_path / "ends").exists()


@pytest.mark.parametrize(
    ("strategy", "fault", "rank", "message"),
    [
        pytest.param("wave", "raise", 1, "broken on purpose", marks=NIGHTLY),
        ("ring", "raise", 0, "broken on purpose"),
        ("wave", "kill", 1, "rank 1"),  # the DataModule's watchdog may see it first
        pytest.param("ring", "stall", 1, STILL, marks=NIGHTLY),
        pytest.param("wave", "stall", 1, STILL, marks=NIGHTLY),
        pytest.param("torch", "stall", 1, STILL, marks=NIGHTLY),
    ],
)
def test_under_a_trainer_all_processes_end_with_the_error_of_one(
    strategy, fault, rank, message, tmp_path
):
    spec = {
        "strategy": strategy, "devices": 2, "steps": 9, "save": str(tmp_path / "x.ckpt"),
        "folder": str(tmp_path), "fault": {"rank": rank, "kind": fault},
    }  # fmt: skip
    for error in end(start_trainers(tmp_path, spec), tmp_path, fault, rank):
        assert message in error, error[-3000:]
        if fault == "kill":
            assert LOST.format(1) in error or "has lost rank 1 (" in error, error[-3000:]


def test_a_thread_stands_still_only_if_it_should_compute_and_gets_no_processor_time():
    clock = time.pthread_getcpuclockid(threading.get_ident())
    progress = Progress(0.0)
    assert not progress.has_stopped((clock, 0))  # the first look
    assert not progress.has_stopped((clock, 1))  # another block has begun
    assert not progress.has_stopped(None)  # it waits for others
    assert not progress.has_stopped((clock, 2))
    assert progress.has_stopped((clock, 2))
    began = time.thread_time()
    while time.thread_time() < began + 0.01:
        pass
    assert not progress.has_stopped((clock, 2))
    assert not Progress(60.0).has_stopped((clock, 2))
