"""Ranks with other arguments end at once, with one error, or train the same: none waits."""

import pytest

from tests.lightning.ranks.differing import (
    DATA,
    DATA_FREE,
    LOADER,
    TRAINER,
    TRAINER_FREE,
    list_cases,
)

pytestmark = pytest.mark.distributed
CASES = [
    (of, name, number)
    for of, cases in (("data", DATA), ("trainer", TRAINER))
    for name, number in list_cases(cases)
    if name not in ("test", "predict")  # they are not opened by a fit
]
AT_ONCE = [
    ("data", "transform", 1), ("data", "on_error", 0), ("trainer", "limit_val_batches", 0),
    ("trainer", "val_check_interval", 0), ("trainer", "num_sanity_val_steps", 0),
    ("trainer", "callbacks", 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("of", "name", "number"),
    [
        pytest.param(*case, marks=() if case in AT_ONCE else pytest.mark.nightly) for case in CASES
    ],
)  # fmt: skip
def test_an_argument_that_differs_ends_all_ranks_before_the_first_step(ranks, of, name, number):
    named = {"data": DATA, "trainer": TRAINER}[of][name][number][2]
    spec = {"world": 2, "of": of, "name": name, "number": number, "named": named}
    one, two = ranks.play("differ", 2, spec)
    assert one == two
    assert one["error"].startswith("PlanError: ranks: `")
    assert f"`{named}" in one["error"]
    assert one["train"] == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("of", "name"),
    [("data free", name) for name in DATA_FREE] + [("trainer free", name) for name in TRAINER_FREE],
)
def test_what_may_differ_trains_the_same(ranks, of, name):
    same = ranks.play("differ", 2, {"world": 2, "of": "data free", "name": "stall_timeout"})
    told = ranks.play("differ", 2, {"world": 2, "of": of, "name": name})
    assert told == same


def test_a_checkpoint_on_one_rank_only_ends_all_ranks(ranks, tmp_path):
    ranks.play("fit", 2, {"trainer": {"max_epochs": 1}, "folder": str(tmp_path), "every": 1})
    own = {0: {"ckpt": str(tmp_path / "step=1.ckpt")}}
    told = ranks.play("fit", 2, {"trainer": {"max_epochs": 1}}, ranks=own)
    assert told[0]["text"] == told[1]["text"]
    assert told[0]["text"].startswith("ranks: `ckpt_path` is 'loaded' on rank 0 but None on rank 1")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(*case, marks=() if case[0] in ("batching", "seed") else pytest.mark.nightly)
        for case in list_cases(LOADER)
    ],
)
def test_loaders_of_a_plain_loop_that_differ_end_all_ranks_at_once(ranks, name, number):
    spec = {"name": name, "number": number, "differs": True}
    one, two = ranks.play("play", 2, spec)
    assert one == two
    assert one["error"].startswith("PlanError: loader: ranks: `")
    assert f"`{LOADER[name][number][2]}" in one["error"]
    assert one["ids"] == []


def test_equal_loaders_of_a_plain_loop_go_on(ranks):
    one, two = ranks.play("play", 2, {"name": "seed", "number": 0, "differs": False})
    assert one["error"] is two["error"] is None
    assert sorted(i for ids in one["ids"] + two["ids"] for i in ids) == sorted([*range(23)] * 2)


def test_a_loader_that_one_rank_looks_into_does_not_wait_for_the_others(ranks):
    assert ranks.play("play_alone", 2, {"differs": False}) == [3, 3]
    told = ranks.play("play_alone", 2, {"differs": True})
    assert told[0] == told[1]
    assert told[0].startswith("loader: ranks: `seed` is 0 on rank 0 but 1 on rank 1, which must be")
