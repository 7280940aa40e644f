"""The command on tar shards, as a stranger would use it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata import open_store, write_store
from seqdata.cli.app import app
from tests.index_files import index_path


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_an_index_is_made_and_used(folder):
    for path in (folder / "seqdata-index").iterdir():
        path.unlink()
    location = folder / "x-{000..002}.tar"
    assert "3 of 3 have none" in run("stats", location, code=2)
    told = run("index", location, "--workers", "0")
    assert "indexed 3 of 3 shards, 30 sequences" in told
    assert f"written to {folder / 'seqdata-index'}" in told
    assert f"next: seqdata stats '{location}'" in told
    assert "30 sequences in 3 shards" in run("stats", location)
    assert "indexed 0 of 3 shards" in run("index", folder, "--workers", "0")


@pytest.mark.slow
def test_an_index_is_made_by_processes(folder):
    due = index_path(folder).read_bytes()
    facts = json.loads(run("index", folder, "--rebuild", "--workers", "2", "--json"))
    assert facts == {
        "location": str(folder), "shards": 3, "indexed": 3, "sequences": 30,
        "bytes": sum(path.stat().st_size for path in folder.glob("*.tar")),
        "folders": [str(folder / "seqdata-index")],
    }  # fmt: skip
    assert index_path(folder).read_bytes() == due


def test_what_needs_no_index_is_said(tmp_path):
    write_store(tmp_path / "s", [[1, 2]])
    assert "must hold files of a format with an index" in run("index", tmp_path / "s", code=2)


def test_a_damaged_shard_has_no_index(tar):
    path = tar([("a.npy", b"")], end=False)
    told = run("index", path, "--workers", "0", code=1)
    assert "must end with two blocks of zeros, but" in told
    assert "Traceback" not in told


def test_plans_are_made_over_tar_shards(folder):
    told = run("plan", folder, "--batching", "bucketed", "--batch-size", "4", "--json")
    assert json.loads(told)["batches"] >= 7


def test_the_plugin_is_listed():
    rows = json.loads(run("plugins", "--check", "--json"))["plugins"]
    (row,) = [row for row in rows if row["name"] == "webdataset"]
    assert (row["distribution"], row["state"]) == ("seqdata-webdataset", "loaded")


def test_shards_become_a_store_and_a_store_shards(folder, tmp_path):
    out = tmp_path / "arrow"
    axes = ("--axes", "tok.npy=tok")
    told = run("write", folder / "*.tar", out, "--format", "webdataset", *axes)
    assert "wrote 30 sequences" in told
    due, made = open_store(folder), open_store(out)
    assert made.keys([12]) == ["dir/u12"]
    assert made.lengths.tolist() == due.lengths.tolist()
    spans = np.array([[7, 5, 900], [12, 0, 0]])
    for name in ("mel.npy", "cls", "txt", "json", "mean.npy"):
        found, expected = (list(one.read(spans, [name])[name]) for one in (made, due))
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True)), name
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_bytes(b"abc")
    run("write", tmp_path / "texts", tmp_path / "tar", "--to", "webdataset")
    assert open_store(tmp_path / "tar").lengths.tolist() == [3]
    told = run("write", folder, out, "--format", "webdataset", "--group", "cls", code=2)
    assert "must be left out" in told


def test_shards_are_read_whatever_the_case_of_their_suffix(tar, npy, tmp_path):
    for name in ("a.tar", "b.TAR"):
        tar([(f"{name[0]}.npy", npy(np.arange(3)))], name=name)
    tar([("c.npy", npy(np.arange(3)))], name="note.txt")
    for source in (tmp_path, tmp_path / "?.*"):
        run("write", source, tmp_path / "out", "--format", "webdataset", "--overwrite")
        assert open_store(tmp_path / "out").keys([0, 1]) == ["a", "b"]


def test_keys_that_members_id_replace_are_a_note_with_and_without_an_index(tar, npy, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        members = [(f"{name}.npy", npy(np.arange(3))), (f"{name}.id", b"same")]
        tar(members, name=f"in/{name}.tar")
    told = run("write", tmp_path / "in", tmp_path / "out")
    assert told.count("note: ") == 1
    assert f"{tmp_path / 'in' / 'a.tar'}: ids are dropped: its values 'id' become" in told
    assert "To keep the ids, open the files, `rename` the field" in told
    run("index", tmp_path / "in", "--workers", "0")
    assert "note: store: ids are dropped: " in run("write", tmp_path / "in", tmp_path / "again")
    for made in map(open_store, (tmp_path / "out", tmp_path / "again")):
        assert made.keys([0, 1]) == ["0", "1"]
        assert [row["id"] for row in made] == [b"same", b"same"]
    renamed = open_store(tmp_path / "in").rename({"id": "label"})
    assert write_store(tmp_path / "kept", renamed).keys([0, 1]) == ["a", "b"]
