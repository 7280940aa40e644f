"""A store as text and as HTML: its fields, dtypes and lengths, for people who look at it.

Place in the flow: ``repr`` of a store, notebooks, ``seqdata stats``. Reads: fields, lengths. Makes:
texts.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field, Store

LOOKED_AT = 1 << 20  # lengths in a `repr`, at most: of more, these many at even distances
_BARS = 12
_SHADES = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Sequences whose length is in ``[first, last]``."""

    first: int
    last: int
    count: int


def histogram(lengths: NDArray[Any]) -> tuple[Bin, ...]:
    """Count lengths in bins that double, or of equal width where they lie close together.

    Args:
        lengths: Integers (n,) of at least one sequence.
    """
    low, high = int(lengths.min()), int(lengths.max())
    if high < 8 * max(low, 1):
        width = -(-(high - low + 1) // _BARS)
        edges = list(range(low, high + 1, width))
    else:
        edges = [0] if low == 0 else []
        edges += [1 << power for power in range(max(low, 1).bit_length() - 1, high.bit_length())]
    stops = [*edges[1:], high + 1]
    counts = np.diff(np.searchsorted(np.sort(lengths), [edges[0], *stops]))
    return tuple(
        Bin(first=first, last=stop - 1, count=int(count))
        for first, stop, count in zip(edges, stops, counts, strict=True)
    )


def shape_of(field: Field) -> str:
    """Return the shape of a field's values, with the name of its axis: ``(time, 40)``."""
    sizes = [str(size) for size in field.shape]
    if field.axis is not None:
        sizes = [field.axis, *sizes]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})" if sizes else "per sequence"


def as_text(store: Store, title: str) -> str:
    """Return a store as text: a line for each field, and one for the lengths of each axis.

    Args:
        store: Any store.
        title: Its first line.
    """
    fields = [(name, field.dtype, shape_of(field)) for name, field in store.fields.items()]
    wide = [max((len(row[at]) for row in fields), default=0) for at in (0, 1)]
    lines = [f"{name:<{wide[0]}}  {dtype:<{wide[1]}}  {shape}" for name, dtype, shape in fields]
    lines += [f"lengths along {axis!r}: {text}" for axis, _, text in _lengths(store)]
    return "\n".join([title, *(f"  {line}" for line in lines)])


def as_html(store: Store, title: str) -> str:
    """Return a store as HTML for notebooks: a table of fields, and bars of lengths."""
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(field.dtype)}</td>"
        f"<td>{html.escape(shape_of(field))}</td></tr>"
        for name, field in store.fields.items()
    )
    parts = [
        f"<b>{html.escape(title)}</b>",
        f"<table><tr><th>field</th><th>dtype</th><th>shape</th></tr>{cells}</table>",
    ]
    for axis, bins, text in _lengths(store):
        most = max((one.count for one in bins), default=1)
        bars = "".join(
            f'<rect x="{12 * at}" y="{40 - 40 * one.count / most:.1f}" width="10" '
            f'height="{40 * one.count / most:.1f}"><title>{one.first:,} to {one.last:,}: '
            f"{one.count:,}</title></rect>"
            for at, one in enumerate(bins)
        )
        parts.append(
            f"<div>lengths along {html.escape(repr(axis))}: {html.escape(text)}</div>"
            f'<svg width="{12 * len(bins)}" height="40" fill="steelblue">{bars}</svg>'
        )
    return f"<div>{''.join(parts)}</div>"


def _lengths(store: Store) -> Iterator[tuple[str, tuple[Bin, ...], str]]:
    """Give, for each axis, its name, a histogram of its lengths, and what is said of them."""
    for axis, whole in store.lengths_of.items():
        if not len(whole):
            yield axis, (), "there are no sequences"
            continue
        lengths = whole[:: -(-len(whole) // LOOKED_AT)]
        bins = histogram(lengths)
        most = max(one.count for one in bins)
        bars = "".join(
            _SHADES[-(-one.count * len(_SHADES) // most) - 1] if one.count else " " for one in bins
        )
        about = "" if len(lengths) == len(whole) else f" (of {len(lengths):,} of them)"
        low, high = int(lengths.min()), int(lengths.max())
        yield axis, bins, f"{low:,} {bars} {high:,}, median {np.median(lengths):,.0f}{about}"
