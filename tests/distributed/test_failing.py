"""Ranks fail together: what goes wrong on one is the same error, or a stop in a bound, on all."""

import pytest

from seqdata_testing.waiting import patient

pytestmark = pytest.mark.distributed


def same(told, *names):
    """Say whether all ranks told the same."""
    return all(one[name] == told[0][name] for one in told for name in names)


@pytest.fixture(scope="module")
def plain(ranks):
    """What two ranks tell of a run to which nothing happens."""
    return ranks.play("fail", 2, {})


MANY = {"count": 40, "val": 9}


@pytest.fixture(scope="module")
def undisturbed(ranks):
    """What two ranks tell of a longer run to which nothing happens."""
    return ranks.play("fail", 2, {"data": MANY})


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.nightly), 3])
def test_an_error_in_the_data_of_one_rank_is_raised_by_all(ranks, world):
    bad = {"transform": {"how": "decode"}}
    told = ranks.play("fail", world, {}, ranks={1: bad})
    assert same(told, "class", "text", "details", "global_step"), told
    assert told[0]["class"] == "DecodeError"
    assert told[0]["text"].startswith("rank 1: field 'x' is bad")
    assert told[0]["details"] | {"rank": 1, "shard": 7} == told[0]["details"]
    assert "Traceback" in told[0]["cause"]
    assert "in __call__" in told[0]["cause"]
    assert max(one["seconds"] for one in told) < patient(10)


def test_somebody_elses_error_keeps_its_class_and_names_the_rank(ranks):
    told = ranks.play("fail", 2, {}, ranks={0: {"transform": {"how": "raise"}}})
    assert same(told, "class", "text", "notes")
    assert (told[0]["class"], told[0]["text"]) == ("ValueError", "nine is too many")
    assert "on rank 0" in told[1]["notes"]


def test_an_error_that_cannot_be_sent_is_told_in_words(ranks):
    here, there = ranks.play("fail", 2, {}, ranks={0: {"transform": {"how": "odd"}}})
    assert (here["class"], there["class"]) == ("OddError", "PeerFailedError")
    assert there["text"].startswith("ranks: rank 0 failed: OddError: nine is too many")
    assert "(it cannot be pickled: " in there["text"]


VAL = [[[0.5]] * 11] * 9
BAD = {"transform": {"how": "decode", "length": 11, "spare": 2}}  # a rank's second batch


def test_an_error_in_the_validation_of_one_rank_is_raised_by_all(ranks):
    told = ranks.play("fail", 2, {"data": {"val": VAL}}, ranks={1: BAD})
    assert same(told, "class", "text", "details", "global_step")
    assert (told[0]["class"], told[0]["global_step"]) == ("DecodeError", 3)
    assert [len(one["val"]) for one in told] == [1, 1]


def test_an_error_in_the_test_data_of_one_rank_is_raised_by_all(ranks):
    spec = {"evaluates": True, "data": {"test": VAL, "val": None}}
    told = ranks.play("fail", 2, spec, ranks={1: BAD})
    assert same(told, "class", "text", "details")
    assert told[0]["class"] == "DecodeError"


def test_the_death_of_a_worker_of_one_rank_is_raised_by_all(ranks):
    spec = {"data": {"num_workers": 1, "start_method": "fork"}}
    told = ranks.play("fail", 2, spec, ranks={1: {"transform": {"how": "die"}}})
    assert same(told, "class", "text", "details", "global_step")
    assert told[0]["class"] == "WorkerDiedError"
    assert told[0]["text"].startswith("rank 1: ")
    assert max(one["seconds"] for one in told) < patient(10)


def test_a_run_that_all_ranks_left_with_one_error_goes_on_as_if_nothing_was(ranks, plain, tmp_path):
    bad = {"transform": {"how": "decode", "spare": 2}}
    spec = {"folder": str(tmp_path)}
    cut = ranks.play("fail", 2, spec, ranks={1: bad})
    assert 0 < cut[0]["global_step"] < 6, cut
    on = ranks.play("fail", 2, {**spec, "ckpt": str(tmp_path / "saved.ckpt")})
    for rank in range(2):
        assert cut[rank]["train"] + on[rank]["train"] == plain[rank]["train"]
        assert on[rank]["parameters"] == plain[rank]["parameters"]
        assert cut[rank]["val"] + on[rank]["val"] == plain[rank]["val"]


