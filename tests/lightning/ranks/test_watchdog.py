"""What a watcher says of ranks, and what becomes of errors that cannot travel."""

import logging
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed import DistNetworkError

from seqdata.errors import PeerFailedError
from seqdata.lightning.ranks.watchdog import describe_own_process
from seqdata_testing.waiting import patient, within
from tests.lightning.ranks.watchers import make_watcher


@pytest.fixture
def sleeper():
    """A process that does nothing, as a peer of rank 1."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    stat = Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()
    yield replace(describe_own_process(1), pid=started.pid, start_ticks=int(stat[19])), started
    started.kill()
    started.wait(timeout=patient())


GLOO = "[/a/gloo/transport/tcp/pair.cc:12] Connection closed by peer [10.0.0.7]:4321"


def test_an_exception_of_ones_own_is_told_once_which_rank_is_gone(sleeper):
    peer, process = sleeper
    process.kill()
    process.wait(timeout=patient())
    watching, error = make_watcher(describe_own_process(0), peer), RuntimeError("shapes differ")
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
    watching = make_watcher(describe_own_process(0), peer)
    ending = threading.Timer(0.2, process.kill)
    ending.start()
    meant = watching.find_cause(error)
    ending.join(timeout=patient())
    assert str(meant).startswith(
        f"ranks: rank 0 has lost rank 1 (its process {peer.pid} has ended): {type(error).__name__}"
    )
    assert (meant.details["rank"], not hasattr(error, "__notes__")) == (1, True)


def test_a_collectives_error_with_all_ranks_there_is_what_it_says(sleeper):
    with within(5):
        assert (
            make_watcher(describe_own_process(0), sleeper[0]).find_cause(RuntimeError(GLOO)) is None
        )


@pytest.mark.parametrize("error", [ValueError("gloo"), RuntimeError("shapes differ")])
def test_an_error_of_ones_own_is_not_held_up(sleeper, error):
    with within(0.5):
        assert make_watcher(describe_own_process(0), sleeper[0]).find_cause(error) is None
    assert not hasattr(error, "__notes__")


def test_what_ends_a_process_is_logged_too(caplog, capsys):
    with caplog.at_level(logging.ERROR):
        make_watcher(describe_own_process(0))._report(PeerFailedError("ranks: so it is"))
    assert caplog.messages == ["PeerFailedError: ranks: so it is"]
    assert capsys.readouterr().err == "PeerFailedError: ranks: so it is\n"
