"""Ranks that are killed, stopped or left: the others end in a bound, and say who it was."""

import pickle

import pytest

from seqdata_testing.waiting import patient

pytestmark = pytest.mark.distributed

SHORT = {"heartbeat": 0.5, "unresponsive": patient(3), "exit_grace": 1.0, "leave_grace": 1.0}


def seconds_until_all_ended(answer, folder, hurt):
    struck = float((folder / f"hurt-{hurt}").read_text())
    return max(answer["times"].values()) - struck


@pytest.mark.parametrize("world", [2, 3])
def test_a_killed_rank_ends_ranks_that_wait_for_it_for_ever(ranks, world):
    bounds = SHORT if world > 2 else {}  # once as it is
    hang = {"hurt": {"how": "hang", "at": 2}, "raises": True, "bounds": bounds}
    killed = {1: {"hurt": {"how": "SIGKILL", "at": 2}}}
    answer, folder, logs = ranks.ends("fail", world, hang, ranks=killed, seconds=40)
    assert answer["exits"] == {str(rank): -9 if rank == 1 else 1 for rank in range(world)}, logs
    assert seconds_until_all_ended(answer, folder, 1) < patient(15)
    assert logs.count("PeerFailedError: ranks: rank 0 has lost rank 1 (its process ") == 1
    assert logs.count("has lost rank 1 (its process ") == world - 1
    assert " has ended): RuntimeError: " in logs  # gloo's words: closed or reset, which comes first


KILLED = {"hurt": {"how": "SIGKILL", "at": 2}}
LOST = "seqdata.errors.PeerFailedError: ranks: rank {} has lost rank 1 (its process "


@pytest.mark.parametrize("world", [2, 3])
def test_a_collective_that_fails_because_a_rank_was_killed_says_so(ranks, world):
    answer, folder, logs = ranks.ends("fail", world, {"raises": True}, ranks={1: KILLED})
    assert answer["exits"] == {str(rank): -9 if rank == 1 else 1 for rank in range(world)}, logs
    assert seconds_until_all_ended(answer, folder, 1) < patient(15)
    for rank in {*range(world)} - {1}:
        log = (folder / f"log-{rank}.txt").read_text()
        raised = log[log.rindex("\n\n") :]  # the last of the chain: what the fit raises
        assert "\n" + LOST.format(rank) in raised, log
        assert log.count("The above exception was the direct cause of the following") >= 1


def left(ranks, spec, killed):
    """Return what rank 0 makes of it that rank 1 is killed."""
    answer, folder, logs = ranks.ends("fail", 2, spec, ranks={1: {"hurt": killed}})
    assert answer["exits"] == {"0": 0, "1": -9}, logs
    told = pickle.loads((folder / "made-0.pickle").read_bytes())
    assert (told["class"], told["details"]["rank"]) == ("PeerFailedError", 1), logs
    assert told["context"] == "RuntimeError"
    return told


def test_what_saves_on_exceptions_does_not_hide_that_a_rank_was_killed(ranks, tmp_path):
    told = left(ranks, {"folder": str(tmp_path), "preemption": {}}, KILLED["hurt"])
    ended = [note for note in told["notes"] if note.startswith("and when the run was ended: ")]
    assert len(ended) == 1
    assert "RuntimeError: " in ended[0]
    assert told["signals"]


def test_a_rank_that_is_killed_in_a_test_is_named_too(ranks):
    data = {"val": None, "test": [[[0.5]] * 11] * 20}
    left(
        ranks,
        {"data": data, "evaluates": True, "gathers": True},
        {"how": "SIGKILL", "at": 1, "in_val": True},
    )


def test_a_stopped_rank_ends_the_others(ranks):
    world = 3
    hang = {"hurt": {"how": "hang", "at": 2}, "raises": True, "bounds": SHORT}
    stopped = {1: {"hurt": {"how": "SIGSTOP", "at": 2}}}
    answer, folder, logs = ranks.ends("fail", world, hang, ranks=stopped, seconds=30, stopped=(1,))
    assert answer["exits"] == {str(rank): 1 for rank in range(world) if rank != 1}, logs
    assert seconds_until_all_ended(answer, folder, 1) < patient(10)
    assert " is stopped): RuntimeError: " in logs
    assert logs.count("has lost rank 1 (its process ") == world - 1


@pytest.mark.nightly
def test_a_stopped_rank_ends_the_others_within_a_minute(ranks):
    hang = {"hurt": {"how": "hang", "at": 2}, "raises": True}
    stopped = {1: {"hurt": {"how": "SIGSTOP", "at": 2}}}
    answer, folder, logs = ranks.ends("fail", 2, hang, ranks=stopped, seconds=90, stopped=(1,))
    assert answer["exits"] == {"0": 1}, logs
    assert seconds_until_all_ended(answer, folder, 1) < patient(60)


def test_a_rank_that_fails_by_itself_ends_the_others(ranks):
    hang = {"hurt": {"how": "hang", "at": 2}, "raises": True, "bounds": SHORT}
    answer, _, logs = ranks.ends(
        "fail", 2, hang, ranks={1: {"hurt": {"how": "raise", "at": 2}}}, seconds=30
    )
    assert answer["exits"] == {"0": 1, "1": 1}, logs
    assert (
        "PeerFailedError: ranks: rank 1 has left because of KeyError: 'told to fail'. All ranks "
        "must run; see its traceback, and resume from the latest checkpoint\n"
    ) in logs


def test_a_rank_that_ends_alone_is_named_to_those_that_go_on(ranks):
    spec = {"bounds": SHORT, "count": 9}
    told = ranks.play("draw", 3, spec, ranks={1: {"take": 3}})
    assert told[1]["error"] is None
    assert [one["drawn"] for one in told] == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3]]
    for rank in (0, 2):
        text, details = told[rank]["error"]
        assert details == {"rank": 1, "cause": "it has ended its part"}
        assert text == (
            f"PeerFailedError: ranks: rank 1 has ended its part, but rank {rank} requests another "
            "batch. Decide on all ranks together when to stop."
        )
        assert told[rank]["seconds"] < patient(5)
