"""What is asked of a bucket is asked of the server, and what it answers is what was asked for."""

import re
import socket

import fsspec
import pytest

from seqdata import FingerprintMismatch, Remote, RemoteReadError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.retry import find_endpoint, retry
from seqdata.storage.remote.transport import make_filesystem, make_remote_files
from seqdata_testing.faults.network import Answer, send
from seqdata_testing.s3 import KEYS
from seqdata_testing.waiting import patient
from tests.storage.remote.samples import make_quick_remote

CONTENT = bytes(range(256)) * 64


@pytest.fixture
def faulty_remote(faulty, tmp_path):
    options = {**KEYS, "endpoint_url": faulty.url}
    return Remote(
        cache_dir=tmp_path / "cache", retry_seconds=patient(10), stall_seconds=patient(10),
        storage_options=options,
    )  # fmt: skip


def test_a_listing_of_the_user_does_not_hide_that_an_object_was_replaced(bucket, s3, remote):
    s3.pipe_file(f"{bucket}/x", b"old")
    files = make_remote_files(f"s3://{bucket}", remote())
    stat = files.stat("x")
    own = fsspec.filesystem("s3", **remote().storage_options)
    own.ls(bucket)
    own.find(bucket)
    with fsspec.filesystem("s3", **remote().storage_options, skip_instance_cache=True).open(
        f"{bucket}/x", "wb"
    ) as other:
        other.write(b"new")
    assert own.info(f"{bucket}/x")["ETag"]  # as it was listed
    assert files.stat("x") != stat
    with pytest.raises(FingerprintMismatch, match="was replaced"):
        files.check_same("x", stat)
    system, _ = make_filesystem("s3", f"s3://{bucket}", remote())
    assert system is not own
    assert make_filesystem("s3", f"s3://{bucket}", remote())[0] is system  # one per process


def shifted(answer, handler):
    """Answer with bytes that begin 18 before those that were requested, and say so."""
    found = re.match(r"bytes=(\d+)-(\d+)$", handler.headers.get("Range") or "")
    if found is None or handler.command != "GET" or found[1] == "0":
        send(answer, handler)
        return
    first, last = int(found[1]) - 18, int(found[2]) - 18
    told = ("Content-Range", f"bytes {first}-{last}/{len(CONTENT)}")
    headers = [one for one in answer.headers if one[0].lower() != "content-range"]
    send(Answer(206, (*headers, told), CONTENT[first : last + 1]), handler)


def whole(answer, handler):
    """Answer with the whole object, whatever was requested."""
    if handler.command == "GET" and answer.status == 206:
        headers = [one for one in answer.headers if one[0].lower() != "content-range"]
        answer = Answer(200, tuple(headers), CONTENT)
    send(answer, handler)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(shifted, "bytes from 100 on were requested, but bytes from 82 on were received"),
     (whole, "bytes from 100 on were requested, but bytes from 0 on were received")],
)  # fmt: skip
def test_another_range_of_an_object_is_an_error_at_once(
    bucket, s3, faulty, faulty_remote, fault, reason
):
    s3.pipe_file(f"{bucket}/x", CONTENT)
    files = make_remote_files(f"s3://{bucket}", faulty_remote)
    assert files.read("x", 100, 300) == CONTENT[100:300]
    faulty.fault = fault
    with pytest.raises(RemoteReadError, match=f"{reason}.*tried once"):
        files.read("x", 100, 300)
    assert files.read("x", 0, len(CONTENT)) == CONTENT


def test_a_whole_object_in_place_of_its_first_bytes_is_not_downloaded(
    bucket, s3, faulty, faulty_remote
):
    s3.pipe_file(f"{bucket}/x", CONTENT)
    files = make_remote_files(f"s3://{bucket}", faulty_remote)
    faulty.fault = whole
    with pytest.raises(RemoteReadError, match="512 bytes were requested, but more were received"):
        files.read("x", 0, 512)


def test_the_endpoint_is_named_and_that_it_takes_no_connections(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # it does not listen
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        remote = make_quick_remote(
            tmp_path, retry_seconds=0.01, storage_options={"endpoint_url": endpoint}
        )

        def call(seconds):
            raise TimeoutError  # as of s3fs, which tries for longer

        with pytest.raises(
            RemoteReadError,
            match=rf"\(TimeoutError; because of ConnectionRefusedError: .*; endpoint {endpoint}; "
            "tried once",
        ):
            retry(call, DataLocation(dataset="s3://x"), remote)
        closed.listen()
        with pytest.raises(RemoteReadError, match=rf"\(TimeoutError; endpoint {endpoint}; tried"):
            retry(call, DataLocation(dataset="s3://x"), remote)


def test_the_endpoint_is_found_wherever_it_is_set_and_shown_without_secrets(monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert find_endpoint("s3://x", Remote()) is None
    inner = {"client_kwargs": {"endpoint_url": "https://me:pw@host"}}
    assert find_endpoint("s3://x", Remote(storage_options=inner)) == "https://host"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://other?key=1")
    assert find_endpoint("s3://x", Remote()) == "http://other"
    assert find_endpoint("https://x", Remote()) is None


def test_the_client_is_made_before_the_first_request_has_to_be_answered(bucket, remote):
    options = {**remote().storage_options, "config_kwargs": {"user_agent_extra": bucket}}
    files = make_remote_files(f"s3://{bucket}", Remote(storage_options=options))
    system, _ = files._get_filesystem("x")
    assert system._s3 is not None
