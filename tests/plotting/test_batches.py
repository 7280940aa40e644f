"""Charts of batches sum to what the plan says."""

import numpy as np
import pytest

from seqdata import TBPTT, Plan
from seqdata.index import SequenceIndex
from seqdata.plan_table import PartLabel
from seqdata.plotting.batches import (
    PADDING,
    REAL,
    chart_lanes,
    chart_padding,
    chart_parts,
    chart_ranks,
    chart_sizes,
    list_worst,
)
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.report import BatchMeasures

HEAVY_TAIL = (4 ** (np.random.Philox(2).random_raw(3000) % 7)).astype(np.int64)
NO_BATCHES = BatchMeasures(*np.empty((3, 0), dtype=np.int64))


def plan_of(policy, lengths=HEAVY_TAIL):
    return policy.plan(SequenceIndex.from_lengths(lengths), seed=0, epoch=0)


@pytest.mark.parametrize("batch_size", [1, 7, 1000, 5000])
def test_means_of_bars_sum_to_the_timesteps_and_the_padding_of_the_plan(batch_size):
    plan = plan_of(Bucketed(batch_size))
    chart = chart_sizes(plan.measures)
    batches = np.diff(chart.edges)
    assert chart.series[REAL] @ batches == pytest.approx(plan.report.timesteps)
    padding = plan.report.padded - plan.report.timesteps
    assert chart.series[PADDING] @ batches == pytest.approx(padding)
    assert len(chart.series[REAL]) <= 60
    assert chart.edges[-1] == len(plan)


def test_the_last_bar_may_have_fewer_batches():
    chart = chart_sizes(plan_of(Fixed(1), [1] * 130).measures)
    assert chart.y_label == "timesteps per batch, mean of 3"
    assert np.diff(chart.edges).tolist() == [3] * 43 + [1]
    assert chart.series[REAL].tolist() == [1] * 44


def test_an_epoch_without_batches_is_an_empty_chart():
    assert chart_sizes(NO_BATCHES).series[REAL].tolist() == [0]
    assert chart_padding({"a": NO_BATCHES}).lines["a: 0.0 % padding"][0].size == 0


def test_a_name_comes_before_the_title_and_a_position_is_a_line():
    chart = chart_sizes(
        plan_of(Fixed(2, shuffle=False), [3, 1, 2]).measures, position=1, name="val", total=9
    )
    assert chart.title == "val: 9 batches (the first 2 of 9): 25.0 % padding"
    assert chart.mark == (1, "position: batch 1")


def test_padding_falls_from_the_most_padded_batch_to_the_least():
    plan = plan_of(Fixed(16))
    ((name, (x, y)),) = chart_padding({"fixed": plan.measures}).lines.items()
    assert y[0] == 100 * plan.measures.padding.max()
    assert y[-1] == 100 * plan.measures.padding.min()
    assert (x[0], x[-1]) == (0, 100)
    assert (np.diff(y) <= 0).all()
    assert name == f"fixed: {100 * (1 - 1 / plan.report.waste):.1f} % padding"


def test_many_ranks_share_bars():
    real = np.arange(300).reshape(3, 100)
    chart = chart_ranks(real, real + 1)
    assert chart.series[REAL].sum() * 2 == real.sum()
    assert chart.series[PADDING].tolist() == [3] * 50
    assert len(chart.names) == 50
    assert chart.y_label == "timesteps per epoch, mean of 2"


def test_parts_are_counted_by_batches_or_by_rows():
    of_batches = chart_parts([PartLabel("a", 0), PartLabel("b", 0), PartLabel("a", 0)])
    assert {name: each.tolist() for name, each in of_batches.series.items()} == {
        "a: 66.7 %": [100, 0, 100],
        "b: 33.3 %": [0, 100, 0],
    }
    of_rows = chart_parts([PartLabel(["a", "b", "b", "b"], [0, 0, 0, 0])])
    assert of_rows.y_label == "share of rows, %"
    assert of_rows.series["b: 75.0 %"].tolist() == [75]
    assert chart_parts([]).title == "0 parts, 0 batches"


def test_many_batches_of_parts_are_counted_together():
    chart = chart_parts([PartLabel("ab"[number % 2], 0) for number in range(1001)])
    assert chart.y_label == "share of batches, %"
    assert sum(chart.series.values()) == pytest.approx(100)
    assert chart.series["a: 50.0 %"] @ np.diff(chart.edges) == pytest.approx(50_100)
    assert all(len(each) <= 60 for each in chart.series.values())


