"""SVG of charts: well-formed, escaped, without anything from elsewhere, bars as high as numbers."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from seqdata import TBPTT, Bucketed
from seqdata.index import SequenceIndex
from seqdata.plotting.batches import chart_padding, chart_sizes
from seqdata.plotting.charts import Bars
from seqdata.plotting.lengths import chart_lengths
from seqdata.plotting.page import render_figure
from seqdata.plotting.plans import chart_plan
from seqdata.plotting.rows import chart_rows
from seqdata.plotting.svg import find_ticks, format_number, render_svg

LENGTHS = (np.random.Philox(3).random_raw(200) % 900).astype(np.int64)
PLAN = Bucketed(8).plan(SequenceIndex.from_lengths(LENGTHS), seed=0, epoch=0)
LANES = TBPTT(4, 8, advance=6).plan(SequenceIndex.from_lengths(LENGTHS), seed=0, epoch=0)
NASTY = "<script>alert('&\"')</script>"
CHARTS = {
    "sizes": chart_sizes(PLAN.measures, position=3, name=NASTY),
    "padding": chart_padding({NASTY: PLAN.measures}),
    "lengths": chart_lengths(LENGTHS, NASTY),
    "lanes": chart_plan(LANES, label=NASTY, position=30),
    "rows": chart_rows(np.array([3, 1]), np.array([0.5, 1.0]), width=3, title=NASTY),
    "no rows": chart_rows(np.empty(0, np.int64), np.empty(0), width=1, title=NASTY),
    "nothing": chart_lengths(np.empty(0, np.int64), NASTY),
    "named": Bars(
        edges=np.array([0.0, 1, 2]), series={NASTY: np.array([1, 2])}, colors={NASTY: "red"},
        x_label=NASTY, y_label=NASTY, names=(NASTY, "b"),
    ),
}  # fmt: skip


def parse(text):
    return ElementTree.fromstring(text)


@pytest.mark.parametrize("name", CHARTS)
def test_a_picture_is_well_formed_and_needs_nothing_else(name):
    text = render_figure(CHARTS[name])
    parse(text)  # an unescaped name would be an element
    assert "<script" not in text
    shown = "".join(parse(text).itertext())
    assert NASTY in shown or repr(NASTY) in shown
    assert not re.search(r"(href|src|url\(|@import)", text)
    assert set(re.findall(r"https?://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search("nan|inf(?!o)", re.sub(r"<title>.*?</title>|>[^<]*<", "", text))


@pytest.mark.parametrize("name", CHARTS)
def test_text_has_the_colour_of_the_page(name):
    root = parse(render_svg(CHARTS[name]))
    assert root.get("fill") == "currentColor"
    assert all(each.get("fill") is None for each in root.iter("{http://www.w3.org/2000/svg}text"))


def test_bars_are_as_high_as_their_numbers():
    chart = CHARTS["sizes"]
    root = parse(render_svg(chart))
    groups = [group for group in root if group.tag.endswith("}g")]
    for group, values in zip(groups, chart.series.values(), strict=True):
        drawn = np.array([float(rect.get("height")) for rect in group])
        shown = values[values > 0]
        assert np.allclose(drawn / 130 * chart.top, shown, atol=chart.top * 1e-3)


def test_a_bar_says_its_numbers():
    text = render_svg(chart_lengths(np.array([1, 1, 500]), "time"))
    assert "<title>1: 2 sequences</title>" in text


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (0, 3, [0, 1, 2, 3]),
        (0.5, 1.5, [0.6, 0.8, 1.0, 1.2, 1.4]),
        (7, 7, [7]),
        (3960, 4000, [3960, 3970, 3980, 3990, 4000]),
    ],
)
def test_ticks_are_round(low, high, ticks):
    assert find_ticks(low, high) == pytest.approx(ticks)


def test_numbers_of_axes_are_short():
    assert list(map(format_number, [1e6, 0.25, 1 / 3, -2.0])) == [
        "1,000,000",
        "0.25",
        "0.3333",
        "-2",
    ]
