"""What doctor sees in data: what is missing, damaged, empty or cannot be planned with."""

from pathlib import Path

import numpy as np
import pytest

from seqdata.api import open_store, write_store
from seqdata.cli._doctor.data import check_data, check_lengths, open_checked
from tests.cli.commands import find_one
from tests.lightning.harness import sequences


@pytest.fixture
def store(tmp_path) -> str:
    rows = ({"id": f"s{i}", "x": x} for i, x in enumerate(sequences(30)))
    write_store(tmp_path / "store", rows)
    return str(tmp_path / "store")


def test_a_whole_store_is_all_right(store):
    found, said = open_checked(store)
    assert not said
    findings = list(check_data(store, found))
    assert {one.state for one in findings} == {"ok"}
    assert find_one(findings, "lengths of 'time'").seen == "uint32, up to 9 timesteps"
    assert "30 sequences in 1 shard," in find_one(findings, "shards").seen


def test_a_shard_that_is_missing_is_bad(store):
    (Path(store) / "part-00000.arrow").unlink()
    found, (said,) = open_checked(store)
    assert found is None
    assert said.state == "bad"
    assert "is missing. Restore it" in said.seen


def test_damage_that_is_met_is_bad(store):
    shard = Path(store) / "part-00000.arrow"
    content = bytearray(shard.read_bytes())
    content[content.find(sequences(30)[0].tobytes())] ^= 1
    shard.write_bytes(content)
    found = find_one(check_data(store, open_store(store)), "data")
    assert (found.state, found.fix) == ("bad", f"seqdata verify {store}")
    assert 'sequence 0 ("s0")' in found.seen


def test_files_of_others_are_said_to_be_unverified(tmp_path):
    import pandas as pd

    pd.DataFrame({"x": [[1.0, 2.0], [3.0]]}).to_parquet(tmp_path / "rows.parquet")
    location = str(tmp_path / "rows.parquet")
    store, _ = open_checked(location)
    found = find_one(check_data(location, store), "checksums")
    assert (found.state, found.fix) == ("note", "write them as a store: seqdata write")


def test_empty_sequences_are_counted(tmp_path):
    store = write_store(tmp_path / "store", [np.zeros(3), np.zeros(0)])
    found = find_one(check_data("here", store), "lengths of 'time'")
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
