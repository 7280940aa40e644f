"""Charts as numbers: the height of bars, the width of runs, and rows that are a sample."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.plotting.charts import Bars, Category, Strips, sample_rows


def make_bars(*series):
    edges = np.arange(len(series[0]) + 1.0) if series else np.zeros(1)
    named = {str(number): np.array(each) for number, each in enumerate(series)}
    return Bars(edges=edges, series=named, colors={}, x_label="x", y_label="y")


def test_the_top_is_that_of_the_tallest_stack():
    assert make_bars([1, 5], [4, 1]).top == 6
    assert make_bars([0.5, 0.25]).top == 0.5
    assert make_bars([], []).top == 0
    assert make_bars().top == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 20))))
def test_widths_are_added_up_by_name_and_none_is_lost(runs):
    categories = tuple(Category(name=name, color="red") for name in ("a", "b", "a", "c"))
    kinds, starts, widths = np.array(runs, dtype=np.int64).reshape(-1, 3).T
    strips = Strips(
        rows=np.zeros(len(runs), dtype=np.int64), starts=starts.astype(float),
        stops=(starts + widths).astype(float), kinds=kinds, categories=categories,
        row_names=("row",), width=70, x_label="x", y_label="y",
    )  # fmt: skip
    found = strips.measure()
    assert list(found) == ["a", "b", "c"]  # those without a run, too
    assert found["a"] == sum(width for kind, _, width in runs if kind in (0, 2))
    assert sum(found.values()) == widths.sum()


@given(st.integers(0, 10**6), st.integers(1, 500))
def test_sampled_rows_rise_from_the_first_at_even_distances(count, most):
    rows = sample_rows(count, most)
    assert rows.dtype == np.int64
    assert len(rows) == min(count, most)
    if len(rows):
        assert rows[0] == 0
        assert rows[-1] < count
        assert count - rows[-1] <= -(-count // len(rows))  # the last part is not skipped
        steps = np.diff(rows)
        assert steps.size == 0 or (steps.min() >= 1 and np.ptp(steps) <= 1)


@pytest.mark.parametrize(("count", "rows"), [(0, []), (3, [0, 1, 2]), (10, [0, 2, 5, 7])])
def test_all_rows_are_taken_if_they_are_few(count, rows):
    assert sample_rows(count, 4).tolist() == rows
