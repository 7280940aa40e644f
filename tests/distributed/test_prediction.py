"""Two ranks write one store, the same to the byte as one process writes; their mean is exact."""

import pytest

from tests.distributed.tasks import exact_mean, written_data
from tests.lightning.predictions.predicting import files_of, predict, read

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("data", "writer"),
    [
        # 27 sequences in batches of 2: 14 batches
        pytest.param({}, {}, marks=pytest.mark.nightly),
        ({"count": 25}, {}),  # 13 batches: the last step has one
        ({"take": [5, 2, 5, 0, 2, 22, 9]}, {}),
        ({"split": 3}, {"field": "steps"}),
        ({"split": 2}, {"per": {"sum": "span"}}),
        ({"named": 11}, {}),
        ({"count": 3, "batch": 1}, {}),
    ],
)
def test_two_ranks_write_what_one_process_writes(ranks, tmp_path, data, writer):
    predict(written_data(**data), tmp_path / "alone", **writer)
    spec = {"data": data, "writer": writer, "location": str(tmp_path / "two")}
    assert ranks.play("write_predictions", 2, spec) == ["", ""]
    assert files_of(tmp_path / "two") == files_of(tmp_path / "alone")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "two"]


def test_a_rank_that_has_dummy_rows_only_writes_nothing(ranks, tmp_path):
    data, writer = {"count": 3, "batch": 4}, {"per": "sequence", "field": "sum"}
    spec = {"data": data, "writer": writer, "location": str(tmp_path / "out")}
    assert ranks.play("write_predictions", 2, spec) == ["", ""]
    assert read(tmp_path / "out")["id"] == ["s0", "s1", "s2"]


def test_a_wrong_first_output_is_told_on_every_rank(ranks, tmp_path):
    spec = {"location": str(tmp_path / "out")}
    wrong = {1: {"model": {"gives": "many"}}}
    told = ranks.play("write_predictions", 2, spec, ranks=wrong)
    assert told[0] == told[1]
    assert told[0].startswith("ConfigError: rank 1: PredictionWriter: prediction 'prediction' must")
    assert not list(tmp_path.iterdir())


def test_ranks_that_predict_different_things_are_told_so(ranks, tmp_path):
    spec = {"location": str(tmp_path / "out")}
    told = ranks.play("write_predictions", 2, spec, ranks={1: {"model": {"gives": "flags"}}})
    assert told[0] == told[1]
    assert "but are prediction on rank 1, and steps, sum elsewhere" in told[0]
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_there_is_told_on_every_rank(ranks, tmp_path):
    predict(written_data(), tmp_path / "out")
    before = files_of(tmp_path)
    told = ranks.play("write_predictions", 2, {"location": str(tmp_path / "out")})
    assert told[0] == told[1]
    assert "already holds a store" in told[0]
    assert files_of(tmp_path) == before


def test_nothing_is_left_when_all_ranks_fail(ranks, tmp_path):
    spec = {"location": str(tmp_path / "out"), "model": {"fail_at": 3}}
    told = ranks.play("write_predictions", 2, spec)
    assert told == ["OSError: told to fail"] * 2
    assert not list(tmp_path.iterdir())


def test_a_limit_is_refused_by_every_rank_before_it_begins(ranks, tmp_path):
    spec = {"location": str(tmp_path / "out"), "model": {"fail_at": 0}}
    told = ranks.play("write_predictions", 2, {**spec, "data": {"count": 25}, "limit": 3})
    assert told[0] == told[1]
    assert "only 6 of 13 batches would be predicted" in told[0]


def test_the_exact_mean_is_that_of_one_process_and_the_mean_of_means_is_not(ranks):
    spec = {"data": {"val": 5}}  # three batches: rank 1 gets a padding row
    alone = exact_mean({**spec, "world": 1})
    one, two = ranks.play("exact_mean", 2, spec)
    assert one["mean"] == two["mean"] == pytest.approx(alone["mean"], rel=1e-12)
    assert alone["mean"] == pytest.approx(sum(alone["values"]) / len(alone["values"]), rel=1e-12)
    means = [sum(told["values"]) / len(told["values"]) for told in (one, two)]
    assert sum(means) / 2 != pytest.approx(alone["mean"], rel=1e-3)
