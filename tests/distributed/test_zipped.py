"""Two ranks that train on a batch of each part in every step train what one process does."""

from pathlib import Path

import pytest

from tests.distributed.zipped import STEPS, run_zipped

pytestmark = pytest.mark.distributed

EPOCHS = 3


def dealt(told):
    """Return the steps of all ranks, by epoch and number."""
    return sorted(
        (tuple(step) for rank in told for step in rank["train"]), key=lambda step: step[:2]
    )


def as_plain(steps):
    return [
        (epoch, number, [(own, list(ids)) for own, ids in parts]) for epoch, number, parts in steps
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    return folder, run_zipped({"world": 1, "epochs": EPOCHS, "folder": str(folder), "every": 1})


def checkpoint(folder: Path, number: int) -> str:
    return str(sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))[number])


@pytest.mark.shows("I5", by="processes")
def test_two_ranks_train_what_one_process_does(ranks, alone):
    told = ranks.play("zipped", 2, {"epochs": EPOCHS})
    assert [len(rank["steps"]) for rank in told] == [EPOCHS * -(-STEPS // 2)] * 2
    assert as_plain(dealt(told)) == as_plain(alone[1]["train"])
    assert len({tuple(rank["parameters"]) for rank in told}) == 1
    assert told[0]["parameters"] == pytest.approx(alone[1]["parameters"], abs=1e-12)
    assert {rank["updates"] for rank in told} == {alone[1]["updates"]} == {EPOCHS * 3}


@pytest.mark.shows("I5", by="processes")
def test_a_run_of_one_process_goes_on_with_two(ranks, alone):
    folder, whole = alone
    told = ranks.play("zipped", 2, {"epochs": EPOCHS, "ckpt": checkpoint(folder, 3)})
    done = STEPS + 4  # an update of the second epoch
    assert as_plain(dealt(told)) == as_plain(whole["train"][done:])
    assert told[0]["parameters"] == pytest.approx(whole["parameters"], abs=1e-12)


@pytest.mark.shows("I5", by="processes")
def test_a_run_of_two_ranks_goes_on_alone(ranks, alone, tmp_path):
    ranks.play("zipped", 2, {"epochs": 2, "folder": str(tmp_path), "every": 1})
    rest = run_zipped({"world": 1, "epochs": EPOCHS, "ckpt": checkpoint(tmp_path, 1)})
    assert as_plain(rest["train"]) == as_plain(alone[1]["train"][8:])
    assert rest["parameters"] == pytest.approx(alone[1]["parameters"], abs=1e-12)
