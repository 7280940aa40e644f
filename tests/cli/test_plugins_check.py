"""``seqdata plugins check``: the checks of the conformance kit on an installed backend."""

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata.cli.app import app
from seqdata.host import default_host
from seqdata_testing.locations import CHECKS
from tests.plugins.broken_backends import write_shards


def run(*arguments):
    return CliRunner().invoke(app, ["plugins", *map(str, arguments)])


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A plugin whose backend has a fault."""
    site = tmp_path / "site"
    info = site / "seqdata_broken_rec-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: seqdata-broken-rec\nVersion: 1.0")
    (info / "entry_points.txt").write_text("[seqdata]\nbroken-rec = a_broken_rec\n")
    (site / "a_broken_rec.py").write_text(
        "from seqdata import hookimpl\nfrom tests.plugins.broken_backends import ScalarValue\n\n"
        "@hookimpl\ndef seqdata_register_backends():\n    return {'broken-rec': ScalarValue}\n"
    )
    monkeypatch.syspath_prepend(str(site))
    default_host.cache_clear()
    yield write_shards(tmp_path / "data")
    default_host.cache_clear()
    sys.modules.pop("a_broken_rec", None)


@pytest.mark.slow
def test_a_sound_backend_passes(tmp_path):
    np.arange(1_000, dtype=np.uint16).tofile(tmp_path / "corpus.bin")
    done = run("check", "tokens", tmp_path / "corpus.bin")
    assert done.exit_code == 0, done.output
    assert "ok      child processes read the same" in done.output
    assert "17 ok, 0 failed, 1 skipped" in done.output


@pytest.mark.slow
def test_a_fault_is_printed_and_the_exit_code_is_1(broken):
    done = run("check", "broken-rec", broken)
    assert done.exit_code == 1
    assert (
        "failed  values have the shape of their field: store: field 'y' of sequence 0 has shape "
        "(), but must have (1,)"
    ) in done.stdout
    told = run("check", "broken-rec", broken, "--json")
    assert told.exit_code == 1
    assert [each["name"] for each in json.loads(told.stdout)["checks"]] == list(CHECKS)


def test_an_unknown_backend_is_an_error():
    done = run("check", "token", "corpus.bin")
    assert done.exit_code == 1
    assert "unknown backend 'token'; did you mean 'tokens'?" in done.stderr


def test_without_the_kit_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "seqdata_testing"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "seqdata_testing", None)
    done = run("check", "tokens", "corpus.bin")
    assert done.exit_code == 1
    assert "needs the package seqdata-testing, which has the checks" in done.stderr
    assert "pip install 'lightning-seqdata[testing]'" in done.stderr


def test_options_stand_behind_the_command():
    done = run("--json", "check", "tokens", "corpus.bin")
    assert done.exit_code == 2
    assert "--json must come after 'check', but comes before it" in done.stderr
    done = run("--check", "check", "tokens", "corpus.bin")
    assert done.exit_code == 2
    assert "--check cannot be combined with a command, but 'check' is given" in done.stderr
