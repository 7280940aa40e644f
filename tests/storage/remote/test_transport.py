"""What remote servers do wrong is tried again, then said; and never believed."""

import gc
import logging
import multiprocessing
import os
import sys
import weakref
from dataclasses import replace

import pytest

from seqdata import ConfigError, FingerprintMismatch, Remote, RemoteReadError
from seqdata.runs.locations import make_absolute
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.transport import (
    SMALLEST_REQUEST,
    make_remote_file,
    make_remote_files,
)
from seqdata.storage.remote.urls import join_url, redact_secrets, redact_url, split_url
from seqdata_testing.faults import network
from seqdata_testing.waiting import patient, within
from tests.storage.remote.samples import CONTENT, PASSING, make_quick_remote

EMPTY = {".lock", "CACHEDIR.TAG"}  # what a cache without files holds


def test_a_body_that_crawls_is_given_up_in_time(file_server, tmp_path):
    files = make_remote_files(
        file_server.url, make_quick_remote(tmp_path, stall_seconds=patient(0.5))
    )
    file_server.fault = network.slow(1000)
    with within(15), pytest.raises(RemoteReadError, match="FSTimeoutError"):
        files.read("file.bin", 0, len(CONTENT))


def test_a_stat_that_fails_for_another_reason_is_not_a_missing_file(file_server, tmp_path):
    files = make_remote_files(file_server.url, make_quick_remote(tmp_path))
    file_server.fault = network.unavailable()
    with pytest.raises(RemoteReadError):
        files.stat("file.bin")
    file_server.fault = network.unavailable(2)  # HEAD, then GET
    assert files.stat("file.bin").size == len(CONTENT)


@pytest.mark.parametrize("fault", [*PASSING, lambda: network.slow(500)])
@pytest.mark.slow
def test_what_could_not_be_read_is_not_in_the_cache(file_server, tmp_path, fault):
    files = make_remote_files(file_server.url, make_quick_remote(tmp_path))
    cache, wanted = make_cache(files), CacheRequest("file.bin")
    file_server.hits, stat = "file.bin", files.stat("file.bin")
    file_server.fault = fault()
    with pytest.raises(RemoteReadError):
        cache.acquire(CacheRequest("file.bin", stat.size, "0" * 64))
    assert set(os.listdir(tmp_path / "cache" / "seqdata-shards")) == EMPTY
    file_server.fault = None
    assert bytes(memoryview(cache.acquire(wanted).mapping)) == CONTENT


def test_a_file_that_is_replaced_while_it_is_fetched_is_not_kept(file_server, tmp_path):
    files = make_remote_files(file_server.url, make_quick_remote(tmp_path))
    file_server.fault = network.retagged(after=2)  # the first look, and the body
    with pytest.raises(
        FingerprintMismatch, match="must not change while it is read, but was replaced"
    ):
        make_cache(files).acquire(CacheRequest("file.bin"))
    assert set(os.listdir(tmp_path / "cache" / "seqdata-shards")) == EMPTY


S3_FAULTS = [network.unavailable, network.reset, network.short]


@pytest.mark.parametrize("fault", S3_FAULTS)
@pytest.mark.slow
def test_s3_is_tried_again_until_it_answers(s3, bucket, remote, faulty, fault):
    s3.pipe(f"{bucket}/file.bin", CONTENT)
    files = make_remote_files(
        f"s3://{bucket}", remote(faulty.url, retry_seconds=patient(30), stall_seconds=patient(10))
    )
    faulty.fault, faulty.hits = fault(1), "file.bin"
    assert files.read("file.bin", 100, 9000) == CONTENT[100:9000]


@pytest.mark.parametrize("fault", [network.unavailable, lambda: network.slow(1000), network.reset])
@pytest.mark.slow
def test_s3_that_does_not_answer_is_an_error_in_time(s3, bucket, remote, faulty, fault):
    s3.pipe(f"{bucket}/file.bin", CONTENT)
    make_remote_files(f"s3://{bucket}", remote(faulty.url)).stat("file.bin")  # a client is there
    files = make_remote_files(
        f"s3://{bucket}", remote(faulty.url, retry_seconds=patient(1.5), stall_seconds=patient(1))
    )
    faulty.fault, faulty.hits = fault(), "file.bin"
    with within(15), pytest.raises(RemoteReadError) as caught:
        files.read("file.bin", 0, len(CONTENT))
    assert caught.value.details["file"] == "file.bin"


