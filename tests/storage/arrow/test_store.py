"""Opening a store: what is checked, what is imported, and where it may be opened again."""

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from seqdata.errors import ConfigError, DataError, IncompleteDatasetError
from seqdata.protocols import Store
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.arrow.store import open_arrow
from seqdata.storage.arrow.write import write_arrow
from seqdata_testing.waiting import patient


def rows(count=6):
    return [
        {"id": f"u{i}", "x": np.full(i, i, dtype=np.int32), "y": float(i)} for i in range(count)
    ]


@pytest.fixture
def store(tmp_path):
    """Three shards of two sequences."""
    store = write_arrow(tmp_path / "store", rows(), shard_bytes=50)
    assert [shard.sequences for shard in store.manifest.shards] == [2, 2, 2]
    return store


@pytest.fixture
def root(store):
    return store.folder


def whole(store, number, name="x"):
    return store.read(np.array([[number, 0, int(store.lengths[number])]]), [name])[name][0]


def test_an_opened_store_is_a_store(store):
    assert isinstance(store, Store)
    assert len(store) == 6
    assert store.title == f"ArrowStore({store.location!r}, 6 sequences)"
    assert store.base_numbers(np.array([4])).tolist() == [4]


@pytest.mark.parametrize("kernel", ["c", "numpy"])
def test_a_store_is_read_with_either_kernel(root, monkeypatch, kernel):
    if kernel == "c":
        pytest.importorskip("seqdata.kernel._fill")
    monkeypatch.setenv("SEQDATA_KERNEL", kernel)
    store = open_arrow(root)
    spans = np.array([[5, 1, 4], [0, 0, 0], [3, 0, 3]])
    columns = store.read(spans, ["x", "y", "id"])
    out = np.empty(9, dtype=np.int32)
    columns["x"].fill(out, np.array([0, 4, 5, 9]), np.int32(-1).tobytes())
    assert out.tolist() == [5, 5, 5, -1, -1, 3, 3, 3, -1]
    assert columns["x"].lengths.tolist() == [3, 0, 3]
    assert [columns["y"][i].tolist() for i in range(3)] == [[5.0], [0.0], [3.0]]
    assert columns["y"].lengths.tolist() == [1, 1, 1]
    assert columns["id"] == ["u5", "u0", "u3"]


def test_pieces_are_views_of_the_mapped_file(store):
    piece = whole(store, 5)
    assert not piece.flags.writeable
    assert not piece.flags.owndata


def test_a_file_url_is_a_location(root):
    assert open_arrow(root.as_uri()).location == str(root)


def test_a_location_in_the_home_folder_is_found(root, monkeypatch):
    monkeypatch.setenv("HOME", str(root.parent))
    assert len(open_arrow("~/store")) == 6


def test_opening_and_reading_import_neither_pyarrow_nor_torch(root):
    code = (
        "import sys\nimport numpy as np\nfrom seqdata.storage.arrow.store import open_arrow\n"
        f"store = open_arrow({os.fspath(root)!r})\n"
        "columns = store.read(np.array([[3, 0, 3]]), ['x', 'y', 'id'])\n"
        "columns['x'].fill(np.empty(3, np.int32), np.array([0, 3]), None)\n"
        "store.populate(0, 6)\n"
        "print(columns['id'], sorted({'pyarrow', 'torch', 'lightning', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(), check=False
    )
    assert done.stdout.strip() == "['u3'] []", done.stderr


def test_a_pickled_store_opens_itself_again(store):
    text = pickle.dumps(store)
    assert len(text) < 300
    again = pickle.loads(text)
    assert again.fingerprint == store.fingerprint
    assert whole(again, 4).tolist() == [4] * 4


def read_elsewhere(store, pipe):
    pipe.send(whole(store, 5).tolist())
    pipe.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_store_is_read_in_another_process(store, method):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=read_elsewhere, args=(store, theirs))
    process.start()
    theirs.close()
    assert ours.poll(60)
    assert ours.recv() == [5] * 5
    process.join(timeout=patient())
    assert process.exitcode == 0


