"""Evaluation on any number of ranks is that of one process: each sequence once, sums exact."""

import pytest

from tests.distributed.tasks import exact_mean

pytestmark = pytest.mark.distributed


DATA = [
    {"val": 1},  # one sequence: all ranks but one have padding rows
    {"val": 5},
    {"val": 23},
    {"val": 23, "tail": "repeat"},  # for training only
    {"val": 16, "tail": "drop"},  # for training only
]
AT_EVERY_CHANGE = {(0, 4), (1, 2), (2, 3), (3, 2), (4, 3)}


@pytest.mark.parametrize(
    ("data", "world"),
    [
        pytest.param(
            DATA[one], world, marks=() if (one, world) in AT_EVERY_CHANGE else pytest.mark.nightly
        )
        for one in range(len(DATA))
        for world in (2, 3, 4)
    ],
)
def test_sums_over_any_number_of_ranks_are_those_of_one_process(ranks, data, world):
    alone = exact_mean({"data": data, "world": 1})
    told = ranks.play("exact_mean", world, {"data": data})
    values = [value for one in told for value in one["values"]]
    assert sorted(values) == sorted(alone["values"])
    for one in told:
        assert one["mean"] == pytest.approx(alone["mean"], rel=1e-12, abs=0)
    assert len({one["mean"] for one in told}) == 1


def test_a_tuple_without_weight_is_refused_in_an_uneven_validation_by_every_rank(ranks):
    data = {"count": 32, "val": 5, "as_tuple": ["x", "lengths"], "tail": "drop"}
    told = ranks.play("fit", 2, {"data": data, "trainer": {"max_epochs": 1}})
    assert {one["refused"] for one in told} == {"ConfigError"}
    assert "'weight'" in told[0]["text"]
    assert told[0]["text"] == told[1]["text"]
