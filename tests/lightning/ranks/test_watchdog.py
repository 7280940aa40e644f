"""What a watcher says of ranks, and what becomes of errors that cannot travel."""

import logging
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed import DistNetworkError

from seqdata.errors import DecodeError, PeerFailedError
from seqdata.lightning.ranks.lockstep import _make_report, _rebuild_error
from seqdata.lightning.ranks.peers import LostRank, describe_own_process, find_lost_ranks
from seqdata.lightning.ranks.watchdog import RankTimeouts, RankWatchdog
from seqdata_testing.waiting import patient, until, within


@pytest.fixture
def sleeper():
    """A process that does nothing, as a peer of rank 1."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    stat = Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()
    yield replace(describe_own_process(1), pid=started.pid, start_ticks=int(stat[19])), started
    started.kill()
    started.wait(timeout=patient())


def watcher(*peers):
    return RankWatchdog(None, peers, 0, RankTimeouts())


def test_a_peer_that_runs_has_not_fallen(sleeper):
    peer, _ = sleeper
    assert find_lost_ranks([describe_own_process(0), peer], 0) == []


def test_a_peer_that_is_stopped_or_has_ended_is_told(sleeper):
    peer, process = sleeper
    process.send_signal(signal.SIGSTOP)
    assert until(lambda: find_lost_ranks([describe_own_process(0), peer], 0))
    stopped = LostRank(1, f"its process {peer.pid} is stopped")
    assert find_lost_ranks([describe_own_process(0), peer], 0) == [stopped]
    process.kill()
    process.wait(timeout=patient())
    assert find_lost_ranks([describe_own_process(0), peer], 0) == [
        LostRank(1, f"its process {peer.pid} has ended")
    ]


def test_a_process_that_took_the_number_of_a_peer_is_not_the_peer(sleeper):
    peer, _ = sleeper
    (fallen,) = find_lost_ranks(
        [describe_own_process(0), replace(peer, start_ticks=peer.start_ticks - 1)], 0
    )
    assert fallen.cause.endswith("has ended")


def test_a_peer_of_another_machine_cannot_be_looked_at(sleeper):
    peer, process = sleeper
    process.kill()
    process.wait(timeout=patient())
    assert find_lost_ranks([describe_own_process(0), replace(peer, host="elsewhere")], 0) == []


def test_a_rank_that_cannot_be_told_is_another_one():
    told = watcher(
        describe_own_process(0), replace(describe_own_process(1), host="elsewhere")
    ).make_lost_error(RuntimeError("[/a/b/pair.cc:12] Connection closed by peer [10.0.0.7]:4321"))
    cause = "RuntimeError: Connection closed by peer [10.0.0.7]:4321"
    assert str(told) == (
        f"ranks: rank 0 has lost another rank: {cause}. All ranks must run; begin again from the "
        "latest checkpoint"
    )
    assert told.facts == {"cause": cause}


GLOO = "[/a/gloo/transport/tcp/pair.cc:12] Connection closed by peer [10.0.0.7]:4321"


def test_an_exception_of_ones_own_is_told_once_which_rank_is_gone(sleeper):
    peer, process = sleeper
    process.kill()
    process.wait(timeout=patient())
    watching, error = watcher(describe_own_process(0), peer), RuntimeError("shapes differ")
    assert watching.find_cause(error) is None
    watching.leave(error)
    assert watching.find_cause(error) is None
    (note,) = error.__notes__
    assert note.startswith(f"ranks: rank 0 has lost rank 1 (its process {peer.pid} has ended)")


@pytest.mark.parametrize("error", [RuntimeError(GLOO), DistNetworkError("no connection")])
def test_a_collectives_error_means_that_the_rank_is_lost_that_is_about_to_end(
    sleeper, error, monkeypatch
):
    monkeypatch.setattr("seqdata.lightning.ranks.watchdog._PROCESS_EXIT_SECONDS", patient())
    peer, process = sleeper
    watching = watcher(describe_own_process(0), peer)
    ending = threading.Timer(0.2, process.kill)
    ending.start()
    meant = watching.find_cause(error)
    ending.join(timeout=patient())
    assert str(meant).startswith(
        f"ranks: rank 0 has lost rank 1 (its process {peer.pid} has ended): {type(error).__name__}"
    )
    assert (meant.facts["rank"], not hasattr(error, "__notes__")) == (1, True)


def test_a_collectives_error_with_all_ranks_there_is_what_it_says(sleeper):
    with within(5):
        assert watcher(describe_own_process(0), sleeper[0]).find_cause(RuntimeError(GLOO)) is None


@pytest.mark.parametrize("error", [ValueError("gloo"), RuntimeError("shapes differ")])
def test_an_error_of_ones_own_is_not_held_up(sleeper, error):
    with within(0.5):
        assert watcher(describe_own_process(0), sleeper[0]).find_cause(error) is None
    assert not hasattr(error, "__notes__")


def test_what_ends_a_process_is_logged_too(caplog, capsys):
    with caplog.at_level(logging.ERROR):
        watcher(describe_own_process(0))._report(PeerFailedError("ranks: so it is"))
    assert caplog.messages == ["PeerFailedError: ranks: so it is"]
    assert capsys.readouterr().err == "PeerFailedError: ranks: so it is\n"


class Local(Exception):
    """An error that one rank makes, and another may not know."""

    def __reduce__(self):
        return made, (os.getpid(),)


def made(pid):
    if pid != int(os.environ.get("MADE", pid)):
        raise LookupError("there is no such thing here")
    return Local("local")


def test_an_error_that_cannot_be_made_on_another_rank_is_told_in_words(monkeypatch):
    told = _make_report(3, Local("local"), None)
    monkeypatch.setenv("MADE", "0")
    error = _rebuild_error(told, 2)
    assert isinstance(error, PeerFailedError)
    assert str(error) == (
        "ranks: rank 2 failed: Local: local (it cannot be made here: there is no such thing here)"
    )


def test_an_error_of_ours_arrives_with_class_text_facts_and_rank():
    error = _rebuild_error(_make_report(3, DecodeError.at("field 'x' is bad", shard=7), None), 2)
    assert type(error) is DecodeError
    assert (str(error), error.facts) == ("rank 2: field 'x' is bad", {"shard": 7, "rank": 2})
