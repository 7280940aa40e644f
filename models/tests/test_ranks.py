"""Two ranks train the same model and report the same figures as one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from seqdata_testing.waiting import patient
from tests.preloaded import python

sys.path.insert(0, str(Path(__file__).parent))
import on_ranks


@pytest.mark.distributed
@pytest.mark.nightly  # at every change by models with states: test_stateful_ranks
def test_two_ranks_give_the_parameters_and_metrics_of_one(tmp_path):
    one = on_ranks.train_all(1, tmp_path)
    out = tmp_path / "2.json"
    command = [python(), on_ranks.__file__, "2", str(out)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=patient(150), check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    two = json.loads(out.read_text())
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
