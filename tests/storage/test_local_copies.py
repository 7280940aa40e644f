"""Copies of remote files: fetched once, found by the rules of a disk, kept while they are read."""

import gc
import os
import resource
import shutil
import threading
from collections import Counter
from dataclasses import replace

import pytest

import tests.s3
from seqdata import CacheError, ConfigError, DataError, MissingShardError, Remote
from seqdata.errors import FingerprintMismatch, UnsafeContentError
from seqdata.storage import local_copies
from seqdata.storage.find_files import find_files
from seqdata.storage.local_copies import fetch_copies, list_files
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.remote_files import FileStat
from seqdata.storage.remote.transport import FsspecFiles, make_remote_files
from seqdata_testing.faults.network import folder_of, served

remote, url = tests.s3.remote, tests.s3.url

pytestmark = pytest.mark.slow
FILES = {
    "a.txt": b"a" * 100,
    "b.txt": b"b" * 200,
    "notes.md": b"notes",
    "day=1/part.10.txt": b"ten",
    "day=1/part.2.txt": b"two",
    "day=2/part.1.txt": b"one",
    "day=2/empty.txt": b"",
}


@pytest.fixture
def folder(tmp_path):
    for name, content in FILES.items():
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(content)
    return tmp_path / "data"


def texts(path):
    found = find_files(path, lambda name: name.endswith(".txt"))
    return [found.root / name for name in found.names]


def read(path):
    """Names and contents of the files that a local reader finds, in its order."""
    found = find_files(path, lambda name: name.endswith(".txt"))
    return [(name, (found.root / name).read_bytes()) for name in found.names]


@pytest.mark.parametrize(
    "place",
    ["", "/", "/a.txt", "/day=1", "/day=1/", "/day=*", "/day=*/part.?.txt", "/**/part.*",
     "/day={2,1}", "/{b,a}.txt"],
)  # fmt: skip
def test_each_location_means_what_it_means_on_a_disk(place, url, folder, remote, server):
    copies = fetch_copies(f"{url}{place}", remote, texts)
    assert read(copies.path) == read(f"{folder}{place}")
    fetched = server.list_read()
    named = {name for name, _ in read(f"{folder}{place}")}
    wanted = [name for name in FILES if any(name.endswith(each) for each in named)]
    assert fetched == sorted(name for name in wanted if FILES[name])  # nothing of an empty one
    again = fetch_copies(f"{url}{place}", remote, texts)
    assert read(again.path) == read(copies.path)
    assert again.versions == copies.versions
    assert not server.list_read()


def test_a_listing_is_believed_so_that_a_later_opening_asks_for_no_file(url, remote, server):
    server.requests.clear()
    copies = fetch_copies(url, remote, texts)
    first = Counter(request.split()[0] for request in server.requests if "." in request)
    assert first == {"GET": 5, "HEAD": 1 + 6}  # one tells whose tags these are; each once fetched
    server.requests.clear()
    again = fetch_copies(url, remote, texts)
    assert [request for request in server.requests if "." in request] == []
    assert again.versions == copies.versions
    assert read(again.path) == read(copies.path)


def test_tags_that_only_the_listing_has_are_not_believed(url, remote, server, monkeypatch):
    walk = FsspecFiles.walk

    def walk_otherwise(files):
        return {
            path: replace(file, stat=FileStat(file.stat.size, "of a listing"))
            for path, file in walk(files).items()
        }

    monkeypatch.setattr(FsspecFiles, "walk", walk_otherwise)
    before = fetch_copies(url, remote, texts)
    server.list_read()
    assert read(fetch_copies(url, remote, texts).path) == read(before.path)
    assert not server.list_read()
    server.filesystem.pipe_file(f"{url}/b.txt", b"B" * 200)
    after = fetch_copies(url, remote, texts)
    assert dict(read(after.path))["b.txt"] == b"B" * 200


@pytest.mark.parametrize("name", ["a#b.txt", "a?b.txt", "a[1].txt", "a::b.txt"])
def test_a_key_in_a_bucket_may_have_any_sign(name, url, remote, server):
    server.filesystem.call_s3(
        "put_object", Bucket=url.partition("://")[2], Key=f"odd/{name}", Body=b"odd"
    )
    server.filesystem.pipe_file(f"{url}/odd/axb.txt", b"another")
    found = read(fetch_copies(f"{url}/odd", remote, texts).path)
    assert (name, b"odd") in found
    assert len(found) == 2
    if "::" not in name:
        assert read(fetch_copies(f"{url}/odd/{name}", remote, texts).path) == [(name, b"odd")]
    if name == "a?b.txt":
        server.filesystem.rm_file(f"{url}/odd/{name}")
        found = read(fetch_copies(f"{url}/odd/{name}", remote, texts).path)
        assert found == [("axb.txt", b"another")]  # now it is a glob


def test_a_scheme_in_capitals_is_the_same(url, folder, remote):
    copies = fetch_copies(url.replace("s3://", "S3://"), remote, texts)
    assert read(copies.path) == read(folder)


