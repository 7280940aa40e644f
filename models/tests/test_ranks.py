"""Two ranks train the same model and report the same figures as one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from seqdata_testing.waiting import patient
from tests.preloaded import python

SCRIPT = Path(__file__).parent / "on_ranks.py"


@pytest.mark.distributed
@pytest.mark.slow
def test_two_ranks_give_the_parameters_and_metrics_of_one(tmp_path):
    found = []
    for ranks in (1, 2):
        out = tmp_path / f"{ranks}.json"
        command = [python(), str(SCRIPT), str(ranks), str(out)]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=patient(150), check=False
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        found.append(json.loads(out.read_text()))
    one, two = found
    metrics = {
        "classifier": {"val_loss", "val_accuracy"},
        "bytes": {"val_bits_per_byte"},
        "tagger": {"val_loss", "val_accuracy"},
        "forecaster": {"val_mse"},
        "seq2seq": {"val_loss", "val_accuracy", "val_exact"},
    }
    assert one.keys() == two.keys() == metrics.keys()
    for model, names in metrics.items():
        assert names <= one[model].keys()
        assert one[model].keys() == two[model].keys()
        for name, value in one[model].items():
            assert abs(value - two[model][name]) <= 1e-12, name
