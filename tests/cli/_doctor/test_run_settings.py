"""What doctor sees in a run file: settings that go wrong together."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from seqdata.api import open_store, write_store
from seqdata.cli._doctor.finding import DoctorFinding
from seqdata.cli._doctor.run_settings import check_settings
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.runs.locate_batch import FitGeometry
from seqdata.runs.run_file import NAME, RunFile
from seqdata.runs.run_record import find_installed_versions
from tests.cli.commands import find_one, run_doctor
from tests.lightning.crashing import noisy
from tests.lightning.harness import fit, sequences
from tests.runs.run_files import read_run_file, write_run_file


@pytest.fixture
def store(tmp_path) -> str:
    rows = ({"id": f"s{i}", "x": x} for i, x in enumerate(sequences(30)))
    write_store(tmp_path / "store", rows)
    return str(tmp_path / "store")


def settings(
    store: str, *, geometry: FitGeometry | None = None, trainer: Any = None, versions: Any = None,
    opens: bool = True, **options: Any,
) -> list[DoctorFinding]:  # fmt: skip
    """Return what is said of a run that was asked for these options."""
    options.setdefault("batching", Bucketed(4))
    data = SequenceDataModule(train=store, **options)
    file = RunFile.from_options(
        data._options, geometry or FitGeometry(), Path(), fingerprints={}, plan="",
        versions=versions or find_installed_versions(), trainer=trainer or {},
    )  # fmt: skip
    return list(check_settings(file, Path(NAME), open_store(store) if opens else None))


@pytest.mark.parametrize(
    ("facts", "name", "state", "seen", "fix"),
    [
        ({}, "batches", "ok", "8 batches are 8 steps of 1 ranks", ""),
        (
            {
                "trainer": {
                    "strategy": "DDPStrategy", "accelerator": "CPUAccelerator", "processes": 2,
                    "nodes": 1,
                },
                "geometry": FitGeometry(world_size=2),
            },
            "strategy", "ok",
            "DDPStrategy on CPUAccelerator: 2 processes on 1 nodes; the batches of one plan are "
            "divided among 2, each sequence once", "",
        ),
        (
            {"trainer": {"processes": 4}, "geometry": FitGeometry(world_size=2)}, "strategy", "ok",
            "4 processes in 2 replicas of 2 on 1 nodes", "",
        ),
        (
            {}, "use_distributed_sampler", "ok",
            "either value: the loaders of seqdata have no sampler", "",
        ),
        (
            {"geometry": FitGeometry(world_size=3)}, "batches", "ok",
            "8 batches are 3 steps of 3 ranks; in the last one 1 ranks have padding rows", "",
        ),
        (
            {"geometry": FitGeometry(world_size=3), "tail": "drop"}, "batches", "note",
            "8 batches are 2 steps of 3 ranks; 2 are dropped each epoch", "tail='fill'",
        ),
        (
            {"geometry": FitGeometry(world_size=9)}, "batches", "warn",
            "1 ranks have none of their own", "smaller batches, or fewer ranks",
        ),
        ({"batching": TokenBudget(5)}, "batching", "bad", "longer than `max_tokens=5`", ""),
        (
            {"geometry": FitGeometry(world_size=3), "batches_per_update": 4},
            "batches_per_update", "bad",
            "4, no multiple of 3 ranks", "6, or another number of ranks",
        ),
        (
            {"transform": lambda sequence, rng: sequence, "num_workers": 2}, "transform", "bad",
            "it cannot be sent to 2 workers", "define it in a module",
        ),
        (
            {"transform": lambda sequence, rng: sequence}, "replay", "note",
            "not from the file: transform: a lambda", "data.replay(epoch=, batch=)",
        ),
        ({"num_workers": 2}, "num_workers", "note", "there is no Python code", "num_workers=0"),
        (
            {"num_workers": 2, "start_method": "fork"}, "start_method", "warn",
            "'fork' copies a process that has threads", "start_method=None",
        ),
        (
            {"as_tuple": ("x", "lengths")}, "lengths", "note", "moves them to the device",
            "batch.packed(name)",
        ),
        ({"as_dict": ["x"]}, "weight", "note", "padding rows of several ranks", "tail='drop'"),
        (
            {"trainer": {"limit_train_batches": 5}}, "limit_train_batches", "note",
            "5 steps: the batches depend on the number of ranks", "pass a fraction",
        ),
        (
            {"trainer": {"val_check_interval": 5}, "geometry": FitGeometry(accumulate=2)},
            "val_check_interval", "warn", "5 steps, no multiple of the 2 of an update", "6",
        ),
        ({"trainer": {"precision": "bf16-true"}}, "precision", "note", "casts every", "mixed"),
        ({"geometry": FitGeometry(frozen=True)}, "overfit_batches", "note", "every epoch is epoch "
                                                                          "0", ""),
        ({"on_error": "mask"}, "on_error", "ok", "'mask', and no errors are listed", ""),
        ({"versions": {"torch": "1.0"}}, "versions", "note", "the run had torch 1.0 (now ", ""),
    ],
)  # fmt: skip
def test_a_trap_of_a_run_is_seen(store, facts, name, state, seen, fix):
    found = find_one(settings(store, **facts), name)
    assert found.state == state
    assert seen in found.seen
    assert fix in found.fix


def test_fork_beside_pyarrow_is_bad(tmp_path):
    import pandas as pd

    pd.DataFrame({"x": [[1.0, 2.0], [3.0]]}).to_parquet(tmp_path / "rows.parquet")
    found = settings(
        str(tmp_path / "rows.parquet"), num_workers=1, start_method="fork", opens=False
    )
    assert find_one(found, "start_method").state == "bad"
    assert "whose threads do not survive a fork" in find_one(found, "start_method").seen


def test_with_a_transform_nothing_is_planned(store):
    names = {one.name for one in settings(store, transform=noisy)}
    assert "batches" not in names


@pytest.mark.parametrize("shift", [0, 1])
def test_lanes_that_ranks_do_not_divide_are_uneven(store, shift):
    options = {"batching": TBPTT(4, 8), "shift": shift}
    uneven, even = (
        find_one(settings(store, geometry=FitGeometry(world_size=size), **options), "lanes")
        for size in (3, 2)
    )
    assert (uneven.state, even.state) == ("warn", "ok")
    assert uneven.seen == "4 lanes on 3 ranks"


def test_code_that_is_gone_is_bad_and_none_is_imported(store, tmp_path):
    data = SequenceDataModule(train=store, batching=Bucketed(4), transform=noisy)
    fit(data, max_epochs=1)
    plain = read_run_file()
    (tmp_path / "harmful.py").write_text("raise SystemExit('imported')\n")
    plain["import_from"] = [str(tmp_path)]
    for transform, bad in (("harmful.f", 0), ("not_there.at_all.f", 1)):
        plain["data"]["transform"] = transform
        write_run_file(plain)
        facts = json.loads(run_doctor(".", "--json", code=bad))
        assert facts["bad"] == bad
    (found,) = [one for one in facts["findings"] if one["state"] == "bad"]
    assert (found["name"], found["seen"]) == (
        "transform", "not_there.at_all.f cannot be found here",
    )  # fmt: skip
    assert "harmful" not in sys.modules


def test_what_a_run_went_on_from_is_counted(store):
    Path("seqdata-errors-rank0.jsonl").write_text('{"message": "one"}\n{"message": "two"}\n')
    found = find_one(settings(store, on_error="mask"), "on_error")
    assert found.state == "warn"
    assert found.seen == '2 sequences could not be used, the last one: {"message": "two"}'


def test_the_last_error_is_that_of_the_list_that_is_named(store):
    for rank, lines in enumerate(['{"message": "r0"}\n{"mess', '{"message": "r1"}\n', "{"]):
        Path(f"seqdata-errors-rank{rank}.jsonl").write_text(lines)
    os.utime("seqdata-errors-rank1.jsonl", (1, 1))  # rank 0 wrote after it; torn lines are none
    found = find_one(settings(store, on_error="mask"), "on_error")
    assert found.seen == '2 sequences could not be used, the last one: {"message": "r0"}'
    assert "seqdata-errors-rank0.jsonl" in found.fix
