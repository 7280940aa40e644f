"""Bodies that are longer than what was asked for, or another part: none fills the memory."""

import gzip

import pytest

from seqdata import Remote, RemoteReadError, open_store
from seqdata.errors import MissingShardError
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.remote.http_client import MAX_LISTING_BYTES
from seqdata.storage.remote.transport import make_remote_files
from seqdata_testing.faults.hostile import Endless
from seqdata_testing.faults.network import Answer, folder_of, served
from seqdata_testing.waiting import patient
from tests.storage.remote.samples import CONTENT, write

BUFFERS = 32 << 20  # bytes that the network holds at most, twice over


@pytest.fixture
def remote(tmp_path):
    return Remote(
        cache_dir=tmp_path / "cache", retry_seconds=patient(1.5), stall_seconds=patient(20.0)
    )


def test_a_body_that_never_ends_is_left_after_what_was_asked_for(file_server, remote):
    file_server.fault = Endless()
    text = (
        r'\("file\.bin"\).*: could not be read \(2 bytes were requested, but more were received; '
        r"tried once\)\. "
        r"Use a server that supports range requests"
    )
    with pytest.raises(RemoteReadError, match=text):
        make_remote_files(file_server.url, remote).read("file.bin", 1, 3)
    assert file_server.fault.bodies == 1
    assert file_server.fault.taken < BUFFERS


def test_the_body_of_an_error_is_not_read(file_server, remote):
    file_server.fault = Endless()
    with served(lambda asked: Answer(404, (), b"" if asked.method == "HEAD" else b"no")) as gone:
        gone.fault = file_server.fault
        files = make_remote_files(gone.url, remote)
        for ask in (lambda: files.stat("file.bin"), lambda: files.read("file.bin", 1, 3)):
            with pytest.raises(MissingShardError):
                ask()
    assert file_server.fault.bodies
    assert file_server.fault.taken < BUFFERS


def test_a_listing_that_never_ends_is_left(file_server, remote):
    page = Answer(200, (("Content-Type", "text/html"),), b'<a href="file.bin">file.bin</a>')
    with served(lambda _: page) as listing:
        assert make_remote_files(listing.url, remote).names() == ["file.bin"]
        listing.fault = Endless(MAX_LISTING_BYTES + 2 * BUFFERS)
        with pytest.raises(
            RemoteReadError, match=f"{MAX_LISTING_BYTES} bytes were requested, but more"
        ):
            make_remote_files(listing.url, remote).names()
        assert listing.fault.taken < MAX_LISTING_BYTES + BUFFERS


def test_a_manifest_that_never_ends_is_left(tmp_path, remote):
    write(tmp_path / "store")
    with served(folder_of(tmp_path / "store")) as made:
        made.fault, made.hits = Endless(), MANIFEST
        with pytest.raises(RemoteReadError, match="bytes were requested, but more were received"):
            open_store(made.url, remote=remote)
        assert made.fault.bodies == 1
        assert made.fault.taken < BUFFERS


def whole(asked):
    """Serve no ranges: what many small web servers do."""
    return Answer(200, (), CONTENT, len(CONTENT))


def test_a_server_without_ranges_serves_files_that_are_asked_for_whole(remote):
    with served(whole) as made:
        files = make_remote_files(made.url, remote)
        assert files.read("file.bin", 0, len(CONTENT)) == CONTENT
        with pytest.raises(RemoteReadError, match="512 bytes were requested, but more were rec"):
            files.read("file.bin", 0, 512)


def test_a_bomb_is_refused_before_it_is_unpacked(remote):
    asked_for = []

    def bomb(asked):
        asked_for.append(dict(asked.headers)["Accept-Encoding"])
        return Answer(206, (("Content-Encoding", "gzip"),), gzip.compress(bytes(64 << 20)))

    with served(bomb) as made:
        files = make_remote_files(made.url, remote)
        with pytest.raises(
            RemoteReadError, match="were requested, but the response is encoded as 'gzip'"
        ):
            files.read("file.bin", 0, 64 << 20)
    assert asked_for == ["identity"]


@pytest.mark.parametrize("encoding", ["gzip", "br"])
def test_the_size_of_an_encoded_file_is_not_asked_for_in_vain(remote, encoding):
    def encoded(asked):
        return Answer(200, (("Content-Encoding", encoding),), CONTENT, len(CONTENT))

    with served(encoded) as made:
        text = f"but the response is encoded as '{encoding}'; tried once"
        with pytest.raises(RemoteReadError, match=text):
            make_remote_files(made.url, remote).stat("file.bin")


def test_another_part_of_the_file_is_not_taken_for_the_one_that_was_asked_for(remote):
    def other(asked):
        return Answer(206, (("Content-Range", "bytes 0-99/16384"),), CONTENT[:100])

    def shorter(asked):
        return Answer(200, (), CONTENT[:100])

    for answer in (other, shorter):
        with served(answer) as made:
            text = "bytes from 100 on were requested, but bytes from 0 on were received; tried once"
            with pytest.raises(RemoteReadError, match=text):
                make_remote_files(made.url, remote).read("file.bin", 100, 200)


def test_a_part_that_does_not_say_which_is_that_which_was_asked_for(remote):
    """A Content-Range must be there (RFC 9110, 15.3.7), but small servers leave it out."""

    def unsaid(asked):
        first, last = dict(asked.headers)["Range"].removeprefix("bytes=").split("-")
        return Answer(206, (), CONTENT[int(first) : int(last) + 1])

    with served(unsaid) as made:
        assert make_remote_files(made.url, remote).read("file.bin", 100, 200) == CONTENT[100:200]
