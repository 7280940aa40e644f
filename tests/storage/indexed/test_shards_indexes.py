"""Index files: next to the data where that can be written, otherwise in the user's cache."""

import os
from pathlib import Path

import pytest

from seqdata.errors import ConfigError, CorruptShardError
from seqdata.storage.indexed import shards
from seqdata.storage.indexed.shards import (
    INDEX_FOLDER,
    cache_folder,
    find_index,
    index_files,
    list_indexes,
    put_file,
    read_index,
    write_index,
)
from tests.storage.indexed.samples import make_index


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path, cache):
    path = tmp_path / "data" / "more" / "a.recs"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_the_cache_is_a_folder_of_the_user(cache, monkeypatch):
    assert cache_folder() == cache
    monkeypatch.setenv("SEQDATA_CACHE", "")
    assert cache_folder() == Path.home() / ".cache" / "seqdata"


def test_names_count_from_the_folder_of_the_data_set(file, cache):
    root = file.parent.parent
    near, cached = index_files(file, root)
    assert near == root / INDEX_FOLDER / "more" / "a.recs.idx"
    assert cached.is_relative_to(cache / "index")
    assert index_files(file)[0] == file.parent / INDEX_FOLDER / "a.recs.idx"
    assert index_files(root / "b" / "a.recs", root)[1] != cached
    assert index_files(file)[1].parent != cached.parent.parent  # of another folder of data


def test_an_index_is_written_next_to_its_file(file):
    assert find_index(file) is None
    path = write_index(file, make_index())
    assert path == find_index(file) == file.parent / INDEX_FOLDER / "a.recs.idx"
    assert read_index("/d", 0, path).shard == "a.recs"


def test_it_is_written_to_the_cache_where_the_folder_cannot_be_written(file, cache):
    (file.parent / INDEX_FOLDER).touch()  # a file where the folder has to be
    path = write_index(file, make_index())
    assert path == find_index(file)
    assert path.is_relative_to(cache)


@pytest.mark.parametrize("hours_ahead", [-1, 0, 1])
def test_the_index_that_was_written_last_counts_whatever_clocks_say(file, monkeypatch, hours_ahead):
    near, cached = index_files(file)

    def refuse(path, content):
        if path == near:
            raise PermissionError
        return put_file(path, content)

    for is_refused, due in ((False, near), (True, cached), (False, near), (True, cached)):
        with monkeypatch.context() as patch:
            if is_refused:
                patch.setattr(shards, "put_file", refuse)
            assert write_index(file, make_index()) == find_index(file) == due
        now = due.stat().st_mtime_ns + hours_ahead * 3600 * 10**9  # of another machine's clock
        os.utime(due, ns=(now, now))
    assert set(list_indexes(file)) == {near, cached}


def test_neither_can_be_written(file, cache):
    (file.parent / INDEX_FOLDER).touch()
    cache.touch()
    with pytest.raises(ConfigError, match=r"a\.recs: its index must be written to .* but neither"):
        write_index(file, make_index())


def test_a_damaged_index_is_named_by_its_file_and_shard(file):
    path = put_file(index_files(file)[0], b"nonsense")
    with pytest.raises(CorruptShardError, match=r'index of shard 3 \("a\.recs\.idx"\): must be a'):
        read_index("/d", 3, path)


def test_a_file_is_replaced_as_a_whole_and_nothing_else_remains(tmp_path):
    path = tmp_path / "a" / "b.idx"
    for content in (b"first", b"second"):
        assert put_file(path, content).read_bytes() == content
    assert list(path.parent.iterdir()) == [path]
    path.with_name("folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        put_file(path.with_name("folder"), b"x")
    assert sorted(each.name for each in path.parent.iterdir()) == ["b.idx", "folder"]
