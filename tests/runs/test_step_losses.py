"""What is usual around a step, and which steps are far from it."""

import math

import numpy as np
import pytest

from seqdata.runs.loss_files import LossFiles, LossHeader, LossWriter
from seqdata.runs.step_losses import MIN_WINDOW, WINDOW, StepLosses, summarize
from tests.runs.loss_runs import block_of


def table_of(values, levels=None):
    """The table of steps from 0."""
    values = np.asarray(values, dtype=np.float64)
    levels = values if levels is None else np.asarray(levels, dtype=np.float64)
    count = len(values)
    return StepLosses(
        steps=np.arange(count), values=values, levels=levels, batches=np.ones(count, dtype=int)
    )


def read(folder, *ranks):
    """The table of a run whose ranks wrote these batches."""
    for rank, batches in enumerate(ranks):
        header = LossHeader(fit=1, rank=rank, world=len(ranks), score="loss")
        writer = LossWriter(folder, header)
        for batch in batches:
            writer.append(block_of([batch]))
    return StepLosses.read(LossFiles.open([folder]))


def test_a_step_is_the_mean_over_the_rows_of_its_batches_and_ranks(tmp_path):
    table = read(
        tmp_path,
        [(3, 0, 0, [1, 2, 3], [1.0, 2.0, 6.0]), (4, 0, 2, [4], [5.0])],
        [(3, 0, 1, [5], [11.0]), (4, 0, 3, [], np.zeros(0))],
    )
    assert table.steps.tolist() == [3, 4]
    assert table.values.tolist() == [5.0, 5.0]  # not the mean of means
    assert table.batches.tolist() == [2, 1]
    assert table.levels.tolist() == [2.0, 5.0]  # the lower median of medians


def test_batches_without_rows_hide_none_after_them(tmp_path):
    batches = [(3, 0, 0, [], np.zeros(0)), (4, 0, 1, [1], [5.0]), (5, 0, 2, [2], [7.0])]
    table = read(tmp_path, batches)
    assert table.steps.tolist() == [4, 5]
    assert table.values.tolist() == [5.0, 7.0]


def test_losses_of_batches_count_once_for_each_batch(tmp_path):
    table = read(tmp_path, [(0, 0, 0, [1, 2, 3], 1.0), (0, 0, 1, [4], 3.0)])
    assert table.values.tolist() == [2.0]


def test_a_run_without_a_step_is_empty(tmp_path):
    table = read(tmp_path, [])
    assert len(table) == 0
    assert table.find_worst(3) == []
    assert table.find(0) is None


def test_a_step_is_found_or_the_nearest_named(tmp_path):
    table = read(tmp_path, [(step, 0, 0, [1], [1.0]) for step in (2, 5, 9)])
    assert [table.find(step) for step in (1, 2, 5, 9, 10)] == [None, 0, 1, 2, None]
    assert [table.find_nearest(step) for step in (0, 3, 4, 7, 8, 99)] == [2, 2, 5, 5, 9, 9]


def test_usual_is_the_median_of_the_steps_before():
    values = np.r_[np.full(50, 9.0), np.arange(WINDOW), 500.0, np.full(50, 7.0)]
    usual = table_of(values).find_usual(50 + WINDOW)
    assert usual.value == (WINDOW - 1) / 2
    assert usual.spread == pytest.approx(1.4826 * WINDOW / 4)


@pytest.mark.parametrize("before", [0, MIN_WINDOW - 1, MIN_WINDOW])
def test_the_first_steps_are_compared_with_those_after_them_as_well(before):
    values = [*([1.0] * before), 100.0, *([3.0] * 60)]
    usual = table_of(values).find_usual(before)
    assert usual.value == (1.0 if before == MIN_WINDOW else 3.0)


def test_a_step_alone_is_usual():
    usual = table_of([2.5]).find_usual(0)
    assert usual.value == 2.5
    assert usual.score(2.5) == 0
    assert table_of([math.nan]).find_usual(0).value == 0


def test_equal_steps_have_a_spread_that_shows_any_other():
    usual = summarize(np.full(20, 3.0), 3.0)
    assert 0 < usual.spread < 1e-5
    assert usual.score(3.1) > 1000
    assert usual.score(math.nan) == usual.score(math.inf) == math.inf
    assert summarize(np.zeros(20), 0.0).score(1e-30) > 1000


def test_what_is_not_finite_is_not_usual():
    assert summarize(np.array([1.0, math.nan, 3.0, math.inf, 2.0]), 0.0).value == 2.0


@pytest.mark.parametrize("steps", [400, 5_000])
def test_the_worst_steps_are_those_above_their_surroundings(steps):
    draws = np.random.default_rng(steps)
    values = 10 * np.exp(-np.arange(steps) / steps * 4) + 0.05 * draws.normal(size=steps)
    spikes = {steps // 3: 4.0, steps // 2: 8.0, steps - 2: 2.0}
    for step, height in spikes.items():
        values[step] += height
    # the first steps are higher than any spike, but not than those around them
    assert set(table_of(values).find_worst(3)) == set(spikes)


def test_the_first_step_that_is_not_finite_is_the_worst():
    values = np.r_[np.ones(40), 5.0, np.ones(40), np.full(20, math.nan)]
    table = table_of(values)
    assert table.find_first_non_finite() == 81
    assert table.find_worst(2) == [81, 40]
    assert table_of(np.ones(3)).find_first_non_finite() is None
    assert table_of([math.inf] * 3).find_worst(5) == [0]


@pytest.mark.parametrize("values", [[0.5, 9.0], [0.5, 0.6, 9.0]])
def test_with_few_steps_none_stands_out(values):
    table = table_of(values)
    assert table.find_usual(len(values) - 1).score(9.0) == 0.0
    assert summarize(np.array([1.0, 2.0]), 5.0).spread == math.inf
    assert table_of([0.5, 0.6, 0.7, 9.0]).find_usual(3).score(9.0) > 4
