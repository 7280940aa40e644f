"""Folders of the datasets library: all files that their state names, or an error."""

import json
import shutil
import warnings

import pyarrow as pa
import pytest
from pyarrow import parquet

from seqdata.api import open_store
from seqdata.errors import CorruptShardError, DataError, MissingShardError, SeqDataWarning
from seqdata.storage.foreign.file_discovery import parse_dataset_state


def save(folder, count=3, rows=10):
    """Write what ``save_to_disk`` writes: shards, the state that names them, and what they are."""
    folder.mkdir()
    names = [f"data-{number:05}-of-{count:05}.arrow" for number in range(count)]
    for number, name in enumerate(names):
        first = rows * number
        table = pa.table({"x": [[one] for one in range(first, first + rows)]})
        with pa.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return names


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_saved_dataset_is_all_files_that_its_state_names(folder):
    shutil.copy(folder / "data-00001-of-00003.arrow", folder / "cache-12ab.arrow")
    assert len(open_store(folder)) == 30


@pytest.mark.parametrize("number", range(3))
def test_a_shard_that_is_missing_is_an_error(folder, number):
    name = f"data-{number:05}-of-00003.arrow"
    (folder / name).unlink()
    with pytest.raises(
        MissingShardError,
        match=rf'shard {number} \("{name}"\): must be in the folder, for \'state.json\' names it '
        r"\(3 files; 2 are there\), but is not. Restore it",
    ) as told:
        open_store(folder)
    assert told.value.facts == {"dataset": str(folder), "shard": number, "file": name}


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (b"{", r"cannot be read \(JSONDecodeError\)"),
        (b'{"_data_files": [{"filename": 3}]}', "names files outside of the folder"),
        (b'{"_data_files": [{"filename": "../a.arrow"}]}', "names files outside of the folder"),
        (b'{"_data_files": [{"filename": "a"}, {"filename": "a"}]}', "names a file twice"),
        (b'{"_data_files": []}', "names none"),
        (b'{"_data_giles": []}', r"cannot be read \(KeyError\)"),
        (b"\xff", r"cannot be read \(UnicodeDecodeError\)"),
    ],
)
def test_a_state_that_is_damaged_is_an_error(folder, state, what):
    (folder / "state.json").write_bytes(state)
    with pytest.raises(CorruptShardError, match=f"must name the files .* but {what}. Restore it"):
        open_store(folder)


def test_flips_of_the_state_never_lose_a_shard(folder):
    path = folder / "state.json"
    raw = path.read_bytes()
    there = [one.name for one in folder.iterdir()]
    due = parse_dataset_state(str(folder), raw, there)
    assert len(due) == 3
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = parse_dataset_state(str(folder), bytes(flipped), there)
        except CorruptShardError:
            continue
        assert set(found) == set(due) or set(found) - set(there)  # one that is not there: an error


@pytest.mark.parametrize("name", ["A.PARQUET", "b.Pq", "C.ARROW"])
def test_names_in_capital_letters_are_files_of_the_folder_too(tmp_path, name):
    table = pa.table({"x": [[1], [2, 3]]})
    ending = name[1:]
    for path in (tmp_path / f"0{ending.lower()}", tmp_path / name):
        if ending == ".ARROW":
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table)
        else:
            parquet.write_table(table, path)
    assert open_store(tmp_path).lengths.tolist() == [1, 2, 1, 2]
    assert open_store(tmp_path / name).lengths.tolist() == [1, 2]


def test_somebody_elses_state_is_left_alone(folder):
    (folder / "dataset_info.json").unlink()
    (folder / "state.json").write_text("[1]")
    assert len(open_store(folder)) == 30


def test_names_that_say_how_many_there_are_warn_of_those_that_are_missing(folder):
    (folder / "state.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(open_store(folder)) == 30
    (folder / "data-00001-of-00003.arrow").unlink()
    with pytest.warns(
        SeqDataWarning,
        match=r"must hold 3 files by their names, but holds 2; the first that is not there is "
        r"'data-00001-of-00003.arrow'",
    ):
        assert len(open_store(folder)) == 20


def test_a_saved_selection_of_rows_is_refused(folder):
    state = json.loads((folder / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=r"selects some of them by indices.*`flatten_indices\(\)`"):
        open_store(folder)
