"""Histograms of lengths: every sequence is in one bar."""

import numpy as np
import pytest

from seqdata.plotting.lengths import chart_lengths, histogram

HEAVY_TAIL = (4 ** (np.random.Philox(2).random_raw(300) % 9)).astype(np.int64)


@pytest.mark.parametrize(
    "lengths",
    [HEAVY_TAIL, [1], [5, 5], [0, 3, 3, 7], [2, 2, 2, 100_000], [0], range(1000), [2**40, 3]],
    ids=["heavy tail", "one", "equal", "with an empty one", "outlier", "empty", "wide", "large"],
)
def test_every_sequence_is_in_the_bar_of_its_length(lengths):
    lengths = np.array(lengths)
    chart = chart_lengths(lengths, "time")
    (counts,) = chart.series.values()
    assert counts.sum() == len(lengths)
    assert len(counts) <= 45
    edges = chart.edges
    assert (np.diff(edges) > 0).all()
    assert np.array_equal(edges, np.round(edges))
    expected = [
        ((edges[i] <= lengths) & (lengths < edges[i + 1])).sum() for i in range(len(counts))
    ]
    assert counts.tolist() == expected


def test_no_sequences_are_one_bar_of_height_0():
    chart = chart_lengths(np.empty(0, dtype=np.int64), "time")
    assert chart.series["sequences"].tolist() == [0]
    assert chart.title == "0 sequences"


def test_lengths_are_counted_in_chunks(monkeypatch):
    expected = chart_lengths(HEAVY_TAIL, "time")
    monkeypatch.setattr("seqdata.plotting.lengths._CHUNK", 7)
    chunked = chart_lengths(HEAVY_TAIL, "time")
    assert chunked.title == expected.title
    assert chunked.series["sequences"].tolist() == expected.series["sequences"].tolist()


def test_idle_rows_are_not_counted_but_named():
    chart = chart_lengths(np.array([0, 4, 0, 9]), None, items="rows", skip_empty=True)
    assert chart.series["rows"].sum() == 2
    assert chart.title == "2 rows and 2 empty ones, 4 to 9 timesteps, mean 6.5"
    assert chart.x_label == "length of a row, timesteps"


def test_ten_million_lengths_are_few_bars():
    lengths = np.random.default_rng(0).integers(1, 5000, 10_000_000, dtype=np.int32)
    chart = chart_lengths(lengths, "time")
    assert chart.series["sequences"].sum() == 10_000_000
    assert len(chart.series["sequences"]) <= 45


def test_the_bins_of_a_repr_double_in_width():
    bins = histogram(np.array([0, 1, 2, 5, 64]))
    bounds = [(each.first, each.last, each.count) for each in bins]
    assert bounds == [
        (0, 0, 1), (1, 1, 1), (2, 3, 1), (4, 7, 1), (8, 15, 0), (16, 31, 0), (32, 63, 0),
        (64, 64, 1),
    ]  # fmt: skip
