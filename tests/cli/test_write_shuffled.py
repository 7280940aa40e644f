"""``seqdata write --shuffle``: whatever the command reads, in a random order."""

import tarfile

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import feather, parquet

from seqdata.api import open_store
from seqdata.cli.app import app
from seqdata.storage.arrow.shuffled import draw_order

COUNT = 12
ORDER = draw_order(7, COUNT).tolist()
NAMES = [f"{number:02d}" for number in range(COUNT)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def write(*arguments, code=0):
    done = CliRunner().invoke(app, ["write", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.stderr


def make_inputs(folder):
    """Write the same sequences in every form that the command reads: of length n the n-th one."""
    for name in ("npy", "txt", "bytes"):
        (folder / name).mkdir()
    lists = [[number] * number for number in range(COUNT)]
    for number, name in enumerate(NAMES):
        np.save(folder / "npy" / f"{name}.npy", np.full(number, number))
        (folder / "txt" / f"{name}.txt").write_text("x" * number)
        (folder / "bytes" / name).write_bytes(bytes(number))
    with tarfile.open(folder / "a.tar", "w") as shard:
        for name in NAMES:
            shard.add(folder / "npy" / f"{name}.npy", f"{name}.npy")
    jsonl = [f'{{"name": "{name}", "x": {lists[n] or [0]}}}\n' for n, name in enumerate(NAMES)]
    (folder / "rows.jsonl").write_text("".join(jsonl))
    timesteps = [f"{name},{n}\n" for n, name in enumerate(NAMES) for _ in range(n or 1)]
    (folder / "rows.csv").write_text("name,x\n" + "".join(timesteps))
    table = pa.table({"id": NAMES, "x": lists})
    parquet.write_table(table, folder / "rows.parquet")
    parquet.write_table(table, folder / "rows.pq")
    feather.write_feather(table, folder / "rows.feather")
    write("in/npy", "in/store")


SOURCES = [
    ("in/npy", [], ".npy"),
    ("in/npy/*.npy", [], ".npy"),
    ("in/txt", [], ".txt"),
    ("in/bytes", ["--format", "bytes"], ""),
    ("in/a.tar", [], ""),
    ("in/rows.jsonl", ["--id", "name"], ""),
    ("in/rows.csv", ["--group", "name"], ""),
    ("in/rows.parquet", [], ""),
    ("in/rows.pq", [], ""),
    ("in/*.feather", [], ""),
    ("in/store", [], ".npy"),
]


@pytest.mark.parametrize(("source", "options", "suffix"), SOURCES)
def test_whatever_the_command_reads_is_written_in_the_order(folder, source, options, suffix):
    pytest.importorskip("seqdata_webdataset")
    make_inputs(folder)
    assert write(source, "out", "--shuffle", "7", *options) == ""
    store = open_store("out")
    assert store.keys(range(COUNT)) == [f"{NAMES[number]}{suffix}" for number in ORDER]
    lengths = [number or int(len(options) > 0 and "bytes" not in options) for number in ORDER]
    assert store.lengths.tolist() == lengths
    assert store.manifest.shuffle == 7


def test_tar_shards_are_written_in_the_order(folder):
    pytest.importorskip("seqdata_webdataset")
    make_inputs(folder)
    write("in/npy", "out", "--shuffle", "7", "--to", "webdataset")
    assert open_store("out").keys(range(COUNT)) == [NAMES[number] for number in ORDER]


def test_sequences_may_be_numbered_in_the_order(folder):
    make_inputs(folder)
    write("in/npy", "out", "--shuffle", "7", "--id=")
    store = open_store("out")
    assert store.keys([0, 11]) == ["0", "11"]
    assert [row["id"] for row in store] == [f"{NAMES[number]}.npy" for number in ORDER]


def test_an_id_that_is_no_text_names_the_option_that_helps(folder):
    (folder / "a.jsonl").write_text('{"id": 1, "x": [1]}\n')
    said = write("in/a.jsonl", "out", "--shuffle", "7", code=2)
    assert "--shuffle: field 'id' must hold strings" in said
    assert said.endswith("number sequences in the order they are written: pass --id=''\n")
    write("in/a.jsonl", "out", "--shuffle", "7", "--id=", "--no-resume")
    assert open_store("out").keys([0]) == ["0"]


@pytest.mark.parametrize("seed", ["-1", "x", str(1 << 64)])
def test_what_is_no_seed_is_refused(folder, seed):
    make_inputs(folder)
    assert "Invalid value for '--shuffle'" in write("in/npy", "out", "--shuffle", seed, code=2)


def test_the_same_command_continues_in_either_pass_and_another_seed_does_not(folder, monkeypatch):
    for name in "abc":
        np.save(folder / f"{name}.npy", np.zeros(30))
    (folder / "d.npy").write_bytes(b"no array")
    command = ["in", "out", "--shard-bytes", "250", "--shuffle"]
    kept = "note: 3 finished shards (3 sequences) are kept: the same command continues after them"
    assert kept in write(*command, "7", code=1)
    np.save(folder / "d.npy", np.zeros(20))
    said = write(*command, "8", code=2)
    assert "--shuffle must be 7, as it was before the interruption, but is 8. Pass the same" in said
    assert said.endswith("or pass --no-resume to start again.\n")

    def fails(*_, **__):
        raise OSError("disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr("seqdata.storage.arrow.shuffled.shuffle_rows", fails)
        said = write(*command, "7", code=1)
    assert said.startswith(
        "continuing after shard 2 (3 sequences)\nnote: all sequences are kept in"
    )
    assert write(*command, "7") == "continuing with the second pass\n"
    store = open_store("out")
    assert store.keys(range(4)) == [f"{'abcd'[number]}.npy" for number in draw_order(7, 4)]