def read_in_child(*opened):
    """Read in a forked process, and return its exit code."""

    def read():
        sys.exit(any(files.read("file.bin", 5, 9) != CONTENT[5:9] for files in opened))

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    child.join(patient())
    return child.exitcode


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", ["s3", "http"])
@pytest.mark.slow
def test_clients_work_on_both_sides_of_a_fork(
    s3, bucket, remote, file_server, tmp_path, kind, rounds, caplog
):
    s3.pipe(f"{bucket}/file.bin", CONTENT)
    location, how = (
        (f"s3://{bucket}", remote())
        if kind == "s3"
        else (file_server.url, make_quick_remote(tmp_path))
    )
    for _ in range(rounds):
        files = make_remote_files(location, how)
        assert files.read("file.bin", 0, 4) == CONTENT[:4]
        assert read_in_child(files, make_remote_files(location, how)) == 0
        assert files.read("file.bin", 3, 700) == CONTENT[3:700]
    assert "failed, retry" not in caplog.text


@pytest.mark.parametrize("kind", ["s3", "http"])
@pytest.mark.slow
def test_a_forked_process_does_not_close_what_its_parent_uses(
    s3, bucket, remote, file_server, tmp_path, kind
):
    s3.pipe(f"{bucket}/file.bin", CONTENT)
    location, how = (
        (f"s3://{bucket}", remote())
        if kind == "s3"
        else (file_server.url, make_quick_remote(tmp_path))
    )
    files = make_remote_files(location, how)
    files.stat("file.bin")
    system = weakref.ref(files._system)
    del files

    def read():
        make_remote_files(location, how).read("file.bin", 5, 9)  # fsspec drops what was copied
        gc.collect()
        sys.exit(0 if system() is not None else 3)

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    child.join(patient())
    assert child.exitcode == 0


def test_another_tag_at_s3_is_noticed(s3, bucket, remote):
    s3.pipe(f"{bucket}/file.bin", CONTENT)
    files = make_remote_files(f"s3://{bucket}", remote())
    stat = files.stat("file.bin")
    files.check_same("file.bin", stat)
    s3.pipe(f"{bucket}/file.bin", CONTENT[::-1])
    with pytest.raises(FingerprintMismatch):
        files.check_same("file.bin", stat)


@pytest.mark.slow
def test_no_message_and_no_repr_holds_what_is_secret(file_server, tmp_path, caplog):
    address = file_server.url.replace("http://", "http://me:password@") + "?signature=abcdef"
    remote = make_quick_remote(tmp_path, storage_options={"headers": {"X-Key": "token99"}})
    files = make_remote_files(address, remote)
    assert files.read("file.bin", 0, 5) == CONTENT[:5]
    file_server.fault = network.unavailable()
    told = [repr(files), repr(remote), files.location]
    with caplog.at_level(logging.DEBUG, "seqdata"):
        for name in ("file.bin", "nope"):
            with pytest.raises(RemoteReadError) as caught:
                files.read(name, 0, 5)
            told += [str(caught.value), str(caught.value.details), repr(caught.value.__cause__)]
        file_server.fault = network.refused()
        with pytest.raises(RemoteReadError) as caught:
            files.stat("file.bin")
    told += [str(caught.value), caplog.text]
    for secret in ("password", "signature", "abcdef", "token99", "me:"):
        assert secret not in "\n".join(told)


@pytest.mark.parametrize(
    "location",
    ["ftp://host/x", "simplecache::s3://bucket/x", "reference://x", "pipe://cat", "sftp://h/x"],
)
def test_a_scheme_that_is_not_listed_is_refused(location):
    with pytest.raises(ConfigError, match=r"must be a plain URL of s3, gs.*, but is (of|a chain)"):
        make_remote_files(location, Remote())


def test_what_is_not_installed_is_named(monkeypatch):
    import importlib

    def absent(name, package=None):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ConfigError, match="gs:// needs the package 'gcsfs', which is"):
        make_remote_files("gs://bucket/x", Remote())


