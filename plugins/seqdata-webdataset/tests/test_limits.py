"""Sizes that files and servers claim: refused before anything is read for them."""

import os

import pytest
from seqdata_webdataset import open_webdataset

from seqdata import Remote
from seqdata.errors import ConfigError, LimitError, MissingShardError
from seqdata.storage import local_files
from seqdata_testing.faults.network import Answer, folder_of, served

CLAIMED = 2 << 30


@pytest.mark.parametrize("name", ["shards.json", "index.idx"])
def test_a_list_or_index_that_claims_to_be_very_large_is_not_read(shards, tmp_path, name):
    folder = folder_of(shards[0])

    def answer(asked):
        if not asked.path.endswith(name):
            return folder(asked)
        return Answer(200, (("ETag", '"x"'),), b"", CLAIMED if asked.method == "HEAD" else None)

    with served(answer) as made:
        url = f"{made.url}/x-{{000..002}}.tar"
        text = rf"{name}.*: must have at most {1 << 30}, but has {CLAIMED} bytes. If you trust"
        with pytest.raises(LimitError, match=text):
            open_webdataset(url, remote=Remote(cache_dir=tmp_path / "shards"))
        assert [method for method, path in made.requests if path.endswith(name)] == ["HEAD"]


@pytest.mark.parametrize("name", ["shards.json", "index.idx"])
def test_so_is_a_local_one(shards, tmp_path, name):
    for path in shards[0].glob("x-*.tar"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "seqdata-index").mkdir()
    path = tmp_path / "seqdata-index" / name
    path.touch()
    os.truncate(path, CLAIMED)  # sparse
    with pytest.raises(
        LimitError, match=rf"{name}.*: must have at most .*, but has {CLAIMED} bytes"
    ):
        open_webdataset(tmp_path)


def test_of_a_million_names_the_first_that_is_not_there_is_told_at_once(
    shards, tmp_path, monkeypatch
):
    looked = []

    def look(path, place):
        looked.append(path.name)
        local_files.check_exists(path, place)

    monkeypatch.setattr("seqdata.storage.indexed.shards.check_exists", look)
    for path in shards[0].glob("x-00[01].tar"):
        (tmp_path / f"x-{path.stem[-1]}.tar").symlink_to(path)
    with pytest.raises(MissingShardError, match=r'shard 2 \("x-2\.tar"\).*: is not there'):
        open_webdataset(tmp_path / "x-{0..999999}.tar")
    assert looked == ["x-0.tar", "x-1.tar", "x-2.tar"]


def test_of_a_million_urls_the_first_is_looked_for_before_the_others(tmp_path):
    with served(lambda _: Answer(404)) as made:
        with pytest.raises(MissingShardError, match=r'shard 0 \("x-0\.tar"\).*: is not there'):
            open_webdataset(f"{made.url}/x-{{0..999999}}.tar", remote=Remote(cache_dir=tmp_path))
        assert {path for _, path in made.requests} == {"/x-0.tar"}


def test_urls_that_are_not_there_end_the_search_for_indexes(shards, tmp_path):
    folder = folder_of(shards[0])
    with served(folder) as made:
        url = f"{made.url}/x-{{000..002}}.tar::{made.url}/y-{{0..2000}}.tar"
        with pytest.raises(
            MissingShardError, match=r'"y-0\.tar"\).*: is not there\. Check the URL, or restore it'
        ):
            open_webdataset(url, remote=Remote(cache_dir=tmp_path))
        asked = [path for _, path in made.requests if "seqdata-index" in path]
        assert len(asked) == len(set(asked)) < 10


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz"])
def test_a_packed_file_behind_a_url_is_told_as_such(name):
    with pytest.raises(
        ConfigError, match=rf"{name}: must be a plain tar file, .* but is compressed"
    ):
        open_webdataset(f"http://127.0.0.1:9/{name}?key=1")
