"""``seqdata doctor``: each trap is seen where it is, and has a way out of it."""

import sys
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from seqdata.api import write_store
from seqdata.cli._doctor import software
from seqdata.cli._doctor.finding import DoctorFinding
from seqdata.cli._doctor.machine import Machine, check_machine
from seqdata.cli._doctor.software import check_lightning, check_plugins, check_torchvision
from seqdata.cli.app import app
from seqdata.host import PluginInfo
from tests.cli.commands import find_one, run_doctor
from tests.lightning.harness import sequences

GOOD = Machine(
    cores=8, core_limit=None, memory=8 << 30, shared=64 << 20, open_files=1024, processes=None,
    mappings=65530, methods=("fork", "spawn", "forkserver"), kernel="c",
    algorithms=("crc32c", "crc32"), processor="AVX512", autocast=("bfloat16", "float16"),
)  # fmt: skip


@pytest.fixture
def store(tmp_path) -> str:
    rows = ({"id": f"s{i}", "x": x} for i, x in enumerate(sequences(30)))
    write_store(tmp_path / "store", rows)
    return str(tmp_path / "store")


def on(*, shards: int = 1, workers: int = 0, **changes: Any) -> list[DoctorFinding]:
    return list(check_machine(replace(GOOD, **changes), shards=shards, workers=workers))


def test_a_good_machine_is_all_right():
    assert {one.state for one in on(workers=8)} == {"ok"}
    assert "its size does not matter" in find_one(on(), "/dev/shm").seen


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
        (
            {"processor": "AVX2", "autocast": ("bfloat16",)}, "LSTM on the CPU", "note",
            "AVX2: no float16 under autocast", "precision='32-true' or 'bf16-true'",
        ),
        ({"algorithms": ("crc32",)}, "checksums", "warn", "not compared", "[checksums]"),
    ],
)  # fmt: skip
def test_a_trap_of_the_machine_is_seen(facts, name, state, seen, fix):
    found = find_one(on(**facts), name)
    assert found.state == state
    assert seen in found.seen
    assert fix in found.fix


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
    found = find_one(software.check_software(), "no-such-package")
    assert (found.state, found.fix) == ("bad", "pip install no-such-package")


def test_a_broken_plugin_is_bad_and_others_are_not():
    rows = [
        PluginInfo(name="a", distribution="d", version="1", module="m", state="broken", cause="no"),
        PluginInfo(name="b", distribution="e", version="2", module="n", state="installed"),
    ]
    one, two = check_plugins(rows)
    assert (one.state, one.seen) == ("bad", "a of d 1: no")
    assert (two.state, two.seen) == ("ok", "b of e 2, installed")


def columns(sequence, rng):
    return sequence


def test_a_report_for_people_ends_with_counts(store):
    text = run_doctor(store)
    assert "ok   " not in text
    assert text.splitlines()[-1].startswith("0 bad, ")
    assert text.splitlines()[-1].endswith(" ok (-v lists passed checks)")
    everything = run_doctor(store, "-v")
    assert "ok   machine: cores: " in everything
    assert f"ok   {store}: shards: 30 sequences in 1 shard" in everything


def test_what_is_bad_comes_first(tmp_path):
    text = run_doctor(str(tmp_path / "none"), "--verbose", code=1)
    states = [line.split()[0] for line in text.splitlines()[:-1] if not line.startswith(" ")]
    assert states == sorted(states, key=["bad", "warn", "note", "ok"].index)
    assert {"bad", "ok"} <= set(states)


def test_a_store_that_is_not_there_is_an_exit_code(tmp_path):
    text = run_doctor(str(tmp_path / "none"), code=1)
    assert text.startswith(f"bad  {tmp_path / 'none'}: store: ")
    assert "\n     do: see the message's end" in text
    assert text.splitlines()[-1].startswith("1 bad, ")


def test_a_run_file_that_is_not_there_is_an_error():
    done = CliRunner().invoke(app, ["doctor", "none.yaml"])
    assert done.exit_code == 2
    assert "none.yaml: cannot be read (No such file or directory)" in done.stderr


def test_help_has_examples():
    text = CliRunner().invoke(app, ["doctor", "--help"]).output
    assert "seqdata doctor logs/version_0/seqdata-run.yaml --json" in text
