"""Whether another rank still runs, seen from its process."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from seqdata.lightning.ranks.watchdog import LostRank, describe_own_process, find_lost_ranks
from seqdata_testing.waiting import patient, until
from tests.lightning.ranks.watchers import make_watcher


@pytest.fixture
def sleeper():
    """A process that does nothing, as a peer of rank 1."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    stat = Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()
    yield replace(describe_own_process(1), pid=started.pid, start_ticks=int(stat[19])), started
    started.kill()
    started.wait(timeout=patient())


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
    told = make_watcher(
        describe_own_process(0), replace(describe_own_process(1), host="elsewhere")
    ).make_lost_error(RuntimeError("[/a/b/pair.cc:12] Connection closed by peer [10.0.0.7]:4321"))
    cause = "RuntimeError: Connection closed by peer [10.0.0.7]:4321"
    assert str(told) == (
        f"ranks: rank 0 has lost another rank: {cause}. All ranks must run; resume from the "
        "latest checkpoint"
    )
    assert told.details == {"cause": cause}