@pytest.mark.parametrize(
    ("hurt", "world"),
    [
        ("one", 2),
        ("all", 2),
        pytest.param("one", 3, marks=pytest.mark.nightly),
        pytest.param("all", 3, marks=pytest.mark.nightly),
    ],
)
def test_a_signal_to_any_rank_stops_all_at_the_same_batch(
    ranks, undisturbed, tmp_path, world, hurt
):
    spec = {"data": MANY, "folder": str(tmp_path), "preemption": {}}
    whole = undisturbed if world == 2 else ranks.play("fail", world, {"data": MANY})
    struck = {"hurt": {"how": "SIGTERM", "at": 1}}
    told = (
        ranks.play("fail", world, spec | struck)
        if hurt == "all"
        else ranks.play("fail", world, spec, ranks={world - 1: struck})
    )
    assert same(told, "class", "text", "details", "steps")
    assert told[0]["class"] == "PreemptedError"
    rank = 0 if hurt == "all" else world - 1
    assert told[0]["details"] == {"rank": rank, "cause": "SIGTERM"}
    assert told[0]["text"] == (
        f"preempted: rank {rank} was requested to stop by SIGTERM, and every rank stops before "
        "the same batch. Resume from the checkpoint that "
        "ModelCheckpoint(save_on_exception=True) saves"
    )
    assert told[0]["global_step"] == 3  # one batch was drawn ahead
    assert max(one["seconds"] for one in told) < patient(10)
    assert all(one["signals"] for one in told)
    on = ranks.play("fail", world, {**spec, "ckpt": str(tmp_path / "saved.ckpt")})
    for one in range(world):
        assert told[one]["train"] + on[one]["train"] == whole[one]["train"]
        assert on[one]["parameters"] == whole[one]["parameters"]


def test_a_signal_to_ranks_and_their_workers_leaves_no_process(ranks):
    data = {"count": 40, "num_workers": 1, "start_method": "fork"}
    spec = {"data": data, "preemption": {}, "hurt": {"how": "SIGTERM", "at": 1}}
    told = ranks.play("fail", 2, spec)
    assert same(told, "class", "text", "details", "steps")
    assert told[0]["class"] == "PreemptedError"
    assert [[there for _, there in one["workers"]] for one in told] == [[False]] * 2
    assert max(one["seconds"] for one in told) < patient(10)


def test_a_signal_in_a_validation_loses_nothing(ranks, undisturbed, tmp_path):
    whole = undisturbed
    spec = {"data": MANY, "folder": str(tmp_path), "preemption": {"signals": ["SIGUSR1"]}}
    told = ranks.play(
        "fail", 2, spec, ranks={1: {"hurt": {"how": "SIGUSR1", "at": 0, "in_val": True}}}
    )
    assert same(told, "class", "text", "details", "steps")
    assert told[0]["class"] == "PreemptedError"
    on = ranks.play("fail", 2, {**spec, "ckpt": str(tmp_path / "saved.ckpt")})
    for one in range(2):
        assert told[one]["train"] + on[one]["train"] == whole[one]["train"]
        assert on[one]["parameters"] == whole[one]["parameters"]
        assert on[one]["val"] == whole[one]["val"]


def test_a_normal_end_costs_no_wait_and_no_alarm(plain):
    assert [(one["class"], one["notes"]) for one in plain] == [("NoneType", [])] * 2
    assert max(one["seconds"] for one in plain) < patient(4)


def test_iterations_that_are_left_early_on_all_ranks_do_not_hang(ranks):
    spec = {"bounds": {}, "count": 9, "take": 2, "rounds": 3}
    told = ranks.play("draw", 3, spec)
    assert [(one["drawn"], one["error"]) for one in told] == [([0, 1] * 3, None)] * 3
    assert max(one["left"] for one in told) < patient(2)


def test_ranks_that_have_unequally_many_batches_end_with_one_error(ranks):
    told = ranks.play("draw", 3, {"bounds": {}, "count": 5}, ranks={2: {"count": 4}})
    assert same(told, "drawn", "error")
    assert told[0]["drawn"] == [0, 1, 2, 3]
    assert told[0]["error"] == (
        "IncompleteEpochError: ranks: rank 2 has no batch left, but 2 of 3 ranks have one. Give "
        "every rank the same limits.",
        {"rank": 2},
    )


def test_agreeing_is_hidden_behind_the_step(ranks, capsys):
    told = ranks.play("steps", 2, {"count": 200, "pause": 0.003})
    added = [one["agreed"] - one["alone"] for one in told]
    with capsys.disabled():
        print(f" agreeing adds {added[0]:.0f} and {added[1]:.0f} us to a step", end="")
    assert max(added) < patient(1000)


def test_the_batch_that_was_handed_out_is_not_the_one_that_was_drawn_ahead(plain):
    for told in plain:
        assert told["handed"] == [(step, step) for step in (0, 1, 2)] * 2


def test_looking_at_a_batch_on_one_rank_asks_no_other(ranks, plain):
    told = ranks.play("fail", 2, {"looks": True})
    assert [one["train"] for one in told] == [one["train"] for one in plain]
    assert max(one["seconds"] for one in told) < patient(4)
