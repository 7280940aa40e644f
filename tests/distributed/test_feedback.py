"""Weights from losses by id on several ranks: any chain of worlds, killed anywhere, is one run."""

import re
from pathlib import Path

import pytest
import torch

from tests.distributed.dealing import list_dealt
from tests.lightning.feeding import feed, saved

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.filterwarnings("ignore:.*inside an update.*:seqdata.errors.SeqDataWarning"),
]


def trained_before(path: Path, per_epoch: int) -> int:
    """Return the plan batches behind a checkpoint."""
    state = torch.load(path)["SequenceDataModule"]
    return state["epoch"] * per_epoch + state["position"]


def same_run(ranks, folder: Path, policy: str, links, **data) -> None:
    """Assert that a chain of worlds is the run of one process.

    Args:
        ranks: Plays parts of the run.
        folder: For checkpoints.
        policy: What is drawn.
        links: World, and the batch of a rank at which the part fails; None: it ends.
    """
    whole = feed(policy)
    per_epoch = len(whole.log_of.train) // 2
    path, done = None, 0
    for number, (world, fail_at) in enumerate(links):
        at = folder / str(number)
        at.mkdir()
        spec = {"world": world, "policy": policy, "folder": str(at), "fail_at": fail_at}
        told = ranks.play("feedback", world, {**spec, "ckpt": path and str(path), "data": data})
        assert [one["error"] for one in told] == [None] * world
        drawn = list_dealt(told)
        assert drawn == whole.log_of.train[done : done + len(drawn)]
        if fail_at is None:
            assert done + len(drawn) == len(whole.log_of.train)
            for one in told:
                expected = pytest.approx(whole.parameters_of(), rel=0, abs=1e-12)
                assert one["parameters"] == expected
        else:
            path = saved(at)[-1]
            done = trained_before(path, per_epoch)


CHAIN = [(1, 9), (2, 6), (1, None)]  # in mid-segment, and at the first batch of one
LONGER = [
    [(1, 9), (2, 6), (4, None)],
    [(4, 3), (2, 5), (1, None)],
    [(2, 7), (4, 4), (2, None)],
    [(1, 30), (4, 2), (1, 7), (2, None)],
    [(4, 2), (4, 6), (1, None)],
    [(2, 8), (1, 8), (4, None)],
]


@pytest.mark.shows("I5", by="processes")
@pytest.mark.parametrize(
    ("policy", "links"),
    [
        ("weighted", CHAIN),
        *(
            pytest.param(policy, links, marks=pytest.mark.nightly)
            for policy in ("weighted", "importance", "token budget", "mix")
            for links in LONGER
        ),
    ],
)
def test_a_chain_of_worlds_that_are_killed_is_one_run(ranks, tmp_path, policy, links):
    same_run(ranks, tmp_path, policy, links)


def test_a_score_that_is_not_finite_ends_all_ranks_with_its_place(ranks, tmp_path):
    spec = {"world": 2, "policy": "weighted", "folder": str(tmp_path), "spoiled": 1}
    told = ranks.play("feedback", 2, spec)
    for one in told:
        assert one["error"].startswith("ConfigError: rank 1: Feedback: 'row_loss' of sequence")


@pytest.mark.parametrize("policy", ["weighted", "mix"])
def test_weights_that_differ_end_all_ranks_where_their_segment_begins(ranks, tmp_path, policy):
    spec = {"world": 2, "policy": policy, "folder": str(tmp_path), "weigh": "by process"}
    one, two = ranks.play("feedback", 2, spec)
    assert one["error"] == two["error"]
    assert re.match(
        r"RanksDifferError: rank 0: Feedback: `weigh` must return the same weights on every rank, "
        r"but at batch 8 of epoch 0 `weights` is '.{8} \(sum .*\)' on rank 0 but .* on rank 1",
        one["error"],
    )


def test_weights_that_cannot_be_made_on_one_rank_end_all(ranks, tmp_path):
    spec = {"world": 2, "policy": "weighted", "folder": str(tmp_path), "weigh": "fails on rank 1"}
    told = ranks.play("feedback", 2, spec)
    assert [one["error"] for one in told] == ["OSError: no weights"] * 2
