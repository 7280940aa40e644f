"""The same format in a bucket: fetched whole, or by ranges, which it knows nothing of."""

import pickle
from dataclasses import replace

import fsspec
import numpy as np
import pytest

from seqdata import Remote, open_store
from seqdata.errors import (
    ConfigError,
    DataError,
    FingerprintMismatch,
    MissingShardError,
    RemoteReadError,
)
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.shards import RemoteShard
from seqdata_testing.faults.network import Answer, folder_of, served, unavailable
from seqdata_testing.stores import check_store, digest_of
from tests.storage.indexed.records import (
    Documents,
    Records,
    sequences,
    write_documents,
    write_file,
    write_files,
)
from tests.storage.web_folder import listing_of

ROWS = sequences()
HOW = ["cache", "ranges"]


@pytest.fixture
def url(s3, bucket, tmp_path):
    folder = write_files(tmp_path / "data", ROWS, per_file=16)
    for path in folder.rglob("*.recs"):
        s3.put_file(str(path), f"{bucket}/data/{path.name}")
    return f"s3://{bucket}/data"


@pytest.mark.parametrize("how", HOW)
def test_a_store_is_what_it_is_locally(url, remote, how, tmp_path):
    store = open_store(url, backend=Records(), remote=remote(how=how))
    check_store(store, ROWS)
    local = open_store(tmp_path / "data", backend=Records())
    assert digest_of(store) == digest_of(local)
    assert pickle.loads(pickle.dumps(store)).fingerprint == store.fingerprint


def test_the_index_is_kept_next_to_the_files_and_opens_without_them(url, remote, s3):
    open_store(url, backend=Records(), remote=remote())
    names = sorted(name.rpartition("/")[2] for name in s3.ls(f"{url}/seqdata-index"))
    assert names == ["index.idx"]
    store = open_store(url, backend=Records(), remote=remote(how="ranges"))
    column = store.read(np.array([[5, 100, 200]]), ["frames"])["frames"]
    assert np.array_equal(column[0], ROWS[5]["frames"][100:200])


@pytest.mark.parametrize("how", HOW)
def test_a_url_of_one_file_a_glob_and_a_folder_of_a_claimed_suffix_are_locations(
    url, remote, how, claimed
):
    assert len(open_store(f"{url}/part-0.recs", remote=remote(how=how))) == 16
    assert len(open_store(f"{url}/part-[12].recs", backend=Records(), remote=remote(how=how))) == 24
    check_store(open_store(url, remote=remote(how=how)), ROWS)


@pytest.mark.parametrize("how", HOW)
def test_a_bit_that_is_wrong_at_the_source_is_named(url, remote, s3, how, tmp_path):
    first = open_store(url, backend=Records(), remote=remote(how="ranges"))
    begin = int(first.manifest[0].members["frames"].begins[3])
    with s3.open(f"{url}/part-0.recs", "rb") as file:
        raw = bytearray(file.read())
    raw[begin] ^= 1
    s3.pipe_file(f"{url}/part-0.recs", bytes(raw))
    store = open_store(url, backend=Records(), remote=remote(how=how, cache_dir=tmp_path / "other"))
    spans = np.array([[3, 0, len(ROWS[3]["frames"])]])
    text = r'shard 0 \("part-0.recs"\), sequence 3 .*field "frames"|part-0.recs.*sha256'
    with pytest.raises(DataError, match=text):
        store.read(spans, ["frames"])["frames"][0]


def test_a_file_that_was_replaced_is_noticed(url, remote, s3, tmp_path):
    store = open_store(url, backend=Records(), remote=remote(how="ranges"))
    other = write_file(tmp_path / "x.recs", sequences(16, seed=3))
    size = s3.info(f"{url}/part-0.recs")["size"]
    content = other.read_bytes()[:size].ljust(size, b"\0")
    s3.pipe_file(f"{url}/part-0.recs", content)
    with pytest.raises(FingerprintMismatch):
        store.read(np.array([[0, 0, 1]]), ["frames"])


NAMES = ("50%.recs", "a%20b.recs", "a+b.recs", "müller 1.recs", "x#1&2?.recs", "z.recs")


