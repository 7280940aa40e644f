"""Any number of ranks trains a stateful model as one does; each keeps the states of its lanes."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seqdata_testing.waiting import patient
from tests.preloaded import python

sys.path.insert(0, str(Path(__file__).parent))
import on_ranks_stateful

LANES = {"stream": 6, "lanes": 3, "segments": 6}


def run(ranks: int, folder: Path) -> dict[str, Any]:
    out = folder / f"{ranks}.json"
    command = [python(), on_ranks_stateful.__file__, str(ranks), str(out)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=patient(280), check=False, cwd=folder
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> dict[str, Any]:
    with contextlib.chdir(tmp_path_factory.mktemp("one")):
        return json.loads(json.dumps(on_ranks_stateful.train_all(1)))


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_ranks_give_the_losses_metrics_and_parameters_of_one(ranks, one, tmp_path):
    several = run(ranks, tmp_path)
    assert one.keys() == several.keys() == LANES.keys()
    for name, lanes in LANES.items():
        alone, together = one[name], several[name]
        assert len(alone["losses"]) == len(together["losses"]) > 8
        for kind in ("losses", "weights"):
            for left, right in zip(alone[kind], together[kind], strict=True):
                assert abs(left - right) <= 1e-12, (name, kind)
        assert alone["metrics"].keys() == together["metrics"].keys() >= {"val_loss"}
        for metric, value in alone["metrics"].items():
            assert abs(value - together["metrics"][metric]) <= 1e-12, (name, metric)
        # Each lane's state is on one rank, and is what it was on the one rank that had all.
        assert len(together["states"]) == ranks
        (whole,) = alone["states"]
        assert sorted(whole) == [str(lane) for lane in range(lanes)]
        held: dict[str, float] = {}
        for number, rank in enumerate(together["states"]):
            if number * lanes // ranks == (number + 1) * lanes // ranks:
                assert rank == {"0": 0.0}  # padding rows: it has no lanes
                continue
            assert not held.keys() & rank.keys()
            held |= rank
        assert held.keys() == whole.keys()
        for lane, value in whole.items():
            assert abs(value - held[lane]) <= 1e-12, (name, lane)
        for first, second in itertools.combinations(held.values(), 2):
            assert first != second
