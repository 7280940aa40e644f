"""Charts as numbers, independent of what draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

BLUE, ORANGE, GREEN, PURPLE, GREY = "#4787c7", "#e08a2e", "#3f9e77", "#9a6fb8", "#8f8f8f"
"""Colours that differ with any colour vision, and on a light and a dark page."""
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, "#c25b78", "#5aa7b5", "#b09a3a", "#7a7f3f")

Scale = Literal["linear", "log"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bars:
    """Stacked bars over consecutive intervals.

    Attributes:
        edges: float64 (n+1,), bounds of the bars, rising.
        series: Name -> float64 or int64 (n,), heights; the first series is at the bottom.
        colors: Name of a series -> its colour.
        title: Title, empty for none.
        x_label: Label of the horizontal axis, with the unit.
        y_label: Label of the vertical axis, with the unit.
        scale: Scale of the horizontal axis.
        names: Names of the bars in place of numbers; empty: numbers.
        mark: Position of a vertical line and its name; None: no line.
    """

    edges: NDArray[np.float64]
    series: Mapping[str, NDArray[np.int64] | NDArray[np.float64]]
    colors: Mapping[str, str]
    x_label: str
    y_label: str
    title: str = ""
    scale: Scale = "linear"
    names: tuple[str, ...] = ()
    mark: tuple[float, str] | None = None

    @property
    def top(self) -> float:
        """Height of the tallest bar; 0 without bars."""
        total = sum(map(np.asarray, self.series.values()), np.zeros(len(self.edges) - 1))
        return float(np.max(total, initial=0))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Curves:
    """Lines over the same axes.

    Attributes:
        lines: Name -> x and y, float64 (n,) each.
        title: Title, empty for none.
        x_label: Label of the horizontal axis, with the unit.
        y_label: Label of the vertical axis, with the unit.
        limits: Bounds of the vertical axis; None: those of the lines.
    """

    lines: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
    x_label: str
    y_label: str
    title: str = ""
    limits: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """Kind of a run in ``Strips``.

    Attributes:
        name: Name in the legend, which shows the first of several categories of the same name.
        color: Colour.
        opacity: Opacity in [0, 1].
    """

    name: str
    color: str
    opacity: float = 1.0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Strips:
    """Rows that consist of coloured runs, such as the timesteps of a batch.

    Attributes:
        rows: int64 (n,), row of each run, by position in the picture.
        starts: float64 (n,), start of each run.
        stops: float64 (n,), end of each run.
        kinds: int64 (n,), index of the category of each run.
        categories: The categories.
        row_names: Name of each row of the picture.
        first: Start of the horizontal axis.
        width: End of the horizontal axis.
        title: Title, empty for none.
        x_label: Label of the horizontal axis, with the unit.
        y_label: Label of the vertical axis.
        weights: float64 (n,), weight of each run, NaN for those without; None: they do not differ.
        marks: Row and position of each mark, float64 (m, 2), and their name in the legend.
        line: Position of a vertical line and its name; None: no line.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.float64]
    stops: NDArray[np.float64]
    kinds: NDArray[np.int64]
    categories: tuple[Category, ...]
    row_names: tuple[str, ...]
    width: float
    x_label: str
    y_label: str
    first: float = 0.0
    title: str = ""
    weights: NDArray[np.float64] | None = None
    marks: tuple[NDArray[np.float64], str] = field(default_factory=lambda: (np.empty((0, 2)), ""))
    line: tuple[float, str] | None = None

    def measure(self) -> dict[str, float]:
        """Return the total width of the runs of each category, by its name."""
        widths: dict[str, float] = {}
        found = np.bincount(
            self.kinds, self.stops - self.starts, minlength=len(self.categories)
        ).tolist()
        for category, width in zip(self.categories, found, strict=True):
            widths[category.name] = widths.get(category.name, 0.0) + width
        return widths


Chart = Bars | Curves | Strips


def sample_rows(count: int, most: int) -> NDArray[np.int64]:
    """Return the indices of at most ``most`` of ``count`` rows, at even distances."""
    return np.arange(min(count, most), dtype=np.int64) * count // max(1, min(count, most))