def test_options_that_the_transport_does_not_take_are_an_error():
    pytest.importorskip("s3fs")
    both = {"key": "a", "username": "secret"}
    with pytest.raises(
        ConfigError, match=r"`storage_options` must be what .* accepts .*, but are key, username"
    ):
        make_remote_files("s3://bucket", Remote(storage_options=both))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"how": "all"}, "`how` must be one of cache, ranges, but is 'all'"),
        ({"cache_bytes": 0}, "`cache_bytes` must be an integer of at least 1, but is 0"),
        ({"gap": -1}, "`gap` must be an integer of at least 0, but is -1"),
        (
            {"memory_bytes": "64MB"},
            "`memory_bytes` must be an integer of at least 0, but is '64MB'",
        ),
        ({"stall_seconds": "1"}, "`stall_seconds` must be a number above 0, but is '1'"),
        ({"memory_bytes": -1}, "`memory_bytes` must be an integer of at least 0, but is -1"),
        ({"connections": 0}, "`connections` must be an integer of at least 1, but is 0"),
        ({"retry_seconds": 0}, "`retry_seconds` must be a number above 0, but is 0"),
        ({"stall_seconds": -1}, "`stall_seconds` must be a number above 0, but is -1"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        Remote(**options)


def test_urls_are_joined_parted_and_shown():
    assert join_url("s3://bucket/data/", "x.arrow") == "s3://bucket/data/x.arrow"
    assert join_url("https://h/data?key=1", "x") == "https://h/data/x?key=1"
    assert split_url("https://h/data/x.tar?key=1") == ("https://h/data?key=1", "x.tar")
    assert split_url("gs://bucket/x.tar") == ("gs://bucket", "x.tar")
    assert split_url("memory://x.tar") == ("memory://", "x.tar")
    assert join_url("memory://", "x.tar") == "memory://x.tar"
    assert redact_url("https://me:pw@h/data?key=1#part") == "https://h/data"
    text = "403, url='https://me:pw@h/x?Signature=ab/c' and s3://k:s@b/y"
    assert redact_secrets(text) == "403, url='https://h/x' and s3://b/y"


def test_a_file_is_known_by_its_own_url(file_server, tmp_path):
    files, name = make_remote_file(f"{file_server.url}/file.bin", make_quick_remote(tmp_path))
    assert files.read(name, 1, 3) == CONTENT[1:3]
    assert files.read(name, 3, 3) == b""
    assert name == "file.bin"


def test_what_a_run_notes_of_its_data_holds_nothing_secret():
    assert make_absolute("https://me:pw@h/data?Signature=x") == "https://h/data"
    assert make_absolute("s3://bucket/data") == "s3://bucket/data"


def only_small(most):
    """Send small bodies; stop in the middle of larger ones until the client gives up."""

    def fault(answer, handler):
        if len(answer.body) <= most:
            network.send(answer, handler)
            return
        network.send(replace(answer, body=answer.body[:most]), handler, length=len(answer.body))
        handler.wfile.flush()
        while handler.connection.recv(1 << 16):  # ends: the client closes it
            pass
        handler.close_connection = True

    return fault


def test_after_a_timeout_requests_are_smaller_so_that_a_slow_link_is_enough(file_server, tmp_path):
    (tmp_path / "data" / "large.bin").write_bytes(CONTENT * 40)
    remote = make_quick_remote(
        tmp_path, stall_seconds=patient(0.5), retry_seconds=patient(2), connections=2
    )
    file_server.fault = only_small(2 * SMALLEST_REQUEST)
    files = make_remote_files(file_server.url, remote)
    assert files.read("large.bin", 5, len(CONTENT) * 40 - 5) == (CONTENT * 40)[5:-5]
    cached = make_cache(files).acquire(CacheRequest("large.bin"))
    assert bytes(memoryview(cached.mapping)) == CONTENT * 40


def test_requests_grow_again_when_they_are_quick(file_server, tmp_path):
    (tmp_path / "data" / "large.bin").write_bytes(CONTENT * 40)
    files = make_remote_files(file_server.url, Remote(cache_dir=tmp_path / "cache"))
    files._request_sizes.shrink()
    assert files.read("large.bin", 0, len(CONTENT) * 40) == CONTENT * 40
    bodies = [path for method, path in file_server.requests if method == "GET"]
    assert len(bodies) == 4  # 64, 128 and 256 KiB, and the rest of 640


def test_the_advice_after_a_timeout_names_both_limits(file_server, tmp_path):
    files = make_remote_files(
        file_server.url, make_quick_remote(tmp_path, stall_seconds=patient(0.2))
    )
    file_server.fault = only_small(100)
    text = r"wait longer with Remote\(stall_seconds=\.\.\., retry_seconds=\.\.\.\)"
    with pytest.raises(RemoteReadError, match=text):
        files.read("file.bin", 0, 1000)
