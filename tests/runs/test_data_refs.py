"""Where data lies is written down and opened again: parts of a split in time."""

from pathlib import Path

import pytest

from seqdata import ConfigError, open_store, split, write_store
from seqdata.runs.data_refs import DataRefWriter, open_data_ref, pack_arrays
from seqdata.runs.run_file import list_store_paths
from seqdata.runs.to_plain import PlainReader, PlainWriter
from seqdata.storage.views import View


@pytest.fixture
def parts(tmp_path) -> dict[str, View]:
    write_store(tmp_path / "store", [{"x": range(5)}, {"x": range(2)}, {"x": range(9)}])
    return split(tmp_path / "store", {"train": "..3", "val": "3.."}, along="time", context=1)


@pytest.mark.parametrize("name", ["train", "val"])
def test_a_part_in_time_is_opened_again(parts, name, tmp_path):
    writer = DataRefWriter(PlainWriter(), "run")
    plain = writer.to_plain(parts[name], name)
    assert plain == {
        "spans": {"path": str(tmp_path / "store")}, "axis": "time", "numbers": f"run-{name}.npz"
    }  # fmt: skip
    assert list_store_paths(plain) == [str(tmp_path / "store")]
    for file, arrays in writer.side_files.items():
        (tmp_path / file).write_bytes(pack_arrays(arrays))
    opened = open_data_ref(plain, name, tmp_path, PlainReader((), "run.yaml"))
    assert opened.fingerprint == parts[name].fingerprint
    assert opened.lengths.tolist() == parts[name].lengths.tolist()


def test_sequences_of_a_part_may_be_chosen(parts, tmp_path):
    writer = DataRefWriter(PlainWriter(), "run")
    plain = writer.to_plain(parts["val"].take([1]), "val")
    for file, arrays in writer.side_files.items():
        (tmp_path / file).write_bytes(pack_arrays(arrays))
    opened = open_data_ref(plain, "val", tmp_path, PlainReader((), "run.yaml"))
    assert [one["x"].tolist() for one in opened] == [[2, 3, 4, 5, 6, 7, 8]]


def test_a_part_of_data_in_memory_is_not_replayable():
    writer = PlainWriter()
    train = split(open_store([[1, 2]]), {"train": "..1"}, along="time")["train"]
    plain = DataRefWriter(writer, "run").to_plain(train, "train")
    with pytest.raises(ConfigError, match="data in memory"):
        open_data_ref(plain, "train", Path(), PlainReader((), "run.yaml"))
    assert writer.missing
