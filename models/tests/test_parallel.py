"""Layers over processes, time over processes, and both with data: as one process trains."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seqdata import ConfigError, ResumeError
from seqdata_testing.waiting import patient, until
from tests.preloaded import python

sys.path.insert(0, str(Path(__file__).parent))
from parallel_cases import CASES, difference, make_model, make_updates, train, train_by_hand
from seqdata_models.parallel import Mesh, Ring, Wavefront

SCRIPT = Path(__file__).parent / "on_mesh.py"
BOUNDS = {"float64": 1e-14, "float32": 1e-6}
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")


def start(world: int, folder: Path, spec: dict[str, Any]) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [python(), str(SCRIPT), str(rank), str(world), str(folder), json.dumps(spec)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(world)
    ]


def play(world: int, folder: Path, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Run processes to their end; return what each has saved."""
    processes = start(world, folder, spec)
    errors = [process.communicate(timeout=patient(120))[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * world, "\n".join(errors)[-5000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


@pytest.mark.parametrize("kind", ["wave", "ring"])
@pytest.mark.parametrize("case", [case for case in CASES if case != "dropout"])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_an_engine_of_one_process_trains_as_the_module_does(kind, case, dtype):
    whole = train(kind, case, getattr(torch, dtype), Mesh(1))
    by_hand = train_by_hand(case, getattr(torch, dtype))
    assert len(whole["losses"]) > 1
    assert difference(whole, by_hand) <= BOUNDS[dtype]


@pytest.mark.distributed
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("world", "spec"),
    [
        (2, {"size": 2, "kinds": ["wave", "ring"], "dtypes": ["float64"]}),
        (2, {"size": 2, "kinds": ["wave", "ring"], "cases": ["lstm", "whole rows"],
             "dtypes": ["float32"]}),
        (3, {"size": 3, "kinds": ["wave", "ring"], "dtypes": ["float64"],
             "cases": ["gru", "segments", "dropout"]}),
        (4, {"size": 2, "kinds": ["wave", "ring"], "dtypes": ["float64"],
             "cases": ["lstm", "segments", "whole rows"]}),
    ],
    ids=["2", "2 float32", "3", "2x2"],
)  # fmt: skip
def test_several_processes_train_as_one_does(world, spec, tmp_path):
    found = play(world, tmp_path, spec)
    for name in found[0]:
        kind, case, dtype = name.split("/")
        alone = train(kind, case, getattr(torch, dtype), Mesh(1))
        for rank, results in enumerate(found):
            saved = results[name]
            for part in ("model", "optimizer"):
                assert difference(saved[part], alone[part]) <= BOUNDS[dtype], (name, part, rank)
            assert difference(saved["losses"], alone["losses"]) <= BOUNDS[dtype], (name, rank)
            if world == spec["size"]:  # else each replica has its own lanes
                assert difference(saved["lanes"], alone["lanes"]) <= BOUNDS[dtype], (name, rank)


@pytest.mark.distributed
@pytest.mark.timeout(200)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault", "rank", "message"),
    [
        ("wave", "raise", 0, "ValueError: broken on purpose"),
        ("ring", "raise", 1, "ValueError: broken on purpose"),
        ("wave", "kill", 0, "rank 0 gives no sign of life; it was killed or stopped"),
        ("ring", "kill", 1, "rank 1 gives no sign of life; it was killed or stopped"),
        ("wave", "stall", 1, "waited 4 seconds for rank 1 (replica 0, stage 1)"),
    ],
)
def test_a_stage_that_fails_ends_all_with_the_same_error(kind, fault, rank, message, tmp_path):
    spec = {"size": 2, "kinds": [kind], "cases": ["lstm"], "dtypes": ["float64"]}
    spec["stall"] = 4 if fault == "stall" else 60
    processes = start(2, tmp_path, {**spec, "fault": {"rank": rank, "kind": fault}})
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.callback(process.kill)
        assert until((tmp_path / "broken").exists)
        errors = [process.communicate(timeout=patient(15))[1] for process in processes]
    assert all(process.returncode != 0 for process in processes)
    for number, error in enumerate(errors):
        if fault != "kill" or number != rank:  # who was killed says nothing
            assert message in error, error[-3000:]
    if fault == "raise":
        assert all(f"at rank {rank} (replica 0, stage {rank}), forward of" in one for one in errors)


def test_dropout_is_the_same_however_rows_are_grouped_and_is_not_none():
    found = [
        train("wave", "dropout", torch.float64, Mesh(1), lane_groups=groups) for groups in (1, 3)
    ]
    assert difference(*found) <= BOUNDS["float64"]
    plain = train("wave", "segments", torch.float64, Mesh(1))
    assert difference(plain["model"], found[0]["model"]) > 0.01


def test_what_cannot_be_split_is_refused():
    model = make_model("lstm", torch.float32)
    with pytest.raises(ConfigError, match="`stages` must be at most the 3 recurrent layers"):
        Wavefront(model, Mesh(1)).stack.cut(4)
    with pytest.raises(ConfigError, match="`lane_groups` must be a number from 1, but is 0"):
        Ring(model, Mesh(1), 0)
    model.rnn = nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True)
    for engine in (Wavefront, Ring):
        with pytest.raises(ConfigError, match="must read forward only, but is bidirectional"):
            engine(model, Mesh(1))
    with pytest.raises(ConfigError, match="Linear must have `parallel_stages`"):
        Wavefront(nn.Linear(2, 2), Mesh(1))
    with pytest.raises(ConfigError, match="number of processes must be a multiple of 2"):
        Mesh(2)
    with pytest.raises(ConfigError, match=r"must be 2 x 2 \(data x stages or parts\), but is 1"):
        Mesh(2, 2)
    with pytest.raises(ConfigError, match="`stages or parts` must be a number from 1, but is 0"):
        Mesh(0)


def test_a_checkpoint_that_would_lack_a_stage_is_refused():
    model = make_model("lstm", torch.float32)
    wave = Wavefront(model, Mesh(1))
    wave.update(make_updates("lstm")[0])
    wave.mesh.size = 2  # as if there were another process
    wave.update([])
    with pytest.raises(ResumeError, match="must hold all stages, but this process has stepped"):
        model.state_dict()


def test_stages_are_cut_where_their_costs_are_most_alike():
    model = make_model("lstm", torch.float32)
    model.rnn = nn.LSTM(4, 6, 4, batch_first=True)
    stages = Wavefront(model, Mesh(1)).stack.cut(2)
    layers = [[step.layer for step in stage if step.layer is not None] for stage in stages]
    assert layers == [[0, 1], [2, 3]]
    assert [len(stage) for stage in stages] == [4, 4]  # embedding and dropout; dropout and head
