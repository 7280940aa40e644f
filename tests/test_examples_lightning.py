"""Examples of Lightning projects: one run on any number of processes, one DataModule replaced."""

import difflib
import importlib
import itertools
import re
import subprocess
import sys
from collections.abc import Iterable

import pytest
import torch

from seqdata_testing.waiting import patient
from tests.example_runs import EXAMPLES, load_example, run_example
from tests.preloaded import python

DROP_IN = EXAMPLES / "drop_in"
PAGE = EXAMPLES.parent / "docs" / "guides" / "training" / "lightning.md"
QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@pytest.fixture
def project(monkeypatch):
    """Yield what imports a script of the project as one would who stands in its folder."""
    monkeypatch.syspath_prepend(str(DROP_IN))
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield importlib.import_module
    torch.set_num_threads(threads)
    for name in ("project", "before", "after"):
        sys.modules.pop(name, None)


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.slow
def test_a_project_learns_with_our_datamodule_as_it_did_before(project, tmp_path):
    before, after = (
        project(name).main(tmp_path, epochs=3, **QUIET) for name in ("before", "after")
    )
    assert min(before, after) >= 0.95


def test_the_projects_model_knows_nothing_of_us():
    text = (DROP_IN / "project.py").read_text()
    assert [line for line in text.splitlines() if "seqdata" in line] == [text.splitlines()[0]]


def test_the_page_shows_the_difference_as_it_is():
    lines = [
        (DROP_IN / name).read_text().splitlines(keepends=True) for name in ("before.py", "after.py")
    ]
    diff = "".join(difflib.unified_diff(*lines, "before.py", "after.py", n=2))
    assert f"```diff\n{diff}```" in PAGE.read_text("utf-8")


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
def test_the_ddp_example_trains_in_one_process(project):
    module = load_example("ddp")
    one, two = (module.train("float64", 1, 3) for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["head.weight"], module.train("float64", 1, 2)["head.weight"])


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_ddp_example_ends_the_same_on_1_2_and_4_processes_under_both_launchers():
    lines = run_example("ddp.py", seconds=500)
    found = [
        re.fullmatch(r"(\w+) +(\d) processes, (\w+): apart by (\S+)", one) for one in lines[:-1]
    ]
    assert [(one[1], one[2]) for one in found][::2] == [
        ("Trainer", "1"), ("Trainer", "2"), ("Trainer", "4"), ("torchrun", "2"), ("torchrun", "4"),
    ]  # fmt: skip
    for one in found:
        assert float(one[4]) <= {"float32": 1e-5, "float64": 1e-12}[one[3]]
    assert lines[-1] == "the same after 100 updates"


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param("ddp", marks=pytest.mark.nightly),
        pytest.param("ring", marks=pytest.mark.nightly),
        "hybrid",  # of a wavefront and data
        pytest.param("pipeline", marks=pytest.mark.nightly),
        pytest.param("wavefront", marks=pytest.mark.nightly),
    ],
)
def test_the_character_model_is_the_same_on_several_processes(mode):
    command = [python(), str(EXAMPLES / "parallel_lstm.py"), "--mode", mode, "--updates", "2"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=patient(150))
    assert found.returncode == 0, found.stdout + found.stderr
    last = found.stdout.splitlines()[-1]
    assert last.startswith(f"{mode}: largest difference of a weight from one process: ")
    assert float(last.split()[-1]) <= 1e-12


CASES = {
    "classifier", "tagger", "byte lm", "forecaster", "seq2seq", "stateful lm", "stateful tagger",
}  # fmt: skip


def check_curves(
    lines: list[str], starts: list[tuple[str, str]], cases: Iterable[tuple[str, str]]
) -> None:
    """Each model has the same losses in each way: by the Trainer, and by plain torch."""
    form = r"(\w+) +(\d) processes, (\w+) *: ([\w ]+), (\w+): (\S+)"
    found = [re.fullmatch(form, line) for line in lines[:-1]]
    assert list(dict.fromkeys((one[1], one[2]) for one in found)) == starts
    of_torchrun = [(one[3], one[4], one[5]) for one in found if one[1] == "torchrun"]
    expected = {(loop, *case) for case in cases for loop in ("Trainer", "torch")}
    assert set(of_torchrun) == expected
    for one in found:
        assert float(one[6]) <= {"float32": 1e-5, "float64": 1e-12}[one[5]], one[0]


@pytest.mark.parametrize(
    "models",
    [
        ["classifier", "stateful lm"],
        pytest.param(sorted(CASES), id="all", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_reference_models_have_the_same_losses_on_two_processes(models):
    lines = run_example("data_parallel.py", "--smoke", "--model", *models, seconds=150)
    cases = [("classifier", "float32"), *((name, "float64") for name in models)]
    check_curves(lines, [("Trainer", "1"), ("torchrun", "2")], cases)
    assert lines[-1] == "the same losses over 5 updates"  # an epoch, and one of the next


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_reference_models_have_the_same_losses_on_1_2_and_4_processes_in_every_way():
    lines = run_example("data_parallel.py", seconds=1500)
    ways = [
        ("Trainer", "1"),
        ("Trainer", "2"),
        ("Trainer", "4"),
        ("torchrun", "2"),
        ("torchrun", "4"),
    ]
    check_curves(lines, ways, itertools.product(CASES, ("float32", "float64")))
    assert lines[-1] == "the same losses over 50 updates"
