"""Local files of a dataset: mapped or read, and errors that name the place and the remedy."""

import os
from pathlib import Path

import numpy as np
import pytest

from seqdata.errors import DataError, LimitError, MissingShardError
from seqdata.storage import local_files
from seqdata.storage.data_location import DataLocation
from seqdata.storage.local_files import (
    check_exists,
    check_small,
    join_names,
    list_folder,
    map_shard,
    open_file,
    read_or_map,
    read_small_file,
)

PLACE = DataLocation(dataset="/d", shard=2, file="a.recs")
READERS = [map_shard, read_or_map]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("content", [b"", b"x", b"0123456789" * 1000])
def test_the_bytes_of_a_file_are_read(read, content, tmp_path):
    path = tmp_path / "a.recs"
    path.write_bytes(content)
    found = read(path, PLACE)
    assert found.dtype == np.uint8
    assert found.tobytes() == content
    assert not found.flags.writeable


def test_a_small_file_is_read_and_a_large_one_is_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(local_files, "_SMALL", 8)
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"12345678")
    large.write_bytes(b"123456789")
    arrays = [read_or_map(path, PLACE) for path in (small, large)]
    for path in (small, large):
        with path.open("r+b") as opened:
            opened.write(b"X")
    assert [array[:1].tobytes() for array in arrays] == [b"1", b"X"]


@pytest.mark.parametrize("read", READERS)
def test_a_file_that_is_not_there_is_named(read, tmp_path):
    with pytest.raises(MissingShardError, match=r'/d shard 2 \("a.recs"\): is not there. Restore'):
        read(tmp_path / "a.recs", PLACE)


@pytest.mark.parametrize("read", READERS)
def test_only_ordinary_files_are_read(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # nobody writes: opening must not wait
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(DataError, match="must be an ordinary file, but is not"):
            read(path, PLACE)


@pytest.mark.parametrize("read", [*READERS, read_small_file])
def test_a_file_that_cannot_be_opened_is_named_with_the_reason(read, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(
        DataError, match=r"must be readable, but cannot be opened .* Check the path"
    ):
        read(loop, PLACE)


@pytest.mark.skipif(not os.path.exists("/sys/kernel/uevent_seqnum"), reason="needs Linux' /sys")
def test_a_file_of_a_system_that_maps_none_is_not_told_as_a_limit():
    with pytest.raises(DataError, match=r"mapped into memory, but cannot be .* to a disk that"):
        map_shard(Path("/sys/kernel/uevent_seqnum"), PLACE)


def test_the_descriptor_is_closed_after_an_error(tmp_path):
    (tmp_path / "a").write_bytes(b"12")

    def fail():
        with open_file(tmp_path / "a", PLACE) as (descriptor, size):
            assert size == 2
            opened.append(descriptor)
            raise KeyError

    opened = []
    with pytest.raises(KeyError):
        fail()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_small_files_have_a_bound(tmp_path):
    (tmp_path / "a.idx").write_bytes(b"12")
    assert read_small_file(tmp_path / "a.idx", PLACE) == b"12"
    check_small(local_files.MAX_SMALL, PLACE)
    with pytest.raises(LimitError, match=rf"has {local_files.MAX_SMALL + 1} bytes"):
        check_small(local_files.MAX_SMALL + 1, PLACE)
    with (tmp_path / "huge.idx").open("wb") as opened:
        opened.truncate(local_files.MAX_SMALL + 1)  # without any block on the disk
    with pytest.raises(LimitError, match="at most"):
        read_small_file(tmp_path / "huge.idx", PLACE)


def test_names_in_a_folder_are_sorted(tmp_path):
    for name in ("b", "a", ".c"):
        (tmp_path / name).touch()
    assert list_folder(tmp_path) == [".c", "a", "b"]
    with pytest.raises(DataError, match="must be readable, but cannot be opened"):
        list_folder(tmp_path / "a")


def test_a_file_is_looked_for(tmp_path):
    check_exists(tmp_path, PLACE)
    with pytest.raises(MissingShardError, match="is not there"):
        check_exists(tmp_path / "a", PLACE)


def test_names_are_joined_for_messages():
    assert join_names((".a",)) == "'.a'"
    assert join_names((".a", ".b")) == "'.a' or '.b'"
