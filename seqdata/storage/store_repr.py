"""A store as text and as HTML: its fields, dtypes and lengths."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field, Store

MAX_SAMPLED_LENGTHS = 1 << 20  # maximum lengths in a `repr`: of more, this many at even distances
_MAX_BINS = 12
_SHADES = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBin:
    """Sequences whose length is in ``[first, last]``."""

    first: int
    last: int
    count: int


def histogram(lengths: NDArray[Any]) -> tuple[HistogramBin, ...]:
    """Count lengths in bins that double in width, or of equal width if lengths are close together.

    Args:
        lengths: Integers (n,) of at least one sequence.
    """
    low, high = int(lengths.min()), int(lengths.max())
    if high < 8 * max(low, 1):
        width = -(-(high - low + 1) // _MAX_BINS)
        edges = list(range(low, high + 1, width))
    else:
        edges = [0] if low == 0 else []
        edges += [1 << power for power in range(max(low, 1).bit_length() - 1, high.bit_length())]
    stops = [*edges[1:], high + 1]
    counts = np.diff(np.searchsorted(np.sort(lengths), [edges[0], *stops]))
    return tuple(
        HistogramBin(first=first, last=stop - 1, count=int(count))
        for first, stop, count in zip(edges, stops, counts, strict=True)
    )


def format_shape(field: Field) -> str:
    """Return the shape of a field's values, with the name of its axis: ``(time, 40)``."""
    sizes = [str(size) for size in field.shape]
    if field.axis is not None:
        sizes = [field.axis, *sizes]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})" if sizes else "per sequence"


def format_text(store: Store, title: str) -> str:
    """Return a store as text: a line for each field, and one for the lengths of each axis.

    Args:
        store: Any store.
        title: Its first line.
    """
    fields = [(name, field.dtype, format_shape(field)) for name, field in store.fields.items()]
    wide = [max((len(row[at]) for row in fields), default=0) for at in (0, 1)]
    lines = [f"{name:<{wide[0]}}  {dtype:<{wide[1]}}  {shape}" for name, dtype, shape in fields]
    lines += [f"lengths along {axis!r}: {text}" for axis, _, text in _iter_histograms(store)]
    return "\n".join([title, *(f"  {line}" for line in lines)])


def format_html(store: Store, title: str) -> str:
    """Return a store as HTML for notebooks: a table of fields, and bars of lengths."""
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(field.dtype)}</td>"
        f"<td>{html.escape(format_shape(field))}</td></tr>"
        for name, field in store.fields.items()
    )
    elements = [
        f"<b>{html.escape(title)}</b>",
        f"<table><tr><th>field</th><th>dtype</th><th>shape</th></tr>{cells}</table>",
    ]
    for axis, bins, text in _iter_histograms(store):
        most = max((histogram_bin.count for histogram_bin in bins), default=1)
        bars = "".join(
            f'<rect x="{12 * at}" y="{40 - 40 * histogram_bin.count / most:.1f}" width="10" '
            f'height="{40 * histogram_bin.count / most:.1f}"><title>{histogram_bin.first:,} to '
            f"{histogram_bin.last:,}: "
            f"{histogram_bin.count:,}</title></rect>"
            for at, histogram_bin in enumerate(bins)
        )
        elements.append(
            f"<div>lengths along {html.escape(repr(axis))}: {html.escape(text)}</div>"
            f'<svg width="{12 * len(bins)}" height="40" fill="steelblue">{bars}</svg>'
        )
    return f"<div>{''.join(elements)}</div>"


def _iter_histograms(store: Store) -> Iterator[tuple[str, tuple[HistogramBin, ...], str]]:
    """Yield, for each axis, its name, a histogram of its lengths, and a summary."""
    for axis, all_lengths in store.lengths_of.items():
        if not len(all_lengths):
            yield axis, (), "there are no sequences"
            continue
        lengths = all_lengths[:: -(-len(all_lengths) // MAX_SAMPLED_LENGTHS)]
        bins = histogram(lengths)
        most = max(histogram_bin.count for histogram_bin in bins)
        bars = "".join(
            _SHADES[-(-histogram_bin.count * len(_SHADES) // most) - 1]
            if histogram_bin.count
            else " "
            for histogram_bin in bins
        )
        sample_note = "" if len(lengths) == len(all_lengths) else f" (of {len(lengths):,} of them)"
        low, high = int(lengths.min()), int(lengths.max())
        yield axis, bins, f"{low:,} {bars} {high:,}, median {np.median(lengths):,.0f}{sample_note}"
