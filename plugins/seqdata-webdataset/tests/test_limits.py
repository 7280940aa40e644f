"""Sizes that files and servers claim: refused before anything is read for them."""

import os

import pytest
from seqdata_webdataset import open_webdataset

from seqdata import Remote
from seqdata.errors import LimitError
from seqdata.testing.faults.network import Answer, folder_of, served

CLAIMED = 2 << 30


@pytest.mark.parametrize("name", ["shards.json", "x-001.tar.idx"])
def test_a_list_or_index_that_claims_to_be_very_large_is_not_read(shards, tmp_path, name):
    folder = folder_of(shards[0])

    def answer(asked):
        if not asked.path.endswith(name):
            return folder(asked)
        return Answer(200, (("ETag", '"x"'),), b"", CLAIMED if asked.method == "HEAD" else None)

    with served(answer) as made:
        url = f"{made.url}/x-{{000..002}}.tar"
        text = rf"{name}.*: has {CLAIMED} bytes, must have at most {1 << 30}; where you trust"
        with pytest.raises(LimitError, match=text):
            open_webdataset(url, remote=Remote(cache_dir=tmp_path / "shards"))
        assert [method for method, path in made.asked if path.endswith(name)] == ["HEAD"]


@pytest.mark.parametrize("name", ["shards.json", "x-001.tar.idx"])
def test_so_is_a_local_one(shards, tmp_path, name):
    for path in shards[0].glob("x-*.tar"):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "seqdata-index").mkdir()
    path = tmp_path / "seqdata-index" / name
    path.touch()
    os.truncate(path, CLAIMED)  # sparse
    with pytest.raises(LimitError, match=rf"{name}.*: has {CLAIMED} bytes, must have at most"):
        open_webdataset(tmp_path)
