"""`as_batch` on two ranks: what one process trains, and padding rows refused by both alike."""

from collections import defaultdict

import pytest

from tests.distributed.shaped import COUNT, run_shaped

pytestmark = pytest.mark.distributed


def sum_by_update(told):
    """Return the sum of the losses of each update over all ranks."""
    sums = defaultdict(float)
    for rank in told:
        for update, loss in rank["losses"]:
            sums[update] += loss
    return dict(sums)


@pytest.mark.shows("I5", by="processes")
def test_two_ranks_have_the_losses_of_one_process(ranks):
    alone = run_shaped({"world": 1})
    told = ranks.play("shaped", 2, {})
    assert [rank["error"] for rank in (alone, *told)] == [None] * 3
    assert [rank["steps"] for rank in told] == [2 * 5] * 2
    assert sum(rank["padding"] for rank in told) == 2  # one in each epoch
    assert sorted(row for rank in told for row in rank["rows"]) == sorted(alone["rows"])
    assert len(alone["rows"]) == 2 * COUNT
    assert sum_by_update(told) == pytest.approx(sum_by_update([alone]), abs=1e-12)
    assert told[0]["parameters"] == told[1]["parameters"]
    assert told[0]["parameters"] == pytest.approx(alone["parameters"], abs=1e-12)


def test_a_function_that_loses_the_weights_is_refused_by_both_ranks(ranks):
    told = ranks.play("shaped", 2, {"bare": True})
    assert told[0]["error"] == told[1]["error"]
    kind, text = told[0]["error"]
    assert kind == "ConfigError"
    assert "9 batches on 2 ranks leave 1 without one, and the result of `as_batch` has no" in text
    assert [rank["steps"] for rank in told] == [0, 0]