@pytest.mark.parametrize("how", HOW)
def test_files_of_any_name_have_the_ids_of_the_folder_behind_a_web_server(
    tmp_path, monkeypatch, how
):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "index"))
    folder = tmp_path / "data"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        write_file(folder / name, ROWS[number : number + 1])
    remote = Remote(cache_dir=tmp_path / "cache", how=how)
    with served(listing_of(folder)) as web:
        store = open_store(web.url, backend=Records(), remote=remote)
        check_store(store, ROWS[: len(NAMES)])
        assert list(store.shards) == sorted(NAMES)
        one = open_store(f"{web.url}/m%C3%BCller%201.recs", backend=Records(), remote=remote)
        assert list(one.shards) == ["müller 1.recs"]
        assert store.fingerprint == open_store(folder, backend=Records()).fingerprint


def test_a_sibling_behind_a_web_server_may_have_any_name(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "index"))
    path = write_documents(tmp_path / "data" / "50% ö.tok", 10, 100)
    with served(listing_of(path.parent)) as web:
        store = open_store(web.url, backend=Documents(), remote=Remote(cache_dir=tmp_path / "c"))
        assert store.lengths.tolist() == [10, 90]


@pytest.mark.parametrize("name", ["..%2Fx.recs", "a%2Fx.recs", "a%5Cx.recs", "a%0Ax.recs"])
def test_a_name_behind_a_web_server_that_leads_elsewhere_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "index"))

    def answer(asked):
        page = f'<a href="{name}">it</a>'.encode()
        listed = asked.path.partition("?")[0] == "/"
        return Answer(200, (("Content-Type", "text/html"),), page) if listed else Answer(404)

    remote = Remote(cache_dir=tmp_path / "cache", retry_seconds=0.1)
    with served(answer) as web:
        for url in (web.url, f"{web.url}/{name}"):
            with pytest.raises(DataError, match="must have the name of a file in its folder"):
                open_store(url, backend=Records(), remote=remote)


@pytest.mark.parametrize("name", ["recs/a.recs", "a.recs"])
def test_files_in_memory_of_fsspec_too(tmp_path, name):
    system = fsspec.filesystem("memory")
    path = write_file(tmp_path / "a.recs", ROWS[:3])
    system.pipe_file(name, path.read_bytes())
    check_store(open_store(f"memory://{name}", backend=Records()), ROWS[:3])
    system.rm(name.partition("/")[0], recursive=True)


def test_a_folder_that_is_not_there_is_told_as_missing_and_a_glob_of_none_too(tmp_path):
    with pytest.raises(MissingShardError, match="is not there: no file or folder has this name"):
        open_store("memory://no-such-folder", backend=Records())
    system = fsspec.filesystem("memory")
    system.pipe_file("some-folder/note.txt", b"x")
    with pytest.raises(ConfigError, match=r"must match at least one file .*, but matches none"):
        open_store("memory://some-folder/a*.recs", backend=Records())
    system.rm("some-folder", recursive=True)


def test_a_sibling_that_is_not_there_is_refused_to_who_may_not_list(tmp_path, monkeypatch):
    """A bucket answers 403 for it, as for what may not be read."""
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "index"))
    path = write_documents(tmp_path / "data" / "a.tok", 10, 100)
    inner = folder_of(path.parent)

    def refuse_what_is_not_there(request):
        answer = inner(request)
        return Answer(403, (), b"no") if answer.status == 404 else answer

    remote = Remote(cache_dir=tmp_path / "cache")
    place = DataLocation(dataset="d", file="a.ends")
    with served(refuse_what_is_not_there) as web:
        shard = RemoteShard(web.url, "a.tok", remote)
        due = path.with_suffix(".ends").read_bytes()
        assert shard.read_sibling("a.ends", place).tobytes() == due
        path.with_suffix(".ends").unlink()
        with pytest.raises(MissingShardError, match=r'"a.ends".*: is not there, or is refused'):
            shard.read_sibling("a.ends", place)
        store = open_store(f"{web.url}/a.tok", backend=Documents(), remote=remote)
        assert store.lengths.tolist() == [100]  # as without one
        web.fault = unavailable()
        impatient = RemoteShard(web.url, "a.tok", replace(remote, retry_seconds=0.1))
        with pytest.raises(RemoteReadError, match="could not be read"):
            impatient.read_sibling("a.ends", place)