def test_many_shards_take_no_descriptors(tmp_path):
    pytest.importorskip("seqdata.kernel._fill")
    before = len(os.listdir("/dev/fd"))
    store = write_arrow(tmp_path, [[i] for i in range(60)], shard_bytes=1)
    assert len(store.shards) == 60
    assert len(os.listdir("/dev/fd")) <= before + 2  # of the bits


def test_populate_takes_any_range_and_chosen_fields(store):
    store.populate(0, 6)
    store.populate(1, 3, ["x", "id"])
    store.populate(-5, 99, ["y"])
    store.populate(4, 2)
    with pytest.raises(ConfigError, match=r"no field 'z'. Choose one of id, x, y"):
        store.populate(0, 1, ["z"])


def resident(path):
    """Return the bytes of a mapped file that this process has in memory."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split(" ")[-1].endswith(".arrow"):
            found = line.endswith(str(path))
        elif found and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_populate_reads_what_was_asked_for_and_little_more(tmp_path):
    store = write_arrow(tmp_path, [{"x": np.zeros(1 << 16, np.int32)} for _ in range(64)])
    path = tmp_path / "part-00000.arrow"
    before = resident(path)
    assert before < 4 << 20
    store.populate(48, 64)
    if resident(path) == before:
        pytest.skip("this system reads ahead without mapping")
    assert 4 << 20 <= resident(path) < 9 << 20
    store.populate(0, 64, ["x"])
    assert resident(path) >= 16 << 20


# ---- what is not there, or is no store


def test_a_path_that_is_not_there_is_an_error_that_shows_its_neighbours(root):
    text = rf"stroe: must be a .* folder, but is not there \({root.parent} holds store\)\. Check"
    with pytest.raises(ConfigError, match=text):
        open_arrow(root.parent / "stroe")
    with pytest.raises(
        ConfigError, match=r"must be a store's folder, but is not there \(nor is its parent\)"
    ):
        open_arrow(root / "a" / "b")


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(
        DataError, match=r"must be a store's folder, but is empty. Write one with `seqdata"
    ):
        open_arrow(tmp_path)


def test_a_folder_of_other_files_is_an_error(tmp_path):
    (tmp_path / "a.txt").touch()
    text = (
        "must be a store's folder, but holds a.txt and no 'seqdata.json'. Turn the files into one"
    )
    with pytest.raises(DataError, match=text):
        open_arrow(tmp_path)


def test_a_single_arrow_file_is_an_error(root):
    with pytest.raises(DataError, match=r"must be a store's folder .* but is a single Arrow file"):
        open_arrow(root / "part-00000.arrow")


def test_a_file_that_is_not_arrow_is_an_error(tmp_path):
    (tmp_path / "notes").write_text("hello")
    with pytest.raises(
        DataError, match=r"must be a store's folder with .* but is a file that is not an Arrow"
    ):
        open_arrow(tmp_path / "notes")


@pytest.mark.parametrize("location", ["file://host/st"])
def test_files_of_another_machine_are_an_error(location):
    with pytest.raises(
        ConfigError, match=r"must be a local path or a file:// URL, but .* is remote \(.*\)"
    ):
        open_arrow(location)


@pytest.mark.parametrize("location", ["", b"store"])
def test_a_location_that_is_no_path_is_an_error(location):
    with pytest.raises(
        ConfigError, match=r"location must be a non-empty string or a path, but is .*\. Pass a"
    ):
        open_arrow(location)


def test_a_folder_where_a_writer_stopped_says_how_to_go_on(tmp_path):
    (tmp_path / ".seqdata-tmp-abc").mkdir()
    text = (
        r"manifest \(.seqdata.json.\): is not there\. .*: writing was not finished\. "
        "Repeat the same call or command: it continues where it stopped"
    )
    with pytest.raises(IncompleteDatasetError, match=text) as caught:
        open_arrow(tmp_path)
    assert caught.value.details == {
        "dataset": str(tmp_path), "file": "seqdata.json", "shards": 0, "sequences": 0
    }  # fmt: skip


@pytest.mark.parametrize("left", ["part-00000.arrow", "lengths-time.u32", "part-00000.crc"])
def test_a_folder_without_manifest_is_an_unfinished_one(tmp_path, left):
    (tmp_path / left).touch()
    text = "is not there, but 1 files of a store are. It is written last: writing was not"
    with pytest.raises(IncompleteDatasetError, match=text):
        open_arrow(tmp_path)


# ---- what cannot be meant


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (
            [6, 0, 1],
            r"the index of a sequence must be in \[0, 6\), but is 6\. Use a plan that was",
        ),
        ([-1, 0, 1], r"the index of a sequence must be in \[0, 6\), but is -1"),
        (
            [3, 1, 4],
            r"sequence 3, field 'x': timesteps must be in 0..3, but 1..4 were requested. Use a "
            r"plan",
        ),
        ([3, -1, 2], r"sequence 3, field 'x': timesteps must be in 0..3, but -1..2 were requested"),
        ([3, 2, 1], r"sequence 3, field 'x': timesteps must be in 0..3, but 2..1 were requested"),
    ],
)
def test_a_span_that_is_not_there_is_an_error(store, span, text):
    column = store.read(np.array([[5, 0, 2], span]), ["x"])["x"]
    with pytest.raises(ConfigError, match=text):
        column.fill(np.empty(9, np.int32), np.array([0, 3, 9]), None)
    with pytest.raises(ConfigError, match=text):
        column[1]


def test_a_number_that_is_not_there_is_an_error_for_whole_fields(store):
    columns = store.read(np.array([[6, 0, 1]]), ["y"])
    with pytest.raises(ConfigError, match=r"must be in \[0, 6\), but is 6"):
        columns["y"].fill(np.empty(1), np.array([0, 1]), None)
    with pytest.raises(ConfigError, match=r"must be in \[0, 6\), but is 6"):
        store.read(np.array([[6, 0, 1]]), ["id"])
    with pytest.raises(ConfigError, match=r"must be in .*, but is -1"):
        store.keys([-1])


def test_ids_of_numbers_that_are_not_there_are_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"must be in \[0, 1\), but is 1"):
        write_arrow(tmp_path, [[1]]).keys([0, 1])


def test_a_field_or_axis_that_is_not_there_is_an_error_with_a_hint(store):
    with pytest.raises(
        ConfigError, match=r"no field 'xx'; did you mean 'x'\? Choose one of id, x, y"
    ):
        store.read(np.array([[0, 0, 0]]), ["xx"])
    with pytest.raises(
        ConfigError, match=r"no axis 'tine'; did you mean 'time'\? Choose one of time"
    ):
        store.read(np.array([[0, 0, 0]]), ["x"], axis="tine")


def test_spans_of_another_shape_are_an_error(store):
    with pytest.raises(
        ConfigError,
        match=r"`spans` must have shape \(n, 3\), with columns .*, but has shape \(3,\)",
    ):
        store.read(np.array([0, 0, 0]), ["x"])


def test_an_output_of_another_dtype_is_an_error(store):
    column = store.read(np.array([[3, 0, 3]]), ["x"])["x"]
    with pytest.raises(
        ValueError, match=r"field 'x': `out` must be int32, but is int64. Pass such an array"
    ):
        column.fill(np.empty(3, dtype=np.int64), np.array([0, 3]), None)


def test_a_foreign_reader_sees_the_same_values(root):
    batch = pa.ipc.open_file(root / "part-00001.arrow").get_batch(0)
    assert batch.column("x").to_pylist() == [[2, 2], [3, 3, 3]]


def test_the_manifest_says_what_was_written(root):
    text = json.loads((root / MANIFEST).read_text())
    assert (text["format"], text["version"], text["sequences"], text["key"]) == (
        "seqdata",
        1,
        6,
        "id",
    )