def test_the_limit_on_the_size_of_files_is_no_full_disk(url, remote, server, tmp_path):
    server.filesystem.pipe_file(f"{url}/large.txt", bytes(1 << 21))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(CacheError, match=r"`ulimit -f` allows \(now 1048576 bytes\)\. Raise"):
            fetch_copies(f"{url}/large.txt", remote, texts)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert fetch_copies(f"{url}/large.txt", remote, texts)


def test_several_locations_are_one(url, folder, remote):
    copies = fetch_copies(f"{url}/day=2::{url}/a.txt", remote, texts)
    assert read(copies.path) == read(f"{folder}/day=2::{folder}/a.txt")


def test_what_is_chosen_is_known_before_anything_is_fetched(url, remote, server):
    assert list_files(f"{url}/day=1", remote, texts) == [
        f"{url.partition('://')[2]}/day=1/part.{number}.txt" for number in (2, 10)
    ]
    assert not server.list_read()
    assert not list(remote.copies.rglob("*.txt"))


def test_only_what_changed_is_fetched_again(url, remote, server):
    before = fetch_copies(url, remote, texts)
    server.list_read()
    server.filesystem.pipe_file(f"{url}/b.txt", b"B" * 200)  # of the same size
    after = fetch_copies(url, remote, texts)
    assert server.list_read() == ["b.txt"]
    assert dict(read(after.path)) == {**dict(read(before.path)), "b.txt": b"B" * 200}
    assert dict(read(before.path))["b.txt"] == FILES["b.txt"]  # it is still being read
    changed = [
        path.name for path, version in after.versions.items()
        if version not in before.versions.values()
    ]  # fmt: skip
    assert changed == ["b.txt"]
    old = before.root
    del before
    gc.collect()
    fetch_copies(url, remote, texts)
    assert not old.exists()  # nobody reads it


@pytest.mark.parametrize("place", ["/gone.txt", "/{a,gone}.txt", "/gone", "-gone"])
def test_what_is_not_there_is_named(place, url, remote):
    with pytest.raises(MissingShardError, match=r"gone.*is not there"):
        fetch_copies(f"{url}{place}", remote, texts)


def test_an_object_that_vanishes_while_files_are_fetched_is_named(url, remote, server):
    def choose(path):
        server.filesystem.rm_file(f"{url}/day=1/part.2.txt")
        return texts(path)

    with pytest.raises(MissingShardError, match=r'part\.2\.txt"\).*: is not there') as caught:
        fetch_copies(url, remote, choose)
    assert caught.value.details["file"] == "day=1/part.2.txt"


def test_an_object_that_is_replaced_while_files_are_fetched_is_named(
    url, remote, server, monkeypatch
):
    def replace_it(skeleton, *arguments):
        server.filesystem.pipe_file(f"{url}/a.txt", b"A" * 100)
        return fetch(skeleton, *arguments)

    fetch = local_copies._fetch
    monkeypatch.setattr(local_copies, "_fetch", replace_it)
    with pytest.raises((FingerprintMismatch, DataError), match=r'"a\.txt"'):
        fetch_copies(f"{url}/a.txt", remote, texts)


def test_a_cache_without_room_names_the_file_its_size_and_what_to_do(url, server, tmp_path):
    small = server.remote(tmp_path / "small", cache_bytes=250, stall_seconds=0.2)
    text = (
        r'"b\.txt"\): has 200 bytes, and the cache must have room for all 6 '
        r"files at once, 309 bytes, but holds 250: .*seqdata-shards\. "
        r"Raise Remote\(cache_bytes=\.\.\.\), pass"
    )
    with pytest.raises(CacheError, match=text) as caught:
        fetch_copies(url, small, texts)
    assert caught.value.details["file"] == "b.txt"
    assert not server.list_read()
    held = make_cache(make_remote_files(url, small)).acquire(CacheRequest("a.txt"))
    with pytest.raises(CacheError, match=r'"b\.txt"\): has 200 bytes.*only 150 bytes free: the re'):
        fetch_copies(f"{url}/b.txt", small, texts)
    del held
    assert read(fetch_copies(f"{url}/b.txt", small, texts).path) == [("b.txt", FILES["b.txt"])]


def test_copies_make_room_when_nobody_reads_them(url, server, tmp_path):
    small = server.remote(tmp_path / "small", cache_bytes=250, stall_seconds=0.2)
    first = fetch_copies(f"{url}/b.txt", small, texts)
    with pytest.raises(CacheError, match="only 50 bytes free"):
        fetch_copies(f"{url}/a.txt", small, texts)
    assert read(first.path) == [("b.txt", FILES["b.txt"])]
    root = first.root
    del first
    gc.collect()
    fetch_copies(f"{url}/a.txt", small, texts)
    assert not root.exists()
    sizes = [path.stat().st_size for path in small.folder.glob("u*")]
    assert sizes == [100]


