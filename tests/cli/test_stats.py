"""``seqdata stats``: fields, shards and lengths of a store."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from seqdata.api import write_store
from seqdata.cli.app import app
from seqdata.cli.stats import find_sizes
from tests.cli.commands import read_rows


@pytest.fixture
def store(tmp_path):
    rows = [
        {"id": f"s{i}", "mel": np.zeros((n, 4), dtype=np.float32), "text": np.arange(2 * n), "y": i}
        for i, n in enumerate([0, 1, 2, 4, 100])
    ]
    write_store(tmp_path / "store", rows, axes={"text": "text"}, shard_bytes=64)
    return str(tmp_path / "store")


def run(*arguments):
    done = CliRunner().invoke(app, ["stats", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_report_shows_fields_lengths_and_shards(store):
    text = run(store)
    assert f"{store}: 5 sequences in 4 shards, " in text
    rows = read_rows(text)
    assert ["mel", "float32", "[T, 4]", "time"] in rows
    assert ["y", "int64", "[]", "(per sequence)"] in rows
    assert ["0", "2", "21.4", "81", "100", "1"] in rows
    assert "Lengths along 'time': 107 timesteps" in text
    assert "Lengths along 'text': 214 timesteps" in text
    bars = {line.split()[0]: line.split()[1] for line in text.splitlines() if "█" in line}
    assert bars["64-100"] == "1"


def test_the_same_as_json(store):
    facts = json.loads(run(store, "--json"))
    assert facts["sequences"] == 5
    assert facts["location"] == store
    assert facts["fields"]["mel"] == {"dtype": "float32", "shape": [4], "axis": "time"}
    assert len(facts["shards"]) == 4
    assert all(shard["bytes"] > 0 for shard in facts["shards"])
    time = facts["lengths"]["time"]
    assert (time["shortest"], time["median"], time["longest"]) == (0, 2.0, 100)
    assert (time["total"], time["empty"], time["p95"]) == (107, 1, pytest.approx(80.8))
    assert time["mean"] == pytest.approx(21.4)
    assert sum(one["count"] for one in time["histogram"]) == 5


def test_several_stores_are_shown_as_one(store, tmp_path):
    more = [{"id": "t", "mel": np.ones((7, 4), dtype=np.float32), "text": np.arange(3), "y": 9}]
    write_store(tmp_path / "more", more, axes={"text": "text"})
    both = [store, str(tmp_path / "more")]
    facts = json.loads(run(*both, "--json"))
    assert facts["location"] == ", ".join(both)
    assert facts["sequences"] == 6
    assert facts["lengths"]["time"]["total"] == 114
    assert len(facts["shards"]) == 5
    assert all(shard["bytes"] > 0 for shard in facts["shards"])
    assert f"{both[0]}, {both[1]}: 6 sequences in 5 shards, " in run(*both)


def sizes_of(location):
    return [shard["bytes"] for shard in json.loads(run(str(location), "--json"))["shards"]]


@pytest.mark.parametrize("name", ["one.parquet", "one[1]*.parquet"])
def test_a_location_that_is_a_file_has_its_size(tmp_path, name):
    file = tmp_path / name
    pq.write_table(pa.table({"x": [[1, 2, 3], [4]]}), file)
    assert sizes_of(file) == [file.stat().st_size]
    assert sizes_of(file.as_uri()) == [file.stat().st_size]
    assert f"{file}: 2 sequences in 1 shard, " in run(str(file))


def test_one_sequence_is_not_said_to_be_several(tmp_path):
    write_store(tmp_path / "store", [np.arange(3)])
    assert f"{tmp_path / 'store'}: 1 sequence in 1 shard, " in run(str(tmp_path / "store"))


@pytest.mark.parametrize(
    ("location", "due"),
    [("data/a/1.bin", [4]), ("data/a", [4, 6]), ("data", [4, 6, 8]), ("data/a/*.bin", [None] * 2)],
)
def test_token_files_have_their_sizes(tmp_path, location, due):
    pytest.importorskip("seqdata_tokens")
    for name, size in (("a/1.bin", 4), ("a/2.bin", 6), ("b/1.bin", 8)):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(bytes(size))
    assert sizes_of(tmp_path / location) == due


@pytest.mark.parametrize("location", ["memory://x", "table", "open{", "{a,b}", "*"])
def test_shards_that_are_not_files_at_their_location_have_no_size(tmp_path, monkeypatch, location):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table").write_bytes(b"all shards are in here")
    assert find_sizes(location, ["part-0", "part-1"]) == [None, None]


def test_a_folder_without_a_store_is_a_data_error(tmp_path):
    done = CliRunner().invoke(app, ["stats", str(tmp_path)])
    assert done.exit_code == 1
    assert "must be a store's folder, but is empty" in done.stderr


def test_values_that_are_not_finite_are_counted(tmp_path):
    holes = [[1.0, 2.0], [np.nan, 1.0, np.inf], [0.0], [-np.inf, np.nan, np.nan]]
    rows = [{"x": np.array(one), "y": np.float32(number)} for number, one in enumerate(holes)]
    rows[2]["y"] = np.float32("nan")
    write_store(tmp_path / "store", rows)
    store = str(tmp_path / "store")
    text = run(store)
    assert "values that are not finite:\n" in text
    assert "  x: 3 NaN, 2 infinite, in 2 sequences\n" in text
    assert "  y: 1 NaN, 0 infinite, in 1 sequence\n" in text
    values = json.loads(run(store, "--json"))["values"]
    assert values["x"] == {"nan": 3, "inf": 2, "sequences": 2}
    assert "values: not read; pass --values" in run(store, "--no-values")
    assert json.loads(run(store, "--no-values", "--json"))["values"] is None


def test_finite_values_and_stores_without_floats_are_said(store, tmp_path, monkeypatch):
    assert "values: all finite\n" in run(store)
    write_store(tmp_path / "integers", [np.arange(3)])
    assert "values:" not in run(str(tmp_path / "integers"))
    monkeypatch.setattr("seqdata.cli.stats.MAX_BYTES_UNASKED", 8)
    assert "values: not read; pass --values" in run(store)
    assert "values: all finite\n" in run(store, "--values")
