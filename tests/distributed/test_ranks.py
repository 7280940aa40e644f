"""Two ranks of a real Trainer: equal steps, each sequence once, the same state, the same errors."""

import pytest

from tests.lightning.harness import data_of, fit

pytestmark = pytest.mark.distributed


def ids_of(batches) -> list[int]:
    return sorted(one for batch in batches for one in batch)


def test_ranks_take_equal_steps_and_each_sequence_once(ranks):
    one, two = ranks.play("fit", 2, {"data": {"count": 27}, "trainer": {"max_epochs": 2}})
    assert one["steps"] == two["steps"] == [(epoch, step) for epoch in (0, 1) for step in range(4)]
    for epoch in (0, 1):
        of_epoch = [entry[2] for told in (one, two) for entry in told["train"] if entry[0] == epoch]
        assert ids_of(of_epoch) == list(range(27))
    for step in (4, 8):  # five sequences in three batches: rank 1 gets a padding row
        assert ids_of(ids for told in (one, two) for at, ids in told["val"] if at == step) == [
            0,
            1,
            2,
            3,
            4,
        ]
    assert len(one["val"]) == len(two["val"])
    assert one["parameters"] == two["parameters"]


def test_ranks_share_the_batches_of_one_process(ranks):
    alone = fit(data_of(27), max_epochs=1)
    one, two = ranks.play("fit", 2, {"data": {"count": 27}, "trainer": {"max_epochs": 1}})
    dealt = [entry for step in zip(one["train"], two["train"], strict=True) for entry in step]
    assert dealt[:7] == alone.log.train
    assert dealt[7] == (0, 6, ())


@pytest.mark.parametrize("injected", [True, False])
def test_the_trainers_sampler_injection_changes_nothing(ranks, injected):
    trainer = {"max_epochs": 1, "use_distributed_sampler": injected}
    one, two = ranks.play("fit", 2, {"trainer": trainer})
    assert ids_of(entry[2] for entry in one["train"] + two["train"]) == list(range(23))


def test_the_state_is_the_same_on_every_rank(ranks):
    one, two = ranks.play("fit", 2, {"trainer": {"max_epochs": 2}, "states": True})
    assert one["states"] == two["states"]
    places = [(state["epoch"], state["position"]) for state in one["states"]]
    assert places == [(0, 2), (0, 4), (1, 0), (1, 2), (1, 4), (2, 0)]


def test_every_rank_tests_and_predicts_its_share_without_dummy_rows(ranks):
    data = {"val": None, "test": [[[0.5]] * 3] * 5, "predict": [[[0.5]] * 3] * 7, "batch": 2}
    one, two = ranks.play("test", 2, {"data": data})
    assert ids_of(one + two) == [0, 1, 2, 3, 4]
    one, two = ranks.play("predict", 2, {"data": data})
    assert ids_of(one + two) == list(range(7))


def test_three_sequences_train_on_four_ranks(ranks):
    told = ranks.play(
        "fit", 4, {"data": {"count": 3, "batch": 1, "val": None}, "trainer": {"max_epochs": 1}}
    )
    assert ids_of(entry[2] for one in told for entry in one["train"]) == [0, 1, 2]
    assert [one["steps"] for one in told] == [[(0, 0)]] * 4


def test_dropping_the_tail_leaves_out_the_last_uneven_step(ranks):
    data = {"count": 27, "tail": "drop", "as_tuple": None}
    one, two = ranks.play("fit", 2, {"data": data, "trainer": {"max_epochs": 1}})
    assert [entry[1] for entry in one["train"]] == [0, 2, 4]
    assert [entry[1] for entry in two["train"]] == [1, 3, 5]


def test_repeating_the_tail_is_for_training_only(ranks):
    data = {"count": 27, "tail": "repeat"}
    one, two = ranks.play("fit", 2, {"data": data, "trainer": {"max_epochs": 1}})
    assert two["train"][3] == (0, 0, one["train"][0][2])
    assert ids_of(ids for _, ids in one["val"] + two["val"]) == [0, 1, 2, 3, 4]


def test_a_tuple_without_weight_is_refused_on_an_uneven_tail_by_every_rank(ranks):
    data = {"count": 27, "as_tuple": ["x", "lengths"], "val": None}
    told = ranks.play("fit", 2, {"data": data, "trainer": {"max_epochs": 1}})
    assert {one["refused"] for one in told} == {"ConfigError"}
    assert "'weight'" in told[0]["text"]
    assert told[0]["text"] == told[1]["text"]


def test_batches_per_update_must_be_a_multiple_of_the_ranks(ranks):
    data = {"batches_per_update": 3}
    told = ranks.play("fit", 2, {"data": data, "trainer": {"max_epochs": 1}})
    wanted = "`batches_per_update` must be a multiple of the 2 ranks, but is 3. Pass 4"
    assert [wanted in one["text"] for one in told] == [True, True]


