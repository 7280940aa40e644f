"""Every example of the gallery runs as a script, and is written so that a page can show it."""

import ast
import importlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from seqdata_testing.waiting import patient
from tests.preloaded import python

GALLERY = Path(__file__).parent.parent / "docs" / "gallery"
EXAMPLES = sorted(GALLERY.glob("plot_*.py"))
QUICK = ("padding_by_policy", "your_lengths", "resume", "flipped_bit")
"""Examples of CI: the others train, or start processes."""
RESULTS = {
    "padding_by_policy": r"Fixed\(32\), random .* 74\.1% padding\nBucketed\(32\) .* 16\.4% padding",
    "your_lengths": r"GPUs: 8  steps on each: 35",
    "batch_layouts": r"varlen +\[0, 9, 16, 21, 25, 27\]",
    "resume": r"17 \+ 13 = 30 batches\nthe same sequences in the same order: True",
    "equal_steps": r"steps: \[7, 7, 7\] rows: 200 each sequence once: True",
    "same_run": r"processes: 4  updates: 64 .* difference: \d+e-1\d\n",
    "rare_class": r"balanced +16\.0 of 32 rows are fraud",
    "curriculum": r"longest: \[100, 300, 2324\]",
    "mix_datasets": r"books +weight 0\.60 +share 0\.6000",
    "tbptt_lanes": r"14,494 of 14,494 timesteps, each once",
    "carried_state": r"carried state \(LaneStates\) +loss 0\.0\d\d",
    "packed_documents": r"640 real\n12 documents[\s\S]*largest difference [\d.e-]+\n",
    "forecast": r"LSTM +off by \d\.\d%",
    "speech": r"mel \(6, 333, 80\)",
    "loss_spike": r"train-123",
    "flipped_bit": r"is -2\.35e\+38\n.*sequence 118",
    "sampling_rates": r"ecg +\(32, 2000\)",
}


def name_of(path: Path) -> str:
    return path.stem.removeprefix("plot_")


def test_there_are_15_examples_and_each_has_a_place_and_a_result(monkeypatch):
    names = [name_of(path) for path in EXAMPLES]
    assert len(names) >= 15
    assert sorted(RESULTS) == names
    assert set(QUICK) <= set(names)
    monkeypatch.syspath_prepend(str(GALLERY.parent / "_ext"))
    assert sorted(importlib.import_module("gallery_order").ORDER) == names


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if name_of(path) in QUICK else pytest.mark.nightly)
        for path in EXAMPLES
    ],
    ids=name_of,
)
def test_an_example_runs_as_a_script(path, tmp_path):
    save = (  # what plt.show() does not do without a screen
        "import runpy, sys, matplotlib.pyplot as plt; "
        "plt.show = lambda: [plt.figure(n).savefig(f'{n}.png') for n in plt.get_fignums()]; "
        f"sys.argv = [{str(path)!r}]; runpy.run_path({str(path)!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [python(), "-c", save],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg", "TMPDIR": str(tmp_path)},
        timeout=patient(150),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(RESULTS[name_of(path)], done.stdout), done.stdout
    assert "Warning" not in done.stderr
    assert len((tmp_path / "1.png").read_bytes()) > 8_000
    assert not (tmp_path / "2.png").exists()


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_an_example_can_be_shown_on_a_page(path):
    text = path.read_text("utf-8")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 79
    title, bar = lines[1:3]
    assert set(bar) == {"="}
    assert len(bar) == len(title)
    about = ast.get_docstring(ast.parse(text)).split("\n\n", 1)[1]
    assert 2 <= len(re.findall(r"[.?!](?:\s|$)", about)) <= 4
    assert "# %%" in lines
    assert text.count("plt.show()") == 1
    assert "assert " not in text
