"""Where data lies is written down, as a run file names it, and opened again from there."""

from pathlib import Path

import pytest

from seqdata import open_store, split, write_store
from seqdata.runs.class_paths import (
    ArgumentReader,
    ArgumentWriter,
    NotReplayableError,
    make_call,
)
from seqdata.runs.locations import (
    list_store_paths,
    location_from_plain,
    location_to_plain,
    open_spans,
)
from seqdata.runs.side_files import pack_arrays
from seqdata.storage.memory import MemoryStore
from seqdata.storage.views import View


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (MemoryStore.from_sequences([[1.0]]), "data in memory (1 in a MemoryStore) has no path"),
        (
            MemoryStore.from_sequences([[1.0]]).take([0]),
            "data in memory (1 in a MemoryStore) has no",
        ),
        (iter([[1.0]]), "data in memory (in a list_iterator) has no path"),
        (type("Set", (), {"__len__": len, "__getitem__": len})(), "a Dataset (Set) has no"),
    ],
)
def test_data_that_lies_nowhere_is_named(data, why):
    with pytest.raises(NotReplayableError) as found:
        location_to_plain(data, "train", ArgumentWriter())
    assert str(found.value).startswith(why)


def test_locations_are_written_so_that_they_hold_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for location, plain in (
        ("store", str(Path.cwd() / "store")),
        (Path("~/store"), str(tmp_path / "store")),
        ("s3://bucket/store", "s3://bucket/store"),
    ):
        assert location_to_plain(location, "train", ArgumentWriter()) == plain


def test_files_beside_have_plain_names_of_their_own(tmp_path):
    store = write_store(tmp_path / "store", [[1.0], [2.0]])
    writer = ArgumentWriter(Path("seqdata-run.yaml"))
    for name in ("val.a/b", "val.a b", "val.../c"):
        location_to_plain(store.take([1, 0]), name, writer)
    assert sorted(writer.arrays) == [
        "seqdata-run-val-a-b-1.npz", "seqdata-run-val-a-b.npz", "seqdata-run-val-c.npz",
    ]  # fmt: skip


def test_a_view_of_very_many_is_not_kept(monkeypatch, tmp_path):
    from seqdata.runs import locations as module

    monkeypatch.setattr(module, "MOST_NUMBERS", 1)
    store = write_store(tmp_path / "store", [[1.0], [2.0]])
    with pytest.raises(NotReplayableError, match=r"^a view of 2 sequences, more than 1$"):
        location_to_plain(store.take([1, 0]), "train", ArgumentWriter())


@pytest.fixture
def parts(tmp_path) -> dict[str, View]:
    write_store(tmp_path / "store", [{"x": range(5)}, {"x": range(2)}, {"x": range(9)}])
    return split(tmp_path / "store", {"train": "..3", "val": "3.."}, along="time", context=1)


def reopened(data, name, folder):
    """Return the plain data of a location, and what is opened from it."""
    writer = ArgumentWriter(folder / "run.yaml")
    plain = location_to_plain(data, name, writer)
    for file, arrays in writer.arrays.items():
        (folder / file).write_bytes(pack_arrays(arrays, file))
    return plain, location_from_plain(plain, name, ArgumentReader("run.yaml", folder))


@pytest.mark.parametrize("name", ["train", "val"])
def test_a_part_in_time_is_opened_again(parts, name, tmp_path):
    plain, opened = reopened(parts[name], name, tmp_path)
    path, arrays = (str(tmp_path / file) for file in ("store", f"run-{name}.npz"))
    assert plain == make_call(open_spans, base=path, axis="time", arrays=arrays)
    assert list_store_paths(plain) == [path]
    assert opened.fingerprint == parts[name].fingerprint
    assert opened.lengths.tolist() == parts[name].lengths.tolist()
    assert open_spans(**plain["init_args"]).fingerprint == opened.fingerprint


def test_sequences_of_a_part_may_be_chosen(parts, tmp_path):
    _, opened = reopened(parts["val"].take([1]), "val", tmp_path)
    assert [one["x"].tolist() for one in opened] == [[2, 3, 4, 5, 6, 7, 8]]


def test_a_part_of_data_in_memory_is_not_replayable():
    train = split(open_store([[1, 2]]), {"train": "..1"}, along="time")["train"]
    with pytest.raises(NotReplayableError, match="data in memory"):
        location_to_plain(train, "train", ArgumentWriter())
