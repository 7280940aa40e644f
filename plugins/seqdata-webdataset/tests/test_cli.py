"""The command on tar shards, as a stranger would use it."""

import json

import pytest
from click.testing import CliRunner
from seqdata_webdataset.keeping import find_index

from seqdata import write_store
from seqdata.cli.app import app


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_an_index_is_made_and_used(folder):
    for path in (folder / "seqdata-index").iterdir():
        path.unlink()
    location = folder / "x-{000..002}.tar"
    assert "3 of 3 shards have no index" in run("stats", location, code=2)
    told = run("index", location, "--workers", "0")
    assert "indexed 3 of 3 shards, 30 sequences" in told
    assert f"kept in {folder / 'seqdata-index'}" in told
    assert f"next: seqdata stats '{location}'" in told
    assert "30 sequences in 3 shards" in run("stats", location)
    assert "indexed 0 of 3 shards" in run("index", folder, "--workers", "0")


@pytest.mark.slow
def test_an_index_is_made_by_processes(folder):
    due = find_index(folder / "x-001.tar").read_bytes()
    facts = json.loads(run("index", folder, "--anew", "--workers", "2", "--json"))
    assert facts == {
        "location": str(folder), "shards": 3, "indexed": 3, "sequences": 30,
        "bytes": sum(path.stat().st_size for path in folder.glob("*.tar")),
        "folders": [str(folder / "seqdata-index")],
    }  # fmt: skip
    assert find_index(folder / "x-001.tar").read_bytes() == due


def test_what_needs_no_index_is_said(tmp_path):
    write_store(tmp_path / "s", [[1, 2]])
    assert "needs no index, must be tar shards" in run("index", tmp_path / "s", code=2)


def test_a_damaged_shard_has_no_index(tar):
    path = tar([("a.npy", b"")], end=False)
    told = run("index", path, "--workers", "0", code=1)
    assert "without two blocks of zeros, must have them" in told
    assert "Traceback" not in told


def test_plans_are_made_over_tar_shards(folder):
    told = run("plan", folder, "--batching", "bucketed", "--batch-size", "4", "--json")
    assert json.loads(told)["batches"] >= 7


def test_the_plugin_is_listed():
    rows = json.loads(run("plugins", "--check", "--json"))["plugins"]
    (row,) = [row for row in rows if row["name"] == "webdataset"]
    assert (row["distribution"], row["state"]) == ("seqdata-webdataset", "loaded")
