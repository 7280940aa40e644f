"""Whatever is damaged is an error that names the place; nothing ends the process."""

import os
import re
import socket
import subprocess
import sys

import numpy as np
import pytest

from seqdata.errors import (
    CorruptSampleError,
    CorruptShardError,
    DataError,
    DecodeError,
    MissingShardError,
)
from seqdata.storage.arrow.store import open_arrow
from seqdata.storage.arrow.write import write_arrow
from seqdata_testing.waiting import patient


@pytest.fixture
def store(tmp_path):
    """Three shards of two sequences: sequence i holds i times i."""
    rows = [{"id": f"u{i}", "x": np.full(i, i, dtype=np.int32), "y": float(i)} for i in range(6)]
    return write_arrow(tmp_path / "store", rows, shard_bytes=50)


@pytest.fixture
def root(store, tmp_path):
    return tmp_path / "store"


def whole(store, number):
    return store.read(np.array([[number, 0, int(store.lengths[number])]]), ["x"])["x"][0]


def facts_of(root, **more):
    """The facts of any error about shard 1 of the store."""
    remedy = f"seqdata verify {root} --shard 1"
    return {
        "dataset": str(root), "shard": 1, "file": "part-00001.arrow", "remedy": remedy, **more
    }  # fmt: skip


def test_a_missing_shard_is_an_error_that_names_it(root):
    size = (root / "part-00001.arrow").stat().st_size
    (root / "part-00001.arrow").unlink()
    text = (
        rf"shard 1 \(\"part-00001.arrow\"\), bytes 0..{size}: is missing. Restore it"
        r", or write the store again\n  Verify: seqdata verify "
    )
    with pytest.raises(MissingShardError, match=text) as caught:
        open_arrow(root)
    assert caught.value.details == facts_of(root, offset=0, length=size)


def test_a_missing_lengths_file_is_an_error(root):
    (root / "lengths-time.u32").unlink()
    text = r"store lengths of axis \"time\" \(\"lengths-time.u32\"\), bytes 0..24: is missing"
    with pytest.raises(MissingShardError, match=text) as caught:
        open_arrow(root)
    assert caught.value.details == {
        "dataset": str(root), "file": "lengths-time.u32", "axis": "time", "offset": 0, "length": 24,
    }  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 100, -1])
def test_a_shard_of_another_size_is_an_error(root, size):
    path = root / "part-00001.arrow"
    full = path.stat().st_size
    os.truncate(path, size if size >= 0 else full + 8)
    found = path.stat().st_size
    low, high = sorted((found, full))
    text = (
        rf"shard 1 \(\"part-00001.arrow\"\), bytes {low}..{high}: must have {full} bytes, but "
        rf"has {found}. Restore it, or write the store again\n  Verify: "
    )
    with pytest.raises(CorruptShardError, match=text) as caught:
        open_arrow(root)
    assert caught.value.details == facts_of(
        root, offset=low, length=high - low, expected=full, found=found
    )


def test_a_shard_in_the_place_of_another_is_an_error(tmp_path):
    write_arrow(tmp_path, [[1], [2]], shard_bytes=1)
    content = (tmp_path / "part-00000.arrow").read_bytes()
    assert len(content) == (tmp_path / "part-00001.arrow").stat().st_size
    (tmp_path / "part-00001.arrow").write_bytes(content)
    text = r"shard 1 .* must have a footer with SHA-256 \w{16}…, but has one with \w{16}…: it is"
    with pytest.raises(CorruptShardError, match=text):
        open_arrow(tmp_path)


def test_a_lengths_file_of_another_size_is_an_error(root):
    os.truncate(root / "lengths-time.u32", 20)
    text = (
        r"lengths of axis \"time\" \(\"lengths-time.u32\"\), bytes 20..24: must have 24 "
        r"bytes, but have 20\. Restore them"
    )
    with pytest.raises(CorruptShardError, match=text) as caught:
        open_arrow(root)
    assert (caught.value.details["expected"], caught.value.details["found"]) == (24, 20)


def test_a_link_out_of_the_folder_is_an_error(root, tmp_path):
    outside = tmp_path / "outside.arrow"
    (root / "part-00001.arrow").rename(outside)
    (root / "part-00001.arrow").symlink_to(outside)
    with pytest.raises(
        DataError, match=r"must stay inside the folder, but is a link out of it. Put"
    ):
        open_arrow(root)


def test_a_link_inside_of_the_folder_is_followed(root):
    (root / "part-00001.arrow").rename(root / "kept")
    (root / "part-00001.arrow").symlink_to("kept")
    assert whole(open_arrow(root), 3).tolist() == [3] * 3
    (root / "kept").unlink()
    with pytest.raises(
        MissingShardError, match=r"must lead to a file, but is a link to nothing. Restor"
    ):
        open_arrow(root)


def test_a_link_to_a_socket_is_an_error_and_not_a_missing_file(root, monkeypatch):
    monkeypatch.chdir(root)  # the path of a socket must be short
    (root / "part-00001.arrow").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("kept")
        (root / "part-00001.arrow").symlink_to("kept")
        with pytest.raises(DataError, match=r"must be readable, but cannot be opened") as caught:
            open_arrow(root)
    assert not isinstance(caught.value, MissingShardError)


def test_a_pipe_in_the_place_of_a_shard_is_an_error_and_not_a_wait(root):
    (root / "part-00001.arrow").unlink()
    os.mkfifo(root / "part-00001.arrow")
    with pytest.raises(
        DataError, match=r"must be an ordinary file, but is not. Write the store again"
    ):
        open_arrow(root)


