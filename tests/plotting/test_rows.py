"""Charts of the rows of a batch."""

import numpy as np
import pytest

from seqdata.plotting.rows import chart_rows

LENGTHS = np.array([3, 5, 0])
ONES = np.ones(3)


def test_a_padded_batch_is_a_grid():
    chart = chart_rows(LENGTHS, ONES, width=5)
    assert chart.measure() == {"scored": 8, "padding": 7}
    assert chart.weights is None


@pytest.mark.parametrize(
    ("layout", "rows", "width", "kinds"),
    [
        ("packed", ("1", "0", "2"), 5, {"scored": 8}),
        ("jagged", ("0", "1", "2"), 5, {"scored": 8}),
        ("varlen", ("",), 8, {"scored": 8}),
    ],
)
def test_other_layouts_have_no_padding(layout, rows, width, kinds):
    chart = chart_rows(LENGTHS, ONES, width=5, layout=layout)
    assert (chart.row_names, chart.width, chart.measure()) == (rows, width, kinds)


def test_rows_of_a_flat_batch_follow_each_other_in_two_colours():
    chart = chart_rows(np.array([3, 5, 2]), ONES, width=5, layout="varlen")
    assert chart.starts.tolist() == [0, 3, 8]
    assert chart.stops.tolist() == [3, 8, 10]
    colors = [chart.categories[kind].color for kind in chart.kinds]
    assert colors[0] == colors[2] != colors[1]


def test_burn_in_and_rows_of_weight_0_are_not_scored():
    chart = chart_rows(LENGTHS, np.array([1, 0, 1]), width=5, burn_in=np.array([2, 1, 0]))
    assert chart.measure() == {"scored": 1, "real, not scored": 7, "padding": 7}


def test_weights_are_drawn_where_they_differ():
    chart = chart_rows(LENGTHS[:2], np.array([0.5, 2.0]), width=5)
    assert chart.weights is not None
    scored = ~np.isnan(chart.weights)
    assert chart.weights[scored].tolist() == [0.5, 2.0]


def test_spans_of_a_row_alternate():
    segments = np.array([[0, 9, 0, 2], [0, 7, 0, 1], [1, 8, 4, 9]])
    chart = chart_rows(LENGTHS[:2], ONES[:2], width=5, segments=segments)
    assert chart.stops.tolist()[:2] == [2, 3]
    first, second = (chart.categories[kind].color for kind in chart.kinds[:2])
    assert first != second
    assert chart.measure() == {"scored": 8, "padding": 2}


def test_the_horizon_comes_after_the_context():
    chart = chart_rows(np.array([4, 4]), ONES[:2], width=4, horizon=2)
    assert chart.measure() == {"context": 8, "future": 4}
    assert chart.width == 6


def test_of_many_rows_some_are_drawn_and_the_title_says_so():
    chart = chart_rows(np.full(10_000, 7), np.ones(10_000), width=7, most=100, title="batch")
    assert len(chart.row_names) == 100
    assert chart.row_names[1] == "100"
    assert chart.title == "batch (100 of 10,000 rows drawn)"


def test_no_rows_are_an_empty_picture():
    chart = chart_rows(np.empty(0, np.int64), np.empty(0), width=1)
    assert (len(chart.kinds), chart.row_names) == (0, ())
