"""Fitted statistics as HTML for notebooks: a table, and charts of several features or classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.fitting.labels import FittedLabels
from seqdata.fitting.mean_std import FittedMeanStd
from seqdata.fitting.quantiles import FittedQuantiles
from seqdata.fitting.vocabulary import FittedVocabulary
from seqdata.plotting.charts import BLUE, Bars, Chart, Curves
from seqdata.plotting.page import render_figure, render_object, render_table

_MOST_NAMES = 40  # classes, tokens or groups that are shown
_MOST_CHARACTERS = 12  # of a class below its bar


def name_estimator(fitted: Any) -> str:
    """Return the name of the estimator of fitted statistics, such as ``MeanStd``."""
    if isinstance(fitted, FittedMeanStd):
        return fitted.estimator
    return type(fitted).__name__.removeprefix("Fitted")


def format_html(title: str, fitted: Mapping[str, Any]) -> str:
    """Return fitted statistics as HTML.

    Args:
        title: The title.
        fitted: Field -> its fitted statistics.
    """
    rows = [
        (name, name_estimator(statistic), _describe(statistic))
        for name, statistic in fitted.items()
    ]
    charts = [chart for name, statistic in fitted.items() for chart in _iter_charts(statistic)]
    table = render_table(("field", "statistics", "values"), rows)
    return render_object(title, [table, *map(render_figure, charts)])


def _describe(fitted: Any) -> str:
    """Return the values of fitted statistics in one line."""
    if isinstance(fitted, FittedMeanStd):
        by = f", of each of {len(fitted.groups):,} {fitted.by!r}" if fitted.by else ""
        is_robust = fitted.estimator == "Robust"
        if fitted.mean.size == 1:
            center, spread = ("median", "interquartile range") if is_robust else ("mean", "std")
            return f"{center} {fitted.mean.item():.6g}, {spread} {fitted.std.item():.6g}{by}"
        named = "medians and interquartile ranges" if is_robust else "means and standard deviations"
        return f"{fitted.mean.size:,} {named}{by}"
    if isinstance(fitted, FittedQuantiles):
        if fitted.values[0].size == 1:
            pairs = zip(fitted.levels, fitted.values.ravel().tolist(), strict=True)
            return ", ".join(f"{level:g}: {value:.6g}" for level, value in pairs)
        return f"{len(fitted.levels)} levels of {fitted.values[0].size:,} features"
    if isinstance(fitted, FittedLabels):
        return f"{len(fitted.classes):,} classes, {int(fitted.counts.sum()):,} labels"
    if isinstance(fitted, FittedVocabulary):
        some = ", ".join(map(repr, fitted.tokens[:_MOST_NAMES]))
        more = ", …" if len(fitted.tokens) > _MOST_NAMES else ""
        return f"{fitted.size:,} ids, padding and unknown included: {some}{more}"
    return "log(1 + x)"


def _iter_charts(fitted: Any) -> Iterator[Chart]:
    if isinstance(fitted, FittedMeanStd) and fitted.mean.size > 1:
        mean, std = fitted.mean.ravel(), fitted.std.ravel()
        center, spread = ("median", "IQR") if fitted.estimator == "Robust" else ("mean", "std")
        lines = {
            center: mean, f"{center} + {spread}": mean + std, f"{center} - {spread}": mean - std
        }  # fmt: skip
        yield _chart_features(fitted.name, lines)
    elif isinstance(fitted, FittedQuantiles) and fitted.values[0].size > 1:
        values = fitted.values.reshape(len(fitted.levels), -1)
        pairs = zip(fitted.levels, values, strict=True)
        yield _chart_features(fitted.name, {f"quantile {level:g}": row for level, row in pairs})
    elif isinstance(fitted, FittedLabels) and fitted.classes:
        shown = fitted.classes[:_MOST_NAMES]
        some = f" (the first {len(shown)} drawn)" if len(shown) < len(fitted.classes) else ""
        yield Bars(
            edges=np.arange(len(shown) + 1, dtype=np.float64) - 0.5,
            series={"labels": fitted.counts[: len(shown)]},
            colors={"labels": BLUE},
            x_label="class",
            y_label="labels",
            title=f"{fitted.name}: {len(fitted.classes):,} classes{some}",
            names=tuple(_shorten(str(each)) for each in shown),
        )


def _chart_features(name: str, lines: Mapping[str, NDArray[np.float64]]) -> Curves:
    count = len(next(iter(lines.values())))
    step = max(1, count // 1000)
    features = np.arange(count, dtype=np.float64)[::step]
    return Curves(
        lines={label: (features, values[::step]) for label, values in lines.items()},
        x_label="feature",
        y_label="value",
        title=f"{name}: {count:,} features",
    )


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