def test_a_folder_in_the_place_of_a_shard_is_an_error(root):
    (root / "part-00001.arrow").unlink()
    (root / "part-00001.arrow").mkdir()
    with pytest.raises(DataError, match="must be an ordinary file, but is not"):
        open_arrow(root)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
from seqdata.storage.arrow.store import open_arrow
from seqdata.errors import DataError
try:
    open_arrow(sys.argv[1])
except DataError as error:
    print(error)
"""


def test_too_few_descriptors_are_an_error_that_says_so(tmp_path):
    write_arrow(tmp_path, [[i] for i in range(40)], shard_bytes=1)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), "24"],
        capture_output=True, text=True, timeout=patient(), check=False,
        env={**os.environ, "SEQDATA_KERNEL": "numpy"},
    )  # fmt: skip
    assert re.search(
        r"Raise `ulimit -n` \(now 24\) to at least 25: \d+ descriptors are open, and 1 more is "
        r"needed",
        done.stdout,
    ), done


def test_no_memory_to_map_is_an_error_that_says_so(root):
    limited = LIMITED.replace("RLIMIT_NOFILE", "RLIMIT_AS")
    code = (
        limited.replace("open_arrow(sys.argv[1])", "open_limited(sys.argv[1])")
        .replace(
            "try:",
            "def open_limited(path):\n"
            "    open_arrow(path)  # imports what it needs\n"
            "    resource.setrlimit(resource.RLIMIT_AS, (1, -1))\n    open_arrow(path)\ntry:",
            1,
        )
        .replace("resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))", "")
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(root)],
        capture_output=True, text=True, timeout=patient(), check=False,
    )  # fmt: skip
    text = r"must be mapped .* \(Cannot allocate memory\)\. Raise `sysctl vm.max_map_count`"
    more = r" \(now \d+\), or `ulimit -v` \(now \d+\), or write the store again"
    assert re.search(text + more, done.stdout)


def place_of(store, number, name, buffer):
    """Return shard, and where one buffer of a field lies in it."""
    shard = store._reader.layout.find_shard(number)
    return shard, store.manifest.shards[shard].buffers[name][buffer][0]


def damage(root, store, number, name, value):
    """Overwrite the recorded end of a sequence."""
    shard, position = place_of(store, number, name, 1)
    first = store._reader.layout.shard_offsets[shard]
    with open(root / store.shards[shard], "r+b") as file:
        file.seek(position + 8 * (number - first + 1))
        file.write(np.int64(value).tobytes())


@pytest.mark.parametrize("kernel", ["c", "numpy"])
def test_a_damaged_offset_is_an_error_that_names_the_place(root, store, monkeypatch, kernel):
    if kernel == "c":
        pytest.importorskip("seqdata.kernel._fill")
    monkeypatch.setenv("SEQDATA_KERNEL", kernel)
    damage(root, store, 3, "x", 1 << 50)
    column = open_arrow(root).read(np.array([[4, 0, 4], [3, 0, 3]]), ["x"])["x"]
    _, begin = place_of(store, 3, "x", 0)
    text = (
        r"store shard 1 \(\"part-00001.arrow\"\), sequence 3 \(\"u3\"\), field \"x\", bytes "
        rf"{begin + 8}..{begin + 20}: must have 3 timesteps, but is at 2..\d+ of 5\. The shard "
        r"is damaged: restore it, or write the store again\n  Verify: "
    )
    facts = facts_of(
        root, sequence=3, key="u3", field="x", offset=begin + 8, length=12, expected=3,
        found=(1 << 50) - 2,
    )  # fmt: skip
    for read in (
        lambda: column.fill(np.empty(7, np.int32), np.array([0, 4, 7]), None),
        lambda: column[1],
    ):
        with pytest.raises(CorruptSampleError, match=text) as caught:
            read()
        assert caught.value.details == facts


def test_a_damaged_place_of_text_is_an_error_that_names_the_place(root, store):
    damage(root, store, 3, "id", -1)
    text = (
        r"sequence 3, field \"id\", bytes \d+..\d+: must be inside the shard's 4 bytes, "
        r"but is at 2..-1 of 4\. The shard is damaged"
    )
    with pytest.raises(CorruptSampleError, match=text) as caught:
        open_arrow(root).keys([3])
    assert caught.value.details["shard"] == 1
    assert "key" not in caught.value.details  # the id itself cannot be read


def test_text_that_is_no_text_is_an_error_that_names_the_place(root, store):
    shard, position = place_of(store, 3, "id", 0)
    with open(root / store.shards[shard], "r+b") as file:
        file.seek(position + 2)
        file.write(b"\xff\xff")
    text = (
        r"field \"id\", bytes \d+..\d+: must be UTF-8 text, but is not \(invalid start byte at "
        r"byte 0\)"
    )
    with pytest.raises(DecodeError, match=text) as caught:
        open_arrow(root, verify="off").keys([3])
    assert caught.value.details["offset"] == position + 2


def test_random_damage_of_a_shard_never_ends_the_process(root, store):
    """Any byte may change: what is read is data or a DataError."""
    random = np.random.default_rng(0)
    whole_spans = np.array([[i, 0, i] for i in range(6)])
    for _ in range(100):
        path = root / store.shards[random.integers(3)]
        good = path.read_bytes()
        bad = bytearray(good)
        for _ in range(4):
            bad[random.integers(len(bad))] = random.integers(256)
        path.write_bytes(bad)
        try:
            columns = open_arrow(root).read(whole_spans, ["x", "y", "id"])
            columns["x"].fill(np.empty(15, np.int32), np.cumsum([0, 0, 1, 2, 3, 4, 5]), None)
        except DataError:
            pass
        finally:
            path.write_bytes(good)
    assert whole(open_arrow(root), 5).tolist() == [5] * 5
