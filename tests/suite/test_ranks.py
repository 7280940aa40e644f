"""Two ranks share the windows of one, and have its statistics and its table of predictions."""

import json
import subprocess
from pathlib import Path

import pytest

from seqdata_testing.waiting import patient
from tests.preloaded import python


@pytest.mark.distributed
@pytest.mark.slow
def test_two_ranks_have_the_windows_statistics_and_predictions_of_one(tmp_path):
    script = str(Path(__file__).with_name("on_ranks.py"))
    for ranks in ("1", "2"):
        ended = subprocess.run(
            [python(), script, ranks, str(tmp_path)], capture_output=True, text=True,
            timeout=patient(150), check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-3000:]
    one, first, second = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("1-0", "2-0", "2-1")
    )
    assert first["digest"] == second["digest"] == one["digest"]
    assert sorted(first["seen"] + second["seen"]) == sorted(one["seen"])
    assert first["seen"]
    assert second["seen"]
    assert first["table"] == second["table"] == one["table"]
