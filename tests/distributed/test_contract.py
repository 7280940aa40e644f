"""The items of docs/about/lightning-contract.md that need ranks: what Lightning does to others.

And what two nodes make of one dataset. Items that are kept by our loaders are in ``test_ranks``.
"""

import pytest

from tests.lightning.harness import data_of, fit

pytestmark = pytest.mark.distributed

SAME, REBUILT = "same", "rebuilt"
REFUSED, MISCONFIGURED = "TypeError", "MisconfigurationException"


@pytest.mark.parametrize(
    ("stage", "injected", "expected"),
    [
        (
            "fit",
            True,
            {
                "map": REBUILT,
                "batch_sampler": REFUSED,
                "batch_sampler_over_sampler": REBUILT,
                "plain_sampler": REFUSED,
                "duck": REBUILT,
                "iterable": SAME,
                "no_batch_size": REBUILT,
                "subclass": REBUILT,
                "subclass_outside": MISCONFIGURED,
            },
        ),
        (
            "predict",
            False,
            {
                "map": REBUILT,
                "batch_sampler": REFUSED,
                "batch_sampler_over_sampler": REBUILT,
                "plain_sampler": REBUILT,
                "duck": REBUILT,
                "iterable": REBUILT,
                "no_batch_size": REBUILT,
                "subclass": REBUILT,
                "subclass_outside": MISCONFIGURED,
            },
        ),
    ],
)
def test_item_13_what_becomes_of_a_dataloader(ranks, stage, injected, expected):
    told = ranks.play("inject", 2, {"stage": stage, "injected": injected})
    for one in told:
        assert {name: made["became"] for name, made in one.items()} == expected


def test_item_13_without_injection_nothing_is_rebuilt_and_nothing_is_shared(ranks):
    told = ranks.play("inject", 2, {"stage": "fit", "injected": False})
    assert {made["became"] for one in told for made in one.values()} == {SAME}
    assert told[0]["plain_sampler"]["batches"] == told[1]["plain_sampler"]["batches"]


def test_item_13_a_plan_of_ones_own_is_gone_in_silence(ranks):
    one, two = ranks.play("inject", 2, {"stage": "fit", "injected": True})
    assert one["map"]["batches"] != two["map"]["batches"]
    for made in (one, two):  # the plan was [3, 4], [1, 2], [0, 5]
        assert [len(batch) for batch in made["duck"]["batches"]] == [1, 1, 1]
        assert made["iterable"]["batches"] == [[0, 1], [2, 3], [4, 5]]


def test_item_33_a_mean_logged_at_an_epochs_end_is_exact_on_uneven_ranks(ranks):
    uneven = {0: {"numbers": [1.0, 2.0]}, 1: {"numbers": [3.0, 4.0, 5.0, 9.0]}}
    told = ranks.play("validate", 2, {}, ranks=uneven)
    assert [one["mean"] for one in told] == [pytest.approx(4.0, rel=1e-12)] * 2
    assert [len(one["seen"]) for one in told] == [2, 4]


@pytest.mark.nightly
def test_item_33_a_mean_logged_in_each_step_is_lost_on_uneven_ranks(ranks):
    """The short rank's next collective meets the long rank's step: gloo ends them."""
    uneven = {0: {"numbers": [1.0, 2.0]}, 1: {"numbers": [3.0, 4.0, 5.0, 9.0]}}
    answer, _, logs = ranks.ends("validate", 2, {"on_step": True}, ranks=uneven)
    assert answer["exits"] != {"0": 0, "1": 0}, logs


def test_item_34_the_distributed_sampler_counts_sequences_twice_and_ours_do_not(ranks):
    told = ranks.play("validate", 2, {"count": 5})
    seen = sorted(number for one in told for batch in one["seen"] for number in batch)
    assert seen == [0, 0, 1, 2, 3, 4]
    assert told[0]["mean"] != pytest.approx(2.0)  # of 0 to 4
    data = {"val": None, "test": [[[0.5]] * 3] * 5, "batch": 1}
    ours = ranks.play("test", 2, {"data": data})
    assert sorted(one for batches in ours for ids in batches for one in ids) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("apart", [True, False])
def test_item_18_two_nodes_make_one_plan(ranks, tmp_path, apart):
    """Separate folders are prepared on each node, one folder for all by one process."""
    spec = {"folder": str(tmp_path), "apart": apart, "per_node": apart}
    told = ranks.play("of_node", 4, spec)
    assert [one["prepared"] for one in told] == [True, False, apart, False]
    assert all(one["state"] == told[0]["state"] for one in told)
    assert all(one["parameters"] == told[0]["parameters"] for one in told)
    for epoch in (0, 1):
        ids = [n for one in told for at, _, found in one["train"] if at == epoch for n in found]
        assert sorted(ids) == list(range(11))
    assert {len(one["train"]) for one in told} == {4}


def test_item_18_a_node_without_the_data_is_told_of_on_every_rank(ranks, tmp_path):
    spec = {"folder": str(tmp_path), "apart": True, "per_node": False}
    told = ranks.play("of_node", 4, spec)
    assert {one["refused"] for one in told} == {"ConfigError"}
    assert len({one["text"] for one in told}) == 1
    assert told[0]["text"].startswith("rank 2: ")
    assert "node-1" in told[0]["text"]


def test_item_8_the_length_is_there_on_every_rank_and_the_same(ranks):
    told = ranks.play("fit", 3, {"data": {"count": 27}, "trainer": {"max_epochs": 2}})
    assert {len(one["steps"]) for one in told} == {6}  # 7 batches: 3 steps an epoch
    assert {len(one["val"]) for one in told} == {2}
    assert len(fit(data_of(27), max_epochs=1).log.steps) == 7


def test_item_38_without_a_trainer_the_process_group_says_who_we_are(ranks):
    told = ranks.play("without_a_trainer", 3, {"count": 11})
    assert [one["world"] for one in told] == [(0, 3), (1, 3), (2, 3)]
    assert [one["steps"] for one in told] == [2] * 3
    ids = [number for one in told for batch in one["ids"] for number in batch]
    assert sorted(ids) == list(range(11))


def test_a_plain_loader_that_was_made_before_the_ranks_is_refused_before_the_first_step(ranks):
    for one in ranks.play("plain_loader", 2, {"early": "loader"}):
        assert one["train"] == []
        assert one["error"].startswith(
            "ConfigError: loader: it was made for one process, before the"
        )
        assert "in `train_dataloader` of the LightningModule" in one["error"]


@pytest.mark.parametrize("kind", ["train", "val"])
def test_a_loader_without_its_datamodule_is_refused_by_several_ranks(kind, ranks):
    for one in ranks.play("plain_loader", 2, {"early": kind}):
        assert one["error"].startswith(
            "ConfigError: datamodule: a loader was made for one process, before the process group"
        )


def test_a_plain_loader_that_is_made_when_the_ranks_are_there_is_dealt_out(ranks):
    told = ranks.play("plain_loader", 2, {"early": False})
    assert [len(one["train"]) for one in told] == [3, 3]
    seen = [number for one in told for _, _, ids in one["train"] for number in ids]
    assert sorted(seen) == list(range(11))
