"""Requests that get no answer: never a file that is not there, but an error that says why."""

import numpy as np
import pytest

from seqdata import MissingShardError, RemoteReadError, open_store
from seqdata.storage.arrow.open_remote import open_remote
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.remote_tree import RemoteTree
from seqdata.storage.remote.retry import retry
from seqdata.storage.remote.transport import make_remote_files
from seqdata_testing.faults.network import send
from seqdata_testing.waiting import patient
from tests.storage.remote.samples import CONTENT, make_quick_remote, write


def cut(answer, handler):
    """Close the connection without an answer."""
    del answer
    handler.close_connection = True


def garble(answer, handler):
    """Answer with what is not HTTP."""
    del answer
    handler.wfile.write(b"hello\r\n\r\n")
    handler.close_connection = True


def times(count, fault):
    """Return a fault that happens a number of times."""
    left = [count]

    def faulty(answer, handler):
        left[0] -= 1
        (fault if left[0] >= 0 else send)(answer, handler)

    return faulty


@pytest.fixture
def remote(tmp_path):
    return make_quick_remote(tmp_path, retry_seconds=patient(0.5), stall_seconds=patient(20))


@pytest.fixture
def lasting(tmp_path):
    """Options that wait for the server."""
    return make_quick_remote(tmp_path, retry_seconds=patient(30), stall_seconds=patient(20))


@pytest.fixture
def brief(tmp_path):
    """Options for one attempt: what comes of it does not depend on their number."""
    return make_quick_remote(tmp_path, retry_seconds=0.01)


@pytest.mark.parametrize(("fault", "count"), [(cut, 8), (garble, 2)])
def test_what_gets_no_answer_is_asked_again(file_server, lasting, fault, count):
    files = make_remote_files(file_server.url, lasting)
    file_server.fault = times(count, fault)  # aiohttp sends a request again if it is cut
    assert files.stat("file.bin").size == len(CONTENT)
    file_server.fault = times(count, fault)
    assert files.read("file.bin", 10, 20) == CONTENT[10:20]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (cut, r"\(ServerDisconnectedError: Server"),
        (garble, r"\((?!Http)Bad(StatusLine|HttpMessage): .*hello"),
    ],
)
def test_what_never_gets_an_answer_is_an_error_that_names_url_and_cause(
    file_server, remote, fault, reason
):
    files = make_remote_files(file_server.url, remote)
    file_server.fault = fault
    for ask in (lambda: files.stat("file.bin"), lambda: files.read("file.bin", 0, 9)):
        with pytest.raises(
            RemoteReadError, match=rf"{file_server.url}.*file\.bin.*{reason}.*; tried \d+ times"
        ) as caught:
            ask()
        assert caught.value.details["transient"]
        assert caught.value.details["attempts"] > 1


def test_a_file_of_a_tree_that_gets_no_answer_is_not_taken_as_absent(file_server, remote):
    tree = RemoteTree(file_server.url, remote)
    file_server.fault = cut
    with pytest.raises(RemoteReadError, match="ServerDisconnectedError"):
        tree.stat(["file.bin"])
    file_server.fault = None
    assert [stat and stat.size for stat in tree.stat(["file.bin", "nope"])] == [len(CONTENT), None]


def raising(error, *, cause=None, context=None):
    """Return a call that raises an error, from a cause or in the course of another error."""

    def call(seconds):
        del seconds
        if context is None:
            raise error from cause
        try:
            raise context
        except type(context):
            raise error  # noqa: B904 - what a transport may do

    return call


class Told(Exception):
    """What a transport raises for an answer."""

    def __init__(self, status):
        super().__init__("told")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class EntryNotFoundError(Exception):
    """What a transport raises for a name that it does not find, without an answer."""


ABSENT = [
    {}, {"cause": Told(404)}, {"cause": Told(410)}, {"context": Told(404)},
    {"cause": KeyError("x")}, {"cause": FileNotFoundError("y")}, {"cause": EntryNotFoundError()},
]  # fmt: skip
FAILED = [
    {"cause": ConnectionResetError("gone")}, {"context": ConnectionResetError("gone")},
    {"cause": TimeoutError()}, {"cause": Told(503)}, {"cause": RuntimeError("closed")},
]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "kind"),
    [(told, MissingShardError) for told in ABSENT] + [(told, RemoteReadError) for told in FAILED],
)
def test_a_file_is_absent_only_where_an_answer_says_so(brief, told, kind):
    with pytest.raises(kind):
        retry(raising(FileNotFoundError("x"), **told), DataLocation(dataset="az://x"), brief)


def test_what_the_caller_handles_is_no_cause(brief):
    try:
        raise ConnectionResetError("of the caller")
    except ConnectionResetError:
        with pytest.raises(MissingShardError):
            retry(raising(FileNotFoundError("x")), DataLocation(dataset="az://x"), brief)


def test_a_listing_that_gets_no_answer_does_not_say_that_a_store_is_missing(
    tmp_path, bucket, faulty, s3, remote_of_faulty
):
    s3.pipe_file(f"{bucket}/data/x.parquet", b"PAR1")
    listing = []

    def fault(answer, handler):
        if "list-type" in handler.path and "delimiter" in handler.path.lower():
            listing.append(handler.path)
            if "max-keys=1&" not in handler.path:
                cut(answer, handler)
                return
        send(answer, handler)

    faulty.fault = fault
    for opens in (open_store, open_remote):
        with pytest.raises(RemoteReadError, match=f"; endpoint {faulty.url}; tried"):
            opens(f"s3://{bucket}/data", remote=remote_of_faulty)
    assert listing


@pytest.fixture
def remote_of_faulty(faulty, tmp_path):
    from seqdata import Remote
    from seqdata_testing.s3 import KEYS

    return Remote(
        cache_dir=tmp_path / "cache", retry_seconds=patient(1.5), stall_seconds=patient(1),
        storage_options={**KEYS, "endpoint_url": faulty.url},
    )  # fmt: skip


def test_lengths_of_a_store_are_read_after_cuts(tmp_path, lasting):
    from seqdata_testing.faults.network import folder_of, served

    store = write(tmp_path / "store")
    with served(folder_of(tmp_path / "store")) as made:
        made.fault = times(8, cut)
        assert np.array_equal(open_store(made.url, remote=lasting).lengths, store.lengths)
