"""Folders of the datasets library: all files that their state names, or an error."""

import json
import pickle
import shutil
import warnings

import fsspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from seqdata.api import open_store
from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    MissingShardError,
    SeqDataWarning,
)
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
        match=rf'shard {number} \("{name}"\): must be in the folder, since \'state.json\' names it '
        r"\(3 files; 2 exist\), but is not. Restore it",
    ) as told:
        open_store(folder)
    assert told.value.details == {"dataset": str(folder), "shard": number, "file": name}


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


def write_table(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table({"x": [list(range(row)) for row in rows]}), path)


def test_tables_are_found_below_a_folder_in_natural_order(tmp_path):
    for part in (10, 2, 1):
        write_table(tmp_path / "a" / f"part.{part}.parquet", part)
    write_table(tmp_path / "z.parquet", 3)
    store = open_store(tmp_path)
    assert store.lengths.tolist() == [3, 1, 2, 10]
    assert store[3]["x"].tolist() == list(range(10))
    assert open_store(f"{tmp_path}/**/*.parquet").lengths.tolist() == [3, 1, 2, 10]
    assert open_store(f"{tmp_path}/a/part.[12].parquet").lengths.tolist() == [1, 2]
    again = pickle.loads(pickle.dumps(open_store(f"{tmp_path}/a/part.{{2,1}}.parquet")))
    assert again.lengths.tolist() == [2, 1]


def test_tables_below_links_are_found_once(tmp_path):
    write_table(tmp_path / "data" / "run1" / "0.parquet", 5)
    write_table(tmp_path / "disk" / "1.parquet", 6)
    (tmp_path / "data" / "other").symlink_to(tmp_path / "disk")
    assert open_store(tmp_path / "data").lengths.tolist() == [6, 5]
    (tmp_path / "data" / "latest").symlink_to("run1")
    with pytest.warns(
        SeqDataWarning, match=r"skipped: 1 link to files that are read already \('latest'\)"
    ):
        assert open_store(tmp_path / "data").lengths.tolist() == [6, 5]


def test_notes_of_other_programs_are_no_tables_and_others_are_counted(tmp_path):
    write_table(tmp_path / "0.parquet", 2)
    for name in ("_metadata.parquet", "_tmp/9.parquet", "_SUCCESS", "README.md"):
        write_table(tmp_path / name, 1)
    assert len(open_store(f"{tmp_path}/*.parquet")) == 1
    for name in ("a.csv", "b/c.csv", "._0.parquet"):
        write_table(tmp_path / name, 1)
    with pytest.warns(
        SeqDataWarning, match=r"skipped: 2 files of other suffixes \(2 \.csv\), 1 hid"
    ):
        assert len(open_store(tmp_path)) == 1


def test_tables_of_several_splits_are_refused_and_open_one_by_one(tmp_path):
    for split, rows in (("train", 4), ("test", 2)):
        write_table(tmp_path / f"{split}-00000-of-00001.parquet", *[1] * rows)
    with pytest.raises(
        ConfigError,
        match=r"those of 2: test .* such as '.*/train\*', or pass `split='train'`; for all",
    ):
        open_store(tmp_path)
    assert len(open_store(f"{tmp_path}/train*")) == 4
    assert len(open_store([f"{tmp_path}/train*", f"{tmp_path}/test*"])) == 6


def test_a_dataset_dict_names_the_splits_to_open(tmp_path):
    for split in ("a", "b"):
        save(tmp_path / split)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["a", "b"]}')
    with pytest.raises(ConfigError, match=rf"splits a, b. Open one of them: '{tmp_path}/a' or"):
        open_store(tmp_path)
    assert len(open_store(tmp_path / "a")) == 30


