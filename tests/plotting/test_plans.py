"""Kinds of charts of a plan."""

import numpy as np
import pytest

from seqdata import TBPTT, Bucketed, ConfigError, Mix, Plan
from seqdata.index import SequenceIndex
from seqdata.plotting.batches import PADDING, REAL
from seqdata.plotting.plans import chart_plan, measure_first

LENGTHS = (np.random.Philox(3).random_raw(500) % 40 + 1).astype(np.int64)
INDEX = SequenceIndex.from_lengths(LENGTHS)


def test_a_plan_with_lanes_shows_them_and_another_its_batches():
    assert chart_plan(TBPTT(2, 4).plan(INDEX, seed=0, epoch=0)).y_label == "lane"
    assert chart_plan(Bucketed(4).plan(INDEX, seed=0, epoch=0)).x_label == "batch of the epoch"


def test_lengths_are_those_of_rows():
    plan = Bucketed(4, max_length=10, too_long="split").plan(INDEX, seed=0, epoch=0)
    counts = chart_plan(plan, "lengths").series["rows"]
    assert counts.sum() == len(plan.spans)


@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_parts_of_a_mixture_are_counted(shuffle):
    parts = SequenceIndex.from_parts({"a": INDEX, "b": INDEX})
    mix = Mix({"a": 3, "b": 1}, Bucketed(4, shuffle=shuffle))
    chart = chart_plan(mix.plan(parts, seed=0, epoch=0), "parts")
    assert set(chart.series) == {"a: 75.0 %", "b: 25.0 %"}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("lanes", "plan: `kind` must not be 'lanes' for a plan without lanes. Draw"),
        ("parts", "plan: `kind` must not be 'parts' for a plan of one store. Draw"),
        ("pie", "plan: `kind` must be one of 'batches', 'padding', 'lengths', 'lanes', 'parts', "),
    ],
)
def test_a_kind_that_there_is_not_is_an_error(kind, message):
    with pytest.raises(ConfigError, match=message):
        chart_plan(Bucketed(4).plan(INDEX, seed=0, epoch=0), kind)


@pytest.mark.parametrize("policy", [Bucketed(1), Bucketed(1, shuffle="blocks"), TBPTT(2, 4)])
def test_a_quick_look_measures_the_first_batches(policy):
    plan = policy.plan(INDEX, seed=0, epoch=0)
    quick, whole = measure_first(plan, 100), plan.measures
    assert 100 == len(quick.rows) < len(whole.rows)
    for name in ("rows", "longest", "timesteps"):
        assert getattr(quick, name).tolist() == getattr(whole, name)[:100].tolist()


def test_a_long_plan_in_a_notebook_shows_its_first_batches(monkeypatch):
    monkeypatch.setattr("seqdata.plan._MOST_IN_HTML", 50)
    page = Bucketed(1).plan(INDEX, seed=0, epoch=0)._repr_html_()
    assert "500 batches (the first 50 of 500)" in page


def test_a_notebook_shows_a_plan_with_its_lanes():
    plan = TBPTT(2, 4).plan(INDEX, seed=0, epoch=0)
    page = plan._repr_html_()
    assert page.count("<svg") == 2
    assert "2 lanes" in page


def test_a_plan_of_one_batch_is_drawn():
    chart = chart_plan(Plan([[0, 0, 3], [1, 0, 1]], offsets=[0, 2]))
    assert (chart.series[REAL].tolist(), chart.series[PADDING].tolist()) == ([4], [2])
