"""Where data lies is written down, as a run file names it, and opened again from there."""

from pathlib import Path

import pytest

from seqdata import ConfigError, open_store, split, write_store
from seqdata.runs.data_refs import DataRefWriter, open_data_ref
from seqdata.runs.run_file import list_store_paths
from seqdata.runs.side_files import SideFiles, pack_arrays
from seqdata.runs.to_plain import PlainReader, PlainWriter
from seqdata.storage.memory import MemoryStore
from seqdata.storage.views import View


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (MemoryStore.of([[1.0]]), "train: data in memory (1 in a MemoryStore) has no path"),
        (MemoryStore.of([[1.0]]).take([0]), "train: data in memory (1 in a MemoryStore) has no"),
        (iter([[1.0]]), "train: data in memory (in a list_iterator) has no path"),
        (type("Set", (), {"__len__": len, "__getitem__": len})(), "train: a Dataset (Set) has no"),
    ],
)
def test_data_that_lies_nowhere_is_named(data, why):
    places = DataRefWriter(PlainWriter())
    places.to_plain(data, "train")
    assert places.writer.missing[0].startswith(why)


def test_locations_are_written_so_that_they_hold_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    places = DataRefWriter(PlainWriter())
    assert places.to_plain("store", "train") == {"path": str(Path.cwd() / "store")}
    assert places.to_plain(Path("~/store"), "train") == {"path": str(tmp_path / "store")}
    assert places.to_plain("s3://bucket/store", "train") == {"path": "s3://bucket/store"}


def test_files_beside_have_plain_names_of_their_own(tmp_path):
    store = write_store(tmp_path / "store", [[1.0], [2.0]])
    places = DataRefWriter(PlainWriter())
    for name in ("val.a/b", "val.a b", "val.../c"):
        places.to_plain(store.take([1, 0]), name)
    assert sorted(places.writer.side_files.arrays) == [
        "seqdata-run-val-a-b-1.npz", "seqdata-run-val-a-b.npz", "seqdata-run-val-c.npz",
    ]  # fmt: skip


def test_a_view_of_very_many_is_not_kept(monkeypatch, tmp_path):
    from seqdata.runs import data_refs as module

    monkeypatch.setattr(module, "MOST_NUMBERS", 1)
    store = write_store(tmp_path / "store", [[1.0], [2.0]])
    places = DataRefWriter(PlainWriter())
    places.to_plain(store.take([1, 0]), "train")
    assert places.writer.missing == ["train: a view of 2 sequences, more than 1"]


@pytest.fixture
def parts(tmp_path) -> dict[str, View]:
    write_store(tmp_path / "store", [{"x": range(5)}, {"x": range(2)}, {"x": range(9)}])
    return split(tmp_path / "store", {"train": "..3", "val": "3.."}, along="time", context=1)


@pytest.mark.parametrize("name", ["train", "val"])
def test_a_part_in_time_is_opened_again(parts, name, tmp_path):
    writer = DataRefWriter(PlainWriter(side_files=SideFiles("run")))
    plain = writer.to_plain(parts[name], name)
    assert plain == {
        "spans": {"path": str(tmp_path / "store")}, "axis": "time", "numbers": f"run-{name}.npz"
    }  # fmt: skip
    assert list_store_paths(plain) == [str(tmp_path / "store")]
    for file, arrays in writer.writer.side_files.arrays.items():
        (tmp_path / file).write_bytes(pack_arrays(arrays, file))
    opened = open_data_ref(plain, name, tmp_path, PlainReader((), "run.yaml"))
    assert opened.fingerprint == parts[name].fingerprint
    assert opened.lengths.tolist() == parts[name].lengths.tolist()


def test_sequences_of_a_part_may_be_chosen(parts, tmp_path):
    writer = DataRefWriter(PlainWriter(side_files=SideFiles("run")))
    plain = writer.to_plain(parts["val"].take([1]), "val")
    for file, arrays in writer.writer.side_files.arrays.items():
        (tmp_path / file).write_bytes(pack_arrays(arrays, file))
    opened = open_data_ref(plain, "val", tmp_path, PlainReader((), "run.yaml"))
    assert [one["x"].tolist() for one in opened] == [[2, 3, 4, 5, 6, 7, 8]]


def test_a_part_of_data_in_memory_is_not_replayable():
    writer = PlainWriter()
    train = split(open_store([[1, 2]]), {"train": "..1"}, along="time")["train"]
    plain = DataRefWriter(writer).to_plain(train, "train")
    with pytest.raises(ConfigError, match="data in memory"):
        open_data_ref(plain, "train", Path(), PlainReader((), "run.yaml"))
    assert writer.missing
