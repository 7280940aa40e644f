"""Charts as SVG, legible on light and dark pages: no background, grey words, two colours.

Those of the README are drawn twice, since its page shows the one that goes with its theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench_set.rows import OURS, Answer, Row

GREY, MINE, THEIRS = "#808080", "#e8590c", "#4c8ed9"
THEMES = {"light": "#57606a", "dark": "#b6bec8"}
"""Theme of a README -> the colour of words, legible on its background."""


def draw(answer: Answer, path: Path, settings: list[str], title: str) -> None:
    """Draw bars of each setting, on a logarithmic axis, with the range of the rounds."""
    rows = {setting: _sort_rows(answer, setting) for setting in settings}
    heights = [len(found) for found in rows.values()]
    with _style(GREY) as pyplot:
        figure, axes = pyplot.subplots(
            len(settings), squeeze=False, figsize=(7.2, 0.24 * sum(heights) + 0.75 * len(settings)),
            gridspec_kw={"height_ratios": [max(1, height) for height in heights]},
        )  # fmt: skip
        for axis, (setting, found) in zip(axes[:, 0], rows.items(), strict=True):
            _draw_bars(axis, setting, found, GREY)
        axes[-1, 0].set_xlabel(f"{title} ({'more' if answer.more_is_better else 'less'} is better)")
        figure.tight_layout()
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def draw_for_readme(answer: Answer, folder: Path, settings: list[str], title: str) -> None:
    """Draw settings side by side, as ``readme-light.svg`` and ``readme-dark.svg``.

    Of seqdata only the row with defaults is drawn.
    """
    rows = [
        [row for row in _sort_rows(answer, setting) if not row.loader.startswith(f"{OURS},")]
        for setting in settings
    ]
    high = 0.18 * max(len(found) for found in rows) + 0.7
    for theme, colour in THEMES.items():
        with _style(colour) as pyplot:
            figure, axes = pyplot.subplots(1, len(settings), squeeze=False, figsize=(9.6, high))
            for axis, setting, found in zip(axes[0], settings, rows, strict=True):
                _draw_bars(axis, setting, found, colour)
                axis.set_xlabel(title)
            figure.tight_layout()
            figure.savefig(
                folder / f"readme-{theme}.svg", transparent=True, metadata={"Date": None}
            )
            pyplot.close(figure)


@contextmanager
def _style(colour: str) -> Iterator[Any]:
    """Yield pyplot, with a colour for words and axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style = {
        "svg.hashsalt": "seqdata", "font.size": 9, "text.color": colour, "axes.labelcolor": colour,
        "xtick.color": colour, "ytick.color": colour, "axes.edgecolor": colour,
    }  # fmt: skip
    with pyplot.rc_context(style):
        yield pyplot


def _sort_rows(answer: Answer, setting: str) -> list[Row]:
    """Return the rows of a setting that have values, from worst to best."""
    return sorted(
        (row for row in answer.rows if row.setting == setting and row.values),
        key=lambda row: row.median,
        reverse=not answer.more_is_better,
    )


def _draw_bars(axis: Any, setting: str, rows: list[Row], colour: str) -> None:
    axis.set_title(setting, loc="left", fontsize=9, color=colour)
    medians = [row.median for row in rows]
    errors = [
        [median - min(row.values) for median, row in zip(medians, rows, strict=True)],
        [max(row.values) - median for median, row in zip(medians, rows, strict=True)],
    ]
    colours = [MINE if row.loader.startswith(OURS) else THEIRS for row in rows]
    axis.barh(
        [row.loader for row in rows], medians, color=colours, xerr=errors, ecolor=colour, height=0.7
    )
    low = min((median for median in medians if median > 0), default=1.0)
    ends = [max(row.values) for row in rows]
    high = max([*ends, low])
    if high > 30 * low:
        axis.set_xscale("log")
        axis.set_xlim(10 ** math.floor(math.log10(low) - 0.01), high * 4)
    else:
        axis.set_xlim(0, max(high, 1e-9) * 1.18)
    for number, (median, end) in enumerate(zip(medians, ends, strict=True)):
        axis.text(max(end, low * 0.5), number, f" {say(median)}", va="center", fontsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def say(value: float) -> str:
    """Write a figure with three digits."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
