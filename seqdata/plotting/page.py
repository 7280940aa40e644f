"""HTML for notebooks and reports: tables, pictures and pages, all text escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from seqdata.plotting.charts import Chart
from seqdata.plotting.svg import render_svg

_STYLE = """
:root { color-scheme: light dark; }
body { font-family: system-ui, sans-serif; max-width: 760px; margin: 2em auto; padding: 0 1em;
  background: Canvas; color: CanvasText; line-height: 1.45; }
table { border-collapse: collapse; margin: 0.6em 0; display: block; overflow-x: auto; }
th, td { padding: 0.2em 0.8em 0.2em 0; text-align: left; }
td:first-child { white-space: nowrap; vertical-align: top; }
th { border-bottom: 1px solid; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 1em 0; }
figcaption { font-weight: 600; }
code { overflow-wrap: anywhere; }
"""


def render_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; numbers are right-aligned, and integers have thousands separators."""
    listed = [list(row) for row in rows]
    numeric = [
        bool(listed) and all(_is_number(row[at]) for row in listed) for at in range(len(columns))
    ]
    heads = (_cell("th", name, is_number) for name, is_number in zip(columns, numeric, strict=True))
    lines = (
        "".join(
            _cell("td", value, is_number) for value, is_number in zip(row, numeric, strict=True)
        )
        for row in listed
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{''.join(heads)}</tr></thead><tbody>{body}</tbody></table>"


def render_figure(chart: Chart) -> str:
    """Return a chart with its title as the caption."""
    caption = f"<figcaption>{html.escape(chart.title)}</figcaption>" if chart.title else ""
    return f"<figure>{caption}{render_svg(chart)}</figure>"


def render_object(title: str, elements: Iterable[str] = ()) -> str:
    """Return the representation of an object in a notebook: its title and elements of HTML."""
    return f"<div><b>{html.escape(title)}</b>{''.join(elements)}</div>"


def render_line(text: str) -> str:
    """Return one line of text."""
    return f"<div>{html.escape(text)}</div>"


def render_page(title: str, elements: Iterable[str]) -> str:
    """Return a complete page that needs nothing else, for light and dark screens."""
    escaped = html.escape(title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escaped}</h1>\n{chr(10).join(elements)}\n</body></html>\n"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(tag: str, value: object, is_number: bool) -> str:
    text = f"{value:,}" if isinstance(value, int) and is_number else str(value)
    own = ' class="number" style="text-align: right"' if is_number else ""
    return f"<{tag}{own}>{html.escape(text)}</{tag}>"