@pytest.mark.parametrize("damage", ["truncated", "removed", "cache removed", "all removed"])
def test_copies_that_were_damaged_are_fetched_again(damage, url, remote, server):
    copies = fetch_copies(url, remote, texts)
    expected, path = read(copies.path), copies.root / url.partition("://")[2] / "a.txt"
    server.list_read()
    if damage == "truncated":
        os.truncate(path, 3)
    elif damage == "removed":
        path.unlink()
    else:
        shutil.rmtree(remote.folder)
        if damage == "all removed":
            shutil.rmtree(remote.copies)
    assert read(fetch_copies(url, remote, texts).path) == expected
    due = {"truncated": ["a.txt"], "removed": [], "cache removed": []}
    assert server.list_read() == due.get(
        damage, sorted(name for name in FILES if FILES[name] and name.endswith("txt"))
    )


def test_threads_that_open_at_once_fetch_each_file_once(url, remote, server):
    found = [None] * 4

    def work(number):
        found[number] = fetch_copies(url, remote, texts)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({copies.root for copies in found}) == 1
    assert server.list_read() == sorted(
        name for name in FILES if name.endswith(".txt") and FILES[name]
    )
    assert not list(remote.copies.glob("*/.new-*"))


def test_objects_that_stand_for_folders_are_no_files(url, folder, remote, server):
    for name in ("/", "/day=1/"):
        server.filesystem.call_s3(
            "put_object", Bucket=url.partition("://")[2], Key=f"x{name}", Body=b""
        )
    server.filesystem.pipe_file(f"{url}/x/day=1/c.txt", b"c")
    copies = fetch_copies(f"{url}/x", remote, texts)
    assert read(copies.path) == [("day=1/c.txt", b"c")]


def test_an_object_with_the_name_of_a_folder_is_refused(url, remote, server):
    server.filesystem.call_s3(
        "put_object", Bucket=url.partition("://")[2], Key="day=1", Body=b"no folder"
    )
    with pytest.raises(DataError, match=r"must not have the name of a folder, but does"):
        fetch_copies(url, remote, texts)


def test_errors_of_local_readers_name_urls(url, remote):
    def choose(path):
        raise ConfigError(f"{path}/x: must be there, but is not")

    with pytest.raises(ConfigError, match=rf"^{url}/x: must be there"):
        fetch_copies(url, remote, choose)
    copies = fetch_copies(url, remote, texts)
    with pytest.raises(ConfigError, match=rf"^{url}/x: must be there"), copies.explain():
        choose(copies.path)
    with pytest.raises(DataError, match=rf"^{url}/x") as caught:
        list(copies.hold(_fail(f"{copies.path}/x")))
    assert caught.value.details == {"file": f"{url}/x", "row": 3}


def _fail(path):
    yield 1
    raise DataError.at(f"{path}: must be", file=path, row=3)


def test_paths_need_no_copies_and_no_options(folder, remote):
    assert fetch_copies(folder, None, texts) is None
    with pytest.raises(ConfigError, match="`remote` must be left out for a local path"):
        fetch_copies(folder, remote, texts)
    with pytest.raises(ConfigError, match=rf"must be URLs only, but '{folder}' is a path"):
        fetch_copies(f"s3://bucket/x::{folder}", remote, texts)
    with pytest.raises(ConfigError, match="must be URLs of one kind, but are of gs, s3"):
        fetch_copies("s3://bucket/x::gs://bucket/x", remote, texts)
    with pytest.raises(ConfigError, match="must have balanced braces"):
        fetch_copies("s3://bucket/{x", remote, texts)


def test_files_of_a_web_server_are_named_one_by_one(folder, tmp_path):
    remote = Remote(cache_dir=tmp_path / "cache", retry_seconds=2)
    with served(folder_of(folder)) as web:
        copies = fetch_copies(f"{web.url}/{{b,a}}.txt?key=secret", remote, texts)
        assert read(copies.path) == [(name, FILES[name]) for name in ("b.txt", "a.txt")]
        assert "secret" not in f"{copies.location}{copies.path}"
        with pytest.raises(MissingShardError, match=r"c\.txt.*is not there"):
            fetch_copies(f"{web.url}/c.txt", remote, texts)


def test_a_relative_folder_of_the_cache_is_of_the_working_folder(
    url, folder, server, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    copies = fetch_copies(url, server.remote("relative"), texts)
    monkeypatch.chdir("/")
    assert read(copies.path) == read(folder)
    assert copies.root.is_relative_to(tmp_path / "relative")


def test_a_file_system_without_hard_links_is_named(url, remote, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(CacheError, match=r"must be on a file system with hard links, but cannot"):
        fetch_copies(url, remote, texts)


def test_names_that_lead_out_of_the_folder_are_refused(remote, tmp_path, server, url):
    server.filesystem.call_s3(
        "put_object", Bucket=url.partition("://")[2], Key="up/a\\..\\b.txt", Body=b"x"
    )
    with pytest.raises((DataError, UnsafeContentError), match="must have the name of a file"):
        fetch_copies(f"{url}/up", remote, texts)
