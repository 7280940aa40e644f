"""A copy whose bytes changed at the same size is not believed by the next opening."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqdata import Remote, open_store
from seqdata.storage.remote import copy_digests
from seqdata.storage.remote.cache_folder import list_entries, prepare_folder
from seqdata.storage.remote.copy_digests import name_digest
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.transport import make_remote_files
from seqdata_testing.faults.network import folder_of, served

ROWS = 50


@pytest.fixture
def web(tmp_path):
    (tmp_path / "data").mkdir()
    lines = [f"a,{row},{1000 + row}\n" for row in range(ROWS)]
    (tmp_path / "data" / "x.csv").write_text("g,t,v\n" + "".join(lines))
    pq.write_table(
        pa.table({"v": [[1000 + row] * 3 for row in range(ROWS)]}),
        tmp_path / "data" / "x.parquet", compression="none", use_dictionary=False,
    )  # fmt: skip
    with served(folder_of(tmp_path / "data")) as server:
        yield server


@pytest.fixture
def remote(tmp_path):
    return Remote(cache_dir=tmp_path / "cache")


def read(web, remote, name):
    by = {"group": "g", "order": "t"} if name == "x.csv" else {}
    store = open_store(f"{web.url}/{name}", remote=remote, **by)
    return int(store[0]["v"][7] if by else store[7]["v"][0])


def copies(remote):
    return [path for path in remote.folder.iterdir() if path.name.startswith("u")]


def change(remote):
    """Write another value of the same size into the copy, as a user or a bad disk would."""
    (path,) = copies(remote)
    content = path.read_bytes()
    for old, new in ((b"1007", b"9999"), ((1007).to_bytes(8, "little"), bytes(8))):
        content = content.replace(old, new)
    with open(path, "r+b") as file:  # where it lies: copies of tables share its bytes
        file.write(content)


def start_process():
    """Forget what was checked, as a new process does."""
    copy_digests._checked.clear()


def gets(web):
    found = [path for method, path in web.requests if method == "GET"]
    web.requests.clear()
    return found


@pytest.mark.parametrize("is_same_process", [False, True])
@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_a_changed_copy_is_dropped_and_downloaded_again(web, remote, name, is_same_process, caplog):
    assert read(web, remote, name) == 1007
    gets(web)
    start_process()
    assert read(web, remote, name) == 1007
    assert not gets(web)  # an intact copy is believed
    change(remote)
    if not is_same_process:
        start_process()
    assert read(web, remote, name) == 1007
    assert gets(web) == [f"/{name}"]
    assert any("is damaged and was dropped" in line for line in caplog.messages)
    start_process()
    assert read(web, remote, name) == 1007
    assert not gets(web)


def test_a_copy_is_read_for_its_digest_once_per_process(web, remote, monkeypatch):
    cache = make_cache(make_remote_files(web.url, remote))
    cache.acquire(CacheRequest("x.csv"))
    computed, compute = [], copy_digests.digest_file
    monkeypatch.setattr(
        copy_digests, "digest_file", lambda *file: computed.append(file) or compute(*file)
    )
    cache.acquire(CacheRequest("x.csv"))
    assert not computed  # the process that downloaded it knows it
    start_process()
    for _ in range(3):
        cache.acquire(CacheRequest("x.csv"))
    assert len(computed) == 1


@pytest.mark.parametrize("record", [None, b"", b"0" * 64, bytes(64)])
def test_a_copy_without_a_valid_record_is_downloaded_again(web, remote, record):
    cache = make_cache(make_remote_files(web.url, remote))
    path = cache.acquire(CacheRequest("x.csv")).path
    expected = path.read_bytes()
    gets(web)
    name_digest(path).unlink()
    if record is not None:
        name_digest(path).write_bytes(record)
    start_process()
    assert bytes(memoryview(cache.acquire(CacheRequest("x.csv")).mapping)) == expected
    assert gets(web) == ["/x.csv"]


def test_records_go_with_their_files_and_do_not_count(web, remote, tmp_path):
    size = os.path.getsize(tmp_path / "data" / "x.csv")
    small = Remote(cache_dir=remote.cache_dir, cache_bytes=size + 2)
    cache = make_cache(make_remote_files(web.url, small))
    cache.acquire(CacheRequest("x.csv"))
    assert [entry.size for entry in list_entries(remote.folder)] == [size]
    (tmp_path / "data" / "y.csv").write_bytes(b"y" * size)
    cache.acquire(CacheRequest("y.csv"))
    names = {path.name for path in remote.folder.iterdir()}
    assert len([name for name in names if name.endswith(".sha256")]) == len(copies(remote)) == 1
    os.unlink(remote.folder / "CACHEDIR.TAG")
    prepare_folder(remote.folder)  # the folder is still the cache's
