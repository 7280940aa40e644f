"""A ring of four backpropagates through rows that are four times as long, in the same memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from seqdata_models.parallel import Mesh

from seqdata_testing.waiting import patient
from tests.preloaded import python

sys.path.insert(0, str(Path(__file__).parent))
from on_ring_memory import train
from parallel_cases import difference

SCRIPT = Path(__file__).parent / "on_ring_memory.py"
PARTS, TIMESTEPS = 4, 100
SLACK = 1.1  # states that travel


@pytest.mark.distributed
@pytest.mark.timeout(200)
def test_full_backpropagation_through_rows_four_times_as_long_as_one_process_can_hold(tmp_path):
    cap = SLACK * train(TIMESTEPS, Mesh(1))["bytes"]
    uncapped = train(PARTS * TIMESTEPS, Mesh(1))
    assert uncapped["bytes"] > 3.5 * cap / SLACK
    processes = [
        subprocess.Popen(
            [python(), str(SCRIPT), str(rank), str(PARTS), str(tmp_path), str(PARTS * TIMESTEPS)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(PARTS)
    ]
    errors = [process.communicate(timeout=patient(100))[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * PARTS, "\n".join(errors)[-3000:]
    for rank in range(PARTS):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert found["bytes"] <= cap, (rank, found["bytes"], cap)
        assert abs(found["loss"] - uncapped["loss"]) <= 1e-12
        assert difference(found["gradients"], uncapped["gradients"]) <= 1e-12
