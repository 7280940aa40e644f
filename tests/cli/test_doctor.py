"""``seqdata doctor``: each trap is seen where it is, and has a way out of it."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from seqdata.api import open_store, write_store
from seqdata.cli._doctor import software
from seqdata.cli._doctor.data import check_data, check_lengths, open_checked
from seqdata.cli._doctor.finding import DoctorFinding
from seqdata.cli._doctor.machine import Machine, check_machine, inspect_machine
from seqdata.cli._doctor.run_settings import check_settings
from seqdata.cli._doctor.software import check_lightning, check_plugins, check_torchvision
from seqdata.cli.app import app
from seqdata.host import PluginInfo
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.bucketed import Bucketed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.runs.locate_batch import FitGeometry
from seqdata.runs.run_file import NAME, RunFile
from seqdata.runs.run_record import installed_versions
from tests.lightning.crashing import noisy
from tests.lightning.harness import fit, sequences

GOOD = Machine(
    cores=8, core_limit=None, memory=8 << 30, shared=64 << 20, open_files=1024, processes=None,
    mappings=65530, methods=("fork", "spawn", "forkserver"), kernel="c",
    algorithms=("crc32c", "crc32"),
)  # fmt: skip


@pytest.fixture
def store(tmp_path) -> str:
    rows = ({"id": f"s{i}", "x": x} for i, x in enumerate(sequences(30)))
    write_store(tmp_path / "store", rows)
    return str(tmp_path / "store")


def run(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["doctor", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout


def of(findings: Any, name: str) -> DoctorFinding:
    """Return the one finding of a name."""
    (found,) = [one for one in findings if one.name == name]
    return found


def on(*, shards: int = 1, workers: int = 0, **changes: Any) -> list[DoctorFinding]:
    return list(check_machine(replace(GOOD, **changes), shards=shards, workers=workers))


def test_a_good_machine_is_all_right():
    assert {one.state for one in on(workers=8)} == {"ok"}
    assert "its size does not matter" in of(on(), "/dev/shm").seen


@pytest.mark.parametrize(
    ("facts", "name", "state", "seen", "fix"),
    [
        ({"workers": 9}, "cores", "warn", "8; 9 workers", "num_workers=8"),
        ({"workers": 4, "core_limit": 1.5}, "cores", "warn", "of which 1.5 may", "num_workers=1"),
        ({"memory": 1 << 20}, "memory", "warn", "1.0 MiB free", "end other programs"),
        ({"open_files": 256, "workers": 2}, "open files", "bad", "256, but 272", "ulimit -n 1088"),
        ({"processes": 100}, "processes", "bad", "100, but 512 processes and threads", "ulimit -u"),
        (
            {"shards": 40_000}, "vm.max_map_count", "bad", "65530, but 84096 mappings for 40000",
            "sysctl -w vm.max_map_count=168192, or write larger shards",
        ),
        ({"methods": ("spawn",)}, "start methods", "note", "spawn; spawn is used", ""),
        ({"kernel": "numpy"}, "kernel", "warn", "numpy, which is slower", "a C compiler"),
        ({"algorithms": ("crc32",)}, "checksums", "warn", "not compared", "[checksums]"),
    ],
)  # fmt: skip
def test_a_trap_of_the_machine_is_seen(facts, name, state, seen, fix):
    found = of(on(**facts), name)
    assert found.state == state
    assert seen in found.seen
    assert fix in found.fix


def test_a_kernel_that_was_chosen_is_unset(monkeypatch):
    monkeypatch.setenv("SEQDATA_KERNEL", "numpy")
    found = of(check_machine(inspect_machine(), shards=1, workers=0), "kernel")
    assert (found.state, found.fix) == ("warn", "unset SEQDATA_KERNEL")


def test_the_machine_is_looked_at():
    here = inspect_machine()
    assert here.cores >= 1
    assert here.kernel in ("c", "numpy")
    assert "spawn" in here.methods


@pytest.mark.parametrize(
    ("torch", "vision", "state"),
    [
        ("2.13.0+cpu", "0.28.0+cpu", "ok"),
        ("2.13.0", "0.28.1", "ok"),
        ("2.13.0+cpu", "0.27.0+cpu", "warn"),
        ("2.13.0+cpu", "0.28.0+cu128", "warn"),
        ("main", "0.28.0", "note"),
    ],
)
def test_a_torchvision_that_does_not_go_with_torch_is_seen(torch, vision, state):
    assert check_torchvision(torch, vision).state == state


def test_lightning_is_known_broken_or_not_there(monkeypatch):
    assert check_lightning("2.6.6").state == "ok"
    assert check_lightning("2.7.0").fix == "pip install 'lightning~=2.6.0'"
    assert check_lightning(None).fix == "pip install lightning"
    old = check_lightning("2.6.1")
    assert (old.state, old.fix) == ("warn", "pip install 'lightning>=2.6.6'")
    assert "GHSA-qqmf-gpg7-g8gw" in old.seen
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    found = check_lightning("2.6.6")
    assert found.state == "bad"
    assert "cannot be imported (ModuleNotFoundError" in found.seen


def test_a_package_that_is_missing_is_bad(monkeypatch):
    monkeypatch.setattr(software, "_PACKAGES", ("no-such-package",))
    found = of(software.check_software(), "no-such-package")
    assert (found.state, found.fix) == ("bad", "pip install no-such-package")


def test_a_broken_plugin_is_bad_and_others_are_not():
    rows = [
        PluginInfo(name="a", distribution="d", version="1", module="m", state="broken", cause="no"),
        PluginInfo(name="b", distribution="e", version="2", module="n", state="installed"),
    ]
    one, two = check_plugins(rows)
    assert (one.state, one.seen) == ("bad", "a of d 1: no")
    assert (two.state, two.seen) == ("ok", "b of e 2, installed")


def test_a_whole_store_is_all_right(store):
    found, said = open_checked(store)
    assert not said
    findings = list(check_data(store, found))
    assert {one.state for one in findings} == {"ok"}
    assert of(findings, "lengths of 'time'").seen == "uint32, up to 9 timesteps"
    assert "30 sequences in 1 shard," in of(findings, "shards").seen


def test_a_shard_that_is_missing_is_bad(store):
    (Path(store) / "part-00000.arrow").unlink()
    found, (said,) = open_checked(store)
    assert found is None
    assert said.state == "bad"
    assert "is not there, must be as the manifest names it" in said.seen


def test_damage_that_is_met_is_bad(store):
    shard = Path(store) / "part-00000.arrow"
    content = bytearray(shard.read_bytes())
    content[content.find(sequences(30)[0].tobytes())] ^= 1
    shard.write_bytes(content)
    found = of(check_data(store, open_store(store)), "data")
    assert (found.state, found.fix) == ("bad", f"seqdata verify {store}")
    assert 'sequence 0 ("s0")' in found.seen


def test_files_of_others_are_said_to_be_unverified(tmp_path):
    import pandas as pd

    pd.DataFrame({"x": [[1.0, 2.0], [3.0]]}).to_parquet(tmp_path / "rows.parquet")
    location = str(tmp_path / "rows.parquet")
    store, _ = open_checked(location)
    found = of(check_data(location, store), "checksums")
    assert (found.state, found.fix) == ("note", "write them as a store: seqdata write")


def test_empty_sequences_are_counted(tmp_path):
    store = write_store(tmp_path / "store", [np.zeros(3), np.zeros(0)])
    found = of(check_data("here", store), "lengths of 'time'")
    assert found.state == "note"
    assert found.seen == "uint32, up to 3 timesteps; 1 are 0 and will be dropped"


@pytest.mark.parametrize(
    ("lengths", "seen"),
    [
        (np.zeros(3, dtype=np.uint32), "all are 0: there is nothing to plan"),
        (np.ones(3), "float64, up to 1 timesteps: not integers"),
    ],
)
def test_lengths_that_cannot_be_planned_with_are_bad(lengths, seen):
    found = check_lengths("here", "time", lengths)
    assert (found.state, found.seen) == ("bad", seen)


def settings(
    store: str, *, geometry: FitGeometry | None = None, trainer: Any = None, versions: Any = None,
    opens: bool = True, **options: Any,
) -> list[DoctorFinding]:  # fmt: skip
    """Return what is said of a run that was asked for these options."""
    options.setdefault("batching", Bucketed(4))
    data = SequenceDataModule(train=store, **options)
    file = RunFile.from_options(
        data._options, geometry or FitGeometry(), fingerprints={}, plan="",
        versions=versions or installed_versions(), trainer=trainer or {},
    )  # fmt: skip
    return list(check_settings(file, Path(NAME), open_store(store) if opens else None))


def columns(sequence, rng):
    return sequence


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
            "8 batches are 3 steps of 3 ranks; in the last one 1 ranks have filler", "",
        ),
        (
            {"geometry": FitGeometry(world_size=3), "tail": "drop"}, "batches", "note",
            "8 batches are 2 steps of 3 ranks; 2 are left out each epoch", "tail='fill'",
        ),
        (
            {"geometry": FitGeometry(world_size=9)}, "batches", "warn",
            "1 ranks have none of their own", "smaller batches, or fewer ranks",
        ),
        ({"batching": TokenBudget(5)}, "batching", "bad", "longer than `max_tokens`=5", ""),
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
        ({"as_dict": ["x"]}, "weight", "note", "filler rows of several ranks", "tail='drop'"),
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
        ({"on_error": "mask"}, "on_error", "ok", "'mask', and nothing was left out", ""),
        ({"versions": {"torch": "1.0"}}, "versions", "note", "the run had torch 1.0 (now ", ""),
    ],
)  # fmt: skip
def test_a_trap_of_a_run_is_seen(store, facts, name, state, seen, fix):
    found = of(settings(store, **facts), name)
    assert found.state == state
    assert seen in found.seen
    assert fix in found.fix


def test_fork_beside_pyarrow_is_bad(tmp_path):
    import pandas as pd

    pd.DataFrame({"x": [[1.0, 2.0], [3.0]]}).to_parquet(tmp_path / "rows.parquet")
    found = settings(
        str(tmp_path / "rows.parquet"), num_workers=1, start_method="fork", opens=False
    )
    assert of(found, "start_method").state == "bad"
    assert "whose threads do not survive a fork" in of(found, "start_method").seen


def test_with_a_transform_nothing_is_planned(store):
    names = {one.name for one in settings(store, transform=noisy)}
    assert "batches" not in names


@pytest.mark.parametrize("shift", [0, 1])
def test_lanes_that_ranks_do_not_divide_are_uneven(store, shift):
    options = {"batching": TBPTT(4, 8), "shift": shift}
    uneven, even = (
        of(settings(store, geometry=FitGeometry(world_size=size), **options), "lanes")
        for size in (3, 2)
    )
    assert (uneven.state, even.state) == ("warn", "ok")
    assert uneven.seen == "4 lanes on 3 ranks"


def test_code_that_is_gone_is_bad_and_none_is_imported(store, tmp_path):
    data = SequenceDataModule(train=store, batching=Bucketed(4), transform=noisy)
    fit(data, max_epochs=1)
    plain = yaml.safe_load(Path(NAME).read_text())
    (tmp_path / "harmful.py").write_text("raise SystemExit('imported')\n")
    plain["import_from"] = [str(tmp_path)]
    for transform, bad in (("harmful:f", 0), ("not_there.at_all:f", 1)):
        plain["data"]["transform"] = {"import": transform}
        Path(NAME).write_text(yaml.safe_dump(plain))
        facts = json.loads(run(".", "--json", code=bad))
        assert facts["bad"] == bad
    (found,) = [one for one in facts["findings"] if one["state"] == "bad"]
    assert (found["name"], found["seen"]) == (
        "transform", "not_there.at_all:f cannot be found here",
    )  # fmt: skip
    assert "harmful" not in sys.modules


def test_what_a_run_went_on_from_is_counted(store):
    Path("seqdata-errors-rank0.jsonl").write_text('{"message": "one"}\n{"message": "two"}\n')
    found = of(settings(store, on_error="mask"), "on_error")
    assert found.state == "warn"
    assert found.seen == '2 sequences were left out, the last one: {"message": "two"}'


def test_a_report_for_people_ends_with_counts(store):
    text = run(store)
    assert "machine\n  ok   cores: " in text
    assert f"{store}\n  ok   shards: 30 sequences in 1 shard" in text
    assert text.splitlines()[-1].endswith(", 0 bad")


def test_a_store_that_is_not_there_is_an_exit_code(tmp_path):
    text = run(str(tmp_path / "none"), code=1)
    assert "  bad  store: " in text
    assert "       do: see the message's end" in text
    assert text.splitlines()[-1].endswith(", 1 bad")


def test_a_run_file_that_is_not_there_is_an_error():
    done = CliRunner().invoke(app, ["doctor", "none.yaml"])
    assert done.exit_code == 2
    assert "none.yaml: cannot be read (No such file or directory)" in done.stderr


def test_help_has_examples():
    text = CliRunner().invoke(app, ["doctor", "--help"]).output
    assert "seqdata doctor logs/version_0/seqdata-run.yaml --json" in text