def test_saved_datasets_below_a_folder_are_what_their_states_name(tmp_path):
    for name in ("b", "a"):
        save(tmp_path / name, rows=1 if name == "a" else 2)
        shutil.copy(tmp_path / name / "data-00001-of-00003.arrow", tmp_path / name / "c-1.arrow")
    assert [row["x"][0] for row in open_store(tmp_path)] == [0, 1, 2, 0, 1, 2, 3, 4, 5]
    (tmp_path / "a" / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(
        MissingShardError, match=r'"data-00001-of-00003.arrow"\): must be in the fol'
    ):
        open_store(tmp_path)


@pytest.mark.parametrize("values", [[0, 1], [-3, 12], ["a", "b c"], ["1", "x"]])
def test_folders_that_are_named_as_columns_become_columns(tmp_path, values):
    for value in values:
        write_table(tmp_path / f"label={value}" / "k=0" / "0.parquet", 1, 2)
    store = open_store(tmp_path)
    is_text = any(isinstance(value, str) for value in values)
    assert store.fields["label"].dtype == ("str" if is_text else "int64")
    found = [row["label"] if is_text else int(row["label"]) for row in store]
    assert sorted(found, key=str) == sorted([*values, *values], key=str)
    assert {int(row["k"]) for row in store} == {0}
    assert pickle.loads(pickle.dumps(store)).fields == store.fields


def test_a_column_of_the_files_counts_before_that_of_their_folder(tmp_path):
    write_table(tmp_path / "x=7" / "0.parquet", 3)
    assert list(open_store(tmp_path).fields) == ["x"]


@pytest.mark.parametrize("name", ["0.parquet", "label=__HIVE_DEFAULT_PARTITION__/0.parquet"])
def test_a_file_without_the_column_of_the_other_folders_is_refused(tmp_path, name):
    write_table(tmp_path / "label=1" / "0.parquet", 1)
    write_table(tmp_path / name, 1)
    with pytest.raises(DataError, match=r"must be below a folder 'label=VALUE', which becomes a c"):
        open_store(tmp_path)


def test_a_folder_gives_no_ids(tmp_path):
    write_table(tmp_path / "id=1" / "0.parquet", 1, 2)
    with pytest.raises(
        DataError, match=r"must name one sequence, but is of a folder 'id=…': all rows"
    ):
        open_store(tmp_path)


@pytest.fixture
def bucket(tmp_path):
    """Put a folder of this machine into memory://: return a function of the folder."""

    def put(folder):
        url = f"memory://{tmp_path.name}/{folder.name}"
        fsspec.filesystem("memory").put(str(folder), url, recursive=True)
        return url

    return put


def test_behind_a_url_the_rules_are_the_same(tmp_path, bucket):
    for part in (10, 2):
        write_table(tmp_path / "data" / f"part.{part}.parquet", part)
    write_table(tmp_path / "data" / "._part.2.parquet", 1)
    write_table(tmp_path / "data" / "more" / "0.parquet", 1)
    write_table(tmp_path / "data" / "a.csv", 1)
    text = (
        r"data: skipped: 1 file of other suffixes \(1 \.csv\), "
        r"1 hidden file \('\._part.2.parquet'\),"
        r" 1 folder below, as behind every URL \('more'\)"
    )
    with pytest.warns(SeqDataWarning, match=text):
        store = open_store(bucket(tmp_path / "data"))
    assert store.lengths.tolist() == [2, 10]


def test_splits_behind_a_url_are_refused(tmp_path, bucket):
    for split in ("train", "test"):
        write_table(tmp_path / "files" / f"{split}-0.parquet", 1)
        write_table(tmp_path / "folders" / split / "0.parquet", 1)
        write_table(tmp_path / "dict" / split / "0.parquet", 1)
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError, match=r"must hold the files of one split, .* of 2: test"):
        open_store(bucket(tmp_path / "files"))
    text = (
        r"holds folders only. Folders below a URL are not searched: name one of its 2 \('test', 'tr"
    )
    with pytest.raises(DataError, match=text):
        open_store(bucket(tmp_path / "folders"))
    url = bucket(tmp_path / "dict")
    with pytest.raises(
        ConfigError, match=rf"splits train, test. Open one of them: '{url}/train' or"
    ):
        open_store(url)
    assert len(open_store(f"{url}/train")) == 1
