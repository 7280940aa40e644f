"""What passes is tried again, what does not is an error at once."""

import logging
import re
import types
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from seqdata import MissingShardError, RemoteReadError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote import retry as retry_module
from seqdata.storage.remote.retry import find_retry_after, retry
from seqdata.storage.remote.transport import make_remote_files
from seqdata_testing.faults import network
from seqdata_testing.waiting import patient, within
from tests.storage.remote.samples import CONTENT, PASSING, make_quick_remote


@pytest.mark.parametrize("fault", PASSING)
def test_what_passes_is_tried_again_with_a_line_each(file_server, tmp_path, caplog, fault):
    files = make_remote_files(
        file_server.url, make_quick_remote(tmp_path, retry_seconds=patient(20))
    )
    file_server.fault = fault(2)
    with caplog.at_level(logging.WARNING, "seqdata.remote"):
        assert files.read("file.bin", 10, 5000) == CONTENT[10:5000]
    lines = [one.getMessage() for one in caplog.records if one.name == "seqdata.remote"]
    assert len(lines) == 2
    assert re.search(r'\("file\.bin"\), bytes 10\.\.5000: .*; attempt 1 failed, retry in', lines[0])


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.slow
def test_what_does_not_pass_is_an_error_with_the_range_and_the_attempts(
    file_server, tmp_path, fault
):
    files = make_remote_files(file_server.url, make_quick_remote(tmp_path))
    file_server.fault = fault()
    with (
        within(15),
        pytest.raises(
            RemoteReadError, match=r"could not be read \(.*; tried \d+ times\)"
        ) as caught,
    ):
        files.read("file.bin", 10, 5000)
    facts = caught.value.details
    assert (facts["file"], facts["offset"], facts["length"]) == ("file.bin", 10, 4990)
    assert facts["attempts"] >= 2


def test_a_refusal_is_an_error_at_once(file_server, tmp_path):
    files = make_remote_files(
        file_server.url, make_quick_remote(tmp_path, retry_seconds=patient(30))
    )
    file_server.fault = network.refused()
    with pytest.raises(RemoteReadError, match=r"403.*tried once\)\. Check address, permissions"):
        files.read("file.bin", 0, 10)
    with pytest.raises(RemoteReadError, match="403"):
        files.stat("file.bin")


class ToldError(Exception):
    """What a transport raises for an answer; each has its own place for the status."""


TOLD = {
    "aiohttp": lambda status: {"status": status},
    "adlfs": lambda status: {"status_code": status},
    "gcsfs": lambda status: {"code": status},
    "huggingface_hub": lambda status: {"response": types.SimpleNamespace(status_code=status)},
}


@pytest.mark.parametrize("transport", TOLD)
@pytest.mark.parametrize(
    ("status", "kind", "attempts"),
    [(401, RemoteReadError, 1), (403, RemoteReadError, 1), (404, MissingShardError, 1),
     (425, RemoteReadError, 3), (429, RemoteReadError, 3), (503, RemoteReadError, 3)],
)  # fmt: skip
def test_the_status_counts_wherever_a_transport_tells_it(
    tmp_path, transport, status, kind, attempts
):
    calls = []

    def call(seconds):
        calls.append(seconds)
        error = ToldError("no")
        vars(error).update(TOLD[transport](status))
        raise error

    with pytest.raises(kind):
        retry(
            call,
            DataLocation(dataset="hf://x"),
            make_quick_remote(tmp_path, retry_seconds=patient(0.6)),
        )
    assert len(calls) == 1 if attempts == 1 else len(calls) > 1


def told_by(header):
    """Return errors of transports for an answer with Retry-After, by transport."""
    headers = {"Retry-After": header}
    caused = OSError("busy")
    caused.__cause__ = ToldError("busy")
    places = {
        "aiohttp": {"headers": headers},
        "requests": {"response": types.SimpleNamespace(headers=headers)},
        "botocore": {"response": {"ResponseMetadata": {"HTTPHeaders": {"retry-after": header}}}},
    }
    found = {name: ToldError("busy") for name in places}
    for name, error in found.items():
        vars(error).update(places[name])
    vars(caused.__cause__).update(places["botocore"])
    return [*found.values(), caused]


def test_the_wait_that_a_server_asks_for_is_found_wherever_it_lies():
    assert [find_retry_after(error) for error in told_by("7")] == [7.0] * 4
    late = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert all(3_500 < find_retry_after(error) <= 3_600 for error in told_by(late))
    for header in (
        "",
        "soon",
        "Fri, 31 Dec 99999 23:59:59 GMT",
        "-3",
        "Wed, 21 Oct 2015 07:28:00 GMT",
        "\u0663",
    ):
        assert [find_retry_after(error) for error in told_by(header)] == [0.0] * 4


@pytest.mark.parametrize("error", told_by("7"))
def test_a_retry_waits_as_long_as_the_server_asks(tmp_path, monkeypatch, error):
    waits, answers = [], [error]
    monkeypatch.setattr("seqdata.storage.remote.retry.time.sleep", waits.append)

    def call(seconds):
        if answers:
            raise answers.pop()
        return "body"

    where, remote = DataLocation(dataset="hf://x"), make_quick_remote(tmp_path, retry_seconds=60)
    assert retry(call, where, remote) == "body"
    assert len(waits) == 1
    assert 7 <= waits[0] < 8


def test_waits_double_and_none_is_longer_than_the_longest(tmp_path, monkeypatch):
    waits, now = [], [0.0]

    def sleep(seconds):
        waits.append(seconds)
        now[0] += seconds

    def call(seconds):
        raise ConnectionResetError

    monkeypatch.setattr(retry_module.time, "sleep", sleep)
    monkeypatch.setattr(retry_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(retry_module.time, "monotonic_ns", lambda: 123_457 * len(waits))
    with pytest.raises(RemoteReadError, match=r"tried 1\d times"):
        retry(call, DataLocation(dataset="s3://x"), make_quick_remote(tmp_path, retry_seconds=60))
    bounds = [min(0.1 * 2**tried, retry_module._LONGEST_BACKOFF) for tried in range(len(waits))]
    assert bounds[-1] == retry_module._LONGEST_BACKOFF
    assert all(most / 2 <= wait <= most for wait, most in zip(waits, bounds, strict=True))


def test_a_wait_beyond_the_deadline_is_an_error_at_once(tmp_path):
    def call(seconds):
        raise told_by("120")[0]

    with pytest.raises(RemoteReadError, match="the server asks to wait 120 s; tried once"):
        retry(call, DataLocation(dataset="hf://x"), make_quick_remote(tmp_path, retry_seconds=60))


def test_what_is_not_there_is_said_at_once(file_server, tmp_path):
    files = make_remote_files(
        file_server.url, make_quick_remote(tmp_path, retry_seconds=patient(30))
    )
    with pytest.raises(
        MissingShardError, match=r'\("nope"\).*is not there\. Check the URL, or restore it'
    ):
        files.stat("nope")
    with pytest.raises(MissingShardError):
        files.read("nope", 0, 1)
