"""HTML of tables and pages: whatever is shown is escaped, and a page needs nothing else."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.plotting.charts import Bars
from seqdata.plotting.page import (
    render_figure,
    render_line,
    render_object,
    render_page,
    render_table,
)

NASTY = "<script>alert('&\"')</script>"
SHOWN = st.text("a1 <>&'\"é中", max_size=4)


def parse(text):
    return ElementTree.fromstring(text)


def cells_of(text, tag):
    return ["".join(cell.itertext()) for cell in parse(text).iter(tag)]


def make_bars(title):
    return Bars(edges=np.array([0.0, 1]), series={"a": np.array([2])}, colors={"a": "red"},
                x_label="x", y_label="y", title=title)  # fmt: skip


@given(st.lists(SHOWN, min_size=1, max_size=3), st.data())
def test_a_table_shows_every_text_as_it_is(columns, data):
    row = st.lists(SHOWN, min_size=len(columns), max_size=len(columns))
    rows = data.draw(st.lists(row, max_size=3))
    text = render_table(columns, iter(rows))
    assert cells_of(text, "th") == columns
    assert cells_of(text, "td") == [each for row in rows for each in row]


def test_tables_escape_and_set_numbers_to_the_right():
    text = render_table(("name", "count"), [(NASTY, 1234), ("b", 5)])
    assert "<script" not in text
    assert '<td class="number" style="text-align: right">1,234</td>' in text
    assert '<th class="number" style="text-align: right">count</th>' in text
    assert "<td>b</td>" in text
    assert "<th>name</th>" in text


@pytest.mark.parametrize("values", [(1, "-"), (True, False), (None, 2)])
def test_a_column_is_of_numbers_if_all_its_values_are(values):
    text = render_table(("count",), [(value,) for value in values])
    assert "right" not in text
    assert cells_of(text, "td") == list(map(str, values))


def test_a_table_without_rows_has_its_head():
    text = render_table(("a", "b"), [])
    assert cells_of(text, "th") == ["a", "b"]
    assert "right" not in text


def test_the_title_of_a_chart_is_its_caption():
    text = render_figure(make_bars(NASTY))
    assert [each.text for each in parse(text).iter("figcaption")] == [NASTY]
    assert "figcaption" not in render_figure(make_bars(""))


def test_elements_of_an_object_follow_its_title_unchanged():
    text = render_object(NASTY, [render_line(NASTY), render_table(("a",), [])])
    title, line, table = parse(text)
    assert (title.tag, title.text) == ("b", NASTY)
    assert (line.tag, line.text) == ("div", NASTY)
    assert table.tag == "table"


def test_a_page_is_one_file_for_light_and_dark_screens():
    page = render_page(NASTY, [render_object(NASTY), render_figure(make_bars("sizes"))])
    assert "<script" not in page
    assert "color-scheme: light dark" in page
    assert "CanvasText" in page
    assert not re.search(r"(href|src|@import|url\()", page)
    body = page.partition("\n")[2].replace('<meta charset="utf-8">', "").replace(
        '<meta name="viewport" content="width=device-width, initial-scale=1">', ""
    )  # fmt: skip
    assert [each.text for tag in ("title", "h1") for each in parse(body).iter(tag)] == [NASTY] * 2
