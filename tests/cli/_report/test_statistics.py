"""The figures of reports, against counting by hand."""

import numpy as np
import pytest

from seqdata.cli._report.statistics import compute_world_stats
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.plotting.lengths import HistogramBin, histogram
from seqdata.policies.fixed import Bucketed


@pytest.mark.parametrize(
    "lengths", [[0], [7], [5, 5, 5], [0, 0, 3], [1, 1000], [100, 101, 113], [3, 900, 0, 17, 17, 64]]
)
def test_every_sequence_is_in_one_bin(lengths):
    bins = histogram(np.array(lengths, dtype=np.uint32))
    for one in bins:
        assert one.count == sum(one.first <= length <= one.last for length in lengths)
    assert sum(one.count for one in bins) == len(lengths)
    assert [one.last + 1 for one in bins[:-1]] == [one.first for one in bins[1:]]


def test_bins_double_where_lengths_lie_far_apart():
    assert histogram(np.array([0, 1, 5, 9])) == (
        HistogramBin(first=0, last=0, count=1),
        HistogramBin(first=1, last=1, count=1),
        HistogramBin(first=2, last=3, count=0),
        HistogramBin(first=4, last=7, count=1),
        HistogramBin(first=8, last=9, count=1),
    )


def test_bins_are_of_equal_width_where_lengths_lie_close():
    bins = histogram(np.arange(100, 200))
    assert {one.last - one.first for one in bins[:-1]} == {8}
    assert (bins[0].first, bins[-1].last) == (100, 199)


def test_batches_are_measured_with_their_padding():
    plan = Plan([[0, 0, 4], [1, 0, 2], [2, 5, 6]], offsets=[0, 2, 3])
    figures = plan.measures
    assert figures.rows.tolist() == [2, 1]
    assert figures.longest.tolist() == [4, 1]
    assert figures.timesteps.tolist() == [6, 1]
    assert figures.padding.tolist() == [0.25, 0.0]


def test_rows_of_several_spans_are_measured_whole():
    plan = Plan([[0, 0, 4], [1, 0, 2], [2, 0, 3]], rows=[0, 2, 3], offsets=[0, 2])
    figures = plan.measures
    assert (figures.rows.tolist(), figures.longest.tolist()) == ([2], [6])


def test_worlds_count_steps_filler_and_balance():
    spans = [[0, 0, 4], [1, 0, 2], [2, 0, 9]]
    plan = Plan(spans, offsets=[0, 1, 2, 3])
    one, two, four = compute_world_stats(plan, plan.measures, [1, 2, 4])
    assert (one.steps, one.filler, one.balance) == (3, 0, 1.0)
    assert (two.steps, two.filler) == (2, 1)
    assert two.balance == pytest.approx(4 / 3)
    assert (four.steps, four.filler, four.balance) == (1, 1, 1.0)


def test_lanes_take_as_many_steps_as_batches_on_every_world():
    plan = Plan([[0, 0, 4], [1, 0, 2]], offsets=[0, 2], lanes=2)
    (two,) = compute_world_stats(plan, plan.measures, [2])
    assert (two.steps, two.filler, two.balance) == (1, 0, 1.0)


def test_balance_is_near_one_for_batches_of_like_length():
    lengths = np.random.Philox(3).random_raw(4000) % 900 + 1
    index = SequenceIndex.from_lengths(lengths.astype(np.int64))
    plan = Bucketed(8, balance_ranks=8).plan(index, seed=0, epoch=0)
    for one in compute_world_stats(plan, plan.measures, [2, 4, 8]):
        assert 1.0 < one.balance < 1.05