def lanes_of(policy, lengths, **options):
    plan = plan_of(policy, lengths)
    chart = chart_lanes(
        plan.batch, steps=len(plan), lanes=plan.lanes, overlap=plan.overlap, carry=plan.carry,
        **options,
    )  # fmt: skip
    return plan, chart


SEQUENCE = "a sequence (colours alternate)"
CONTEXT = "context, not scored (pale)"


def test_a_lane_shows_its_sequences_their_resets_padding_and_what_is_idle():
    plan, chart = lanes_of(TBPTT(2, 4, shuffle=False), [8, 2])  # lane 1 reads a short one
    assert chart.row_names == ("0", "1")
    assert chart.measure() == {SEQUENCE: 2.5, "padding": 0.5, "idle": 1.0}
    assert chart.marks[0].tolist() == [[0, 0], [1, 0]]
    assert chart.marks[1] == "reset: a sequence begins"
    assert len(plan) == 2


def test_the_next_sequence_of_a_lane_has_another_colour_and_the_same_one_keeps_its():
    _, chart = lanes_of(TBPTT(1, 4, shuffle=False), [8, 4, 4])
    colors = [chart.categories[kind].color for kind in chart.kinds]
    assert colors[0] == colors[1]
    assert len({colors[1], colors[2], colors[3]}) == 3
    assert len({category.name for category in chart.categories}) == 1


def test_context_is_told_from_what_is_scored():
    _, chart = lanes_of(TBPTT(1, 4, advance=2, shuffle=False), [6])
    assert chart.measure() == {SEQUENCE: 1.5, CONTEXT: 0.5}


def test_a_stream_is_reset_with_the_epoch_only():
    _, chart = lanes_of(TBPTT(1, 4, continuous=True, shuffle=False), [3, 5])
    assert chart.marks[0].tolist() == [[0, 0]]
    assert chart.marks[1] == "reset, with the epoch"


@pytest.mark.parametrize(
    ("policy", "lengths"),
    [
        (TBPTT(3, 4, segments=True), [3, 9, 5, 1, 1]),
        (TBPTT(2, 8, continuous=True, jitter=True), [50, 60, 70]),
        (TBPTT(300, 2), [5] * 400),
        (TBPTT(1, 1), [4000]),
        (TBPTT(2, 4), []),
    ],
)
def test_lanes_fill_the_picture(policy, lengths):
    plan, chart = lanes_of(policy, lengths)
    steps, lanes = min(40, len(plan)), min(64, plan.lanes)
    assert sum(chart.measure().values()) == pytest.approx(steps * lanes)
    assert len(chart.row_names) == lanes


def test_drawn_timesteps_are_those_of_the_plan():
    plan, chart = lanes_of(TBPTT(3, 8, advance=6), HEAVY_TAIL[:90] % 50 + 1)
    assert len(plan) > 40
    timesteps = 0.0
    for step in range(40):
        own = (chart.starts >= step) & (chart.stops <= step + 1)
        kinds = [chart.categories[kind].name for kind in chart.kinds[own]]
        read = np.array([kind in (SEQUENCE, CONTEXT) for kind in kinds])
        longest = plan.batch(step).lengths.max()
        timesteps += ((chart.stops - chart.starts)[own][read] * longest).sum()
    assert timesteps == pytest.approx(plan.measures.timesteps[:40].sum())


def test_steps_near_the_position_are_drawn():
    plan, chart = lanes_of(TBPTT(1, 1), [4000], position=3990)
    assert (chart.first, chart.width) == (3960, 4000)
    assert chart.line == (3990, "position: step 3,990")
    assert chart.title == "1 lanes, 4,000 steps (steps 3,960 to 3,999 drawn)"
    assert len(plan) == 4000


def test_the_worst_batches_are_those_with_most_timesteps_after_padding():
    plan = Plan([[0, 0, 3], [1, 0, 9], [2, 0, 5], [3, 0, 5]], offsets=[0, 2, 3, 4])
    worst = list_worst(plan.measures, 2)
    assert worst[0] == {"batch": 0, "rows": 2, "longest": 9, "timesteps": 12, "padded": 18}
    assert worst[1]["batch"] == 1  # of equal ones the first
    assert len(worst) == 2