def test_ranks_with_other_data_are_told_so_on_every_rank(ranks):
    told = ranks.play("fit", 2, {"trainer": {"max_epochs": 1}}, ranks={1: {"data": {"count": 24}}})
    assert [one["refused"] for one in told] == ["PlanError", "PlanError"]
    assert told[0]["text"] == told[1]["text"]
    assert "`data of train 0` is" in told[0]["text"]


def test_ranks_at_other_places_are_told_so_on_every_rank(ranks, tmp_path):
    ranks.play("fit", 2, {"trainer": {"max_epochs": 1}, "folder": str(tmp_path), "every": 1})
    other = {"ckpt": str(tmp_path / "step=2.ckpt")}
    spec = {"trainer": {"max_epochs": 1}, "ckpt": str(tmp_path / "step=1.ckpt")}
    told = ranks.play("fit", 2, spec, ranks={1: other})
    assert [one["text"] for one in told] == [
        (
            "ranks: `position` is 2 on rank 0 but 4 on rank 1, which must be equal. Give every "
            "rank the same packages, data, options and checkpoint"
        )
    ] * 2


def test_plans_that_differ_by_rank_are_told_so_before_the_first_step(ranks):
    spec = {"trainer": {"max_epochs": 1}, "data": {"impure": True}}
    told = ranks.play("fit", 2, spec)
    assert told[0]["text"] == told[1]["text"]
    assert told[0]["text"].startswith("ranks: `plan` is ")


def test_an_error_on_one_rank_is_the_same_error_on_all(ranks, tmp_path):
    missing = {"data": {"val": str(tmp_path / "nowhere")}}
    told = ranks.play("fit", 2, {"trainer": {"max_epochs": 1}}, ranks={1: missing})
    assert told[0]["refused"] == told[1]["refused"] == "ConfigError"
    assert told[0]["text"] == told[1]["text"]
    assert told[0]["text"].startswith("rank 1: ")


def test_equal_ranks_agree(ranks):
    assert ranks.play("compare", 2, {"position": 4}) == ["equal", "equal"]


def test_a_fact_that_differs_is_named_on_every_rank(ranks):
    told = ranks.play("compare", 3, {"position": 4}, ranks={2: {"position": 5}})
    wanted = "PlanError: ranks: `position` is 4 on ranks 0, 1 but 5 on rank 2, which must be equal"
    assert [one.startswith(wanted) for one in told] == [True] * 3


def test_an_error_keeps_class_and_details_on_every_rank(ranks):
    told = ranks.play("compare", 2, {"position": 4, "failing": 1})
    assert told == ["DecodeError: rank 1: field 'x' is bad {'shard': 7, 'rank': 1}"] * 2


def test_the_world_is_the_data_parallel_one(ranks):
    assert ranks.play("parallel_world", 4, {}) == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_ranks_of_a_replica_train_on_the_same_batches_and_replicas_on_others(ranks):
    """Two by two ranks under the Trainer."""
    told = ranks.play("fit_on_mesh", 4, {"count": 27})
    for one, other in ((0, 1), (2, 3)):
        assert told[one]["train"] == told[other]["train"]
        assert told[one]["val"] == told[other]["val"]
    assert all(one["state"] == told[0]["state"] for one in told)
    for epoch in (0, 1):
        found = [entry for rank in (0, 2) for entry in told[rank]["train"] if entry[0] == epoch]
        assert ids_of(entry[2] for entry in found) == list(range(27))
    of_replica = [[entry[1] for entry in told[rank]["train"] if entry[2]] for rank in (0, 2)]
    assert of_replica == [[0, 2, 4, 6] * 2, [1, 3, 5] * 2]


@pytest.mark.nightly
def test_a_run_on_a_mesh_goes_on_from_a_checkpoint(ranks, tmp_path):
    told = ranks.play("fit_on_mesh", 4, {"count": 27, "folder": str(tmp_path)})
    for step, done in ((1, 2), (3, 6)):
        spec = {"count": 27, "ckpt": str(tmp_path / f"step={step}.ckpt")}
        rest = ranks.play("fit_on_mesh", 4, spec)
        for rank in range(4):
            assert rest[rank]["train"] == told[rank]["train"][done:]


def test_a_tuple_without_weight_is_refused_where_the_rest_of_an_epoch_is_uneven(ranks, tmp_path):
    data = {"count": 32, "as_tuple": ["x", "lengths"], "val": None}
    fit(data_of(32), folder=tmp_path, every=1, max_epochs=1)
    spec = {"data": data, "trainer": {"max_epochs": 1}, "ckpt": str(tmp_path / "step=3.ckpt")}
    told = ranks.play("fit", 2, spec)
    assert [one["refused"] for one in told] == ["ConfigError"] * 2
    assert "5 batches on 2 ranks leave 1 without one, and ('x', 'lengths') has" in told[0]["text"]
