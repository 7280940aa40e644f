"""What ``seqdata doctor --model`` counts is what two processes cut, send and keep."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from seqdata_models import StatefulLM, StatefulTagger
from seqdata_models.parallel.stack import Stack

from seqdata.cli._doctor.parallel_options import OptionTable, UpdateShape
from seqdata.cli._doctor.stack_counts import count_model
from seqdata_testing.waiting import patient
from tests.preloaded import python

SCRIPT = Path(__file__).parent / "on_mesh_counted.py"
LANES, CHUNK, CHUNKS = 8, 12, 4
CELLS = {"2 layers": [11, 6, 16, 2], "tied": [11, None, 16, 4]}


def play(world: int, folder: Path, spec: dict[str, Any]) -> list[dict[str, dict[str, int]]]:
    """Return what each process has sent and kept in one update."""
    processes = [
        subprocess.Popen(
            [python(), str(SCRIPT), str(rank), str(world), str(folder), json.dumps(spec)],
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    errors = [process.communicate(timeout=patient(120))[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * world, "\n".join(errors)[-5000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def counted(tmp_path_factory) -> list[dict[str, dict[str, int]]]:
    """What each of two processes has counted, by kind and model."""
    spec = {"kinds": ["wave", "ring"], "models": CELLS, "size": 2, "lane_groups": 4,
            "lanes": LANES, "chunk": CHUNK, "chunks": CHUNKS}  # fmt: skip
    return play(2, tmp_path_factory.mktemp("counted"), spec)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["wave", "ring"])
@pytest.mark.parametrize("cell", CELLS)
def test_bytes_and_memory_are_those_of_two_processes(kind, cell, counted):
    counts = count_model(StatefulLM(*CELLS[cell]).double(), "lm", is_cpu=True)
    table = OptionTable(counts, UpdateShape(LANES, CHUNK, CHUNKS, True), "cpu")
    option = table.layers(2, 1) if kind == "wave" else table.time(2, 1)
    found = [one[f"{kind} {cell}"] for one in counted]
    assert [one["batches"] for one in found] == [CHUNKS] * 2
    assert max(one["sent"] for one in found) == pytest.approx(option.sent, rel=0.02)  # flags, too
    stages = counts.cut(2) if kind == "wave" else [counts.parts] * 2
    weights = [
        8 * (counts.parameters + 3 * sum(part.parameters for part in stage)) for stage in stages
    ]
    if kind == "ring":
        weights = [8 * 4 * counts.parameters] * 2
    kept = max(one["kept"] + weight for one, weight in zip(found, weights, strict=True))
    assert kept == pytest.approx(option.memory, rel=0.1)


def test_stages_are_those_of_a_wavefront():
    for model in (
        StatefulLM(300, 8, 16, 5), StatefulLM(11, None, 16, 4),
        StatefulLM(11, 40, 16, 3, dropout=0.1),
        StatefulTagger(3, 2, hidden=9, layers=4, cell="gru"),
    ):  # fmt: skip
        counts = count_model(model, "model", is_cpu=True)
        for stages in range(1, len(counts.layers) + 1):
            cut = Stack(model).cut(stages)
            expected = [[step.layer for step in steps if step.layer is not None] for steps in cut]
            found = [
                [int(part.name.rpartition(".l")[2]) for part in stage if part.cell]
                for stage in counts.cut(stages)
            ]
            assert found == expected


def test_the_code_to_paste_makes_a_trainer():
    counts = count_model(StatefulLM(11, 6, 16, 2), "lm", is_cpu=True)
    for option in OptionTable(counts, UpdateShape(LANES, CHUNK, CHUNKS, True), "cpu").list_options(
        4
    ):
        *imports, last = option.code.splitlines()
        names: dict[str, Any] = {"Trainer": partial(Trainer, logger=False)}
        exec("\n".join([*imports, f"trainer = {last}"]), names)
        strategy = names["trainer"].strategy
        assert names["trainer"].num_devices == option.devices
        assert names["trainer"].accumulate_grad_batches == CHUNKS
        if option.size > 1:
            assert strategy.size == option.size
            strategy.check_update(CHUNKS)


def test_operations_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    model = StatefulTagger(6, 3, hidden=16, layers=2).double()
    counts = count_model(model, "tagger", is_cpu=True)
    x = torch.randn(4, 10, 6, dtype=torch.float64, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model.head(model.rnn(x)[0]).sum().backward()
    operations = 6 * sum(part.cost for part in counts.parts) * 4 * 10
    # torch counts products only: ours has the additions of biases
    assert counter.get_total_flops() == pytest.approx(operations, rel=0.15)
