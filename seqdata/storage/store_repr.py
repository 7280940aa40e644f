"""A store as text and as HTML: its fields, dtypes and lengths."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from seqdata.plotting.charts import Bars
from seqdata.plotting.lengths import chart_lengths, histogram
from seqdata.plotting.page import render_figure, render_object, render_table
from seqdata.protocols import Field, Store
from seqdata.storage.fields import default_axis, make_unknown_name_error

MAX_SAMPLED_LENGTHS = 1 << 20  # maximum lengths in a `repr`: of more, this many at even distances
_SHADES = "▁▂▃▄▅▆▇█"


def format_shape(field: Field) -> str:
    """Return the shape of a field's values, with the name of its axis: ``(time, 40)``."""
    sizes = [str(size) for size in field.shape]
    if field.axis is not None:
        sizes = [field.axis, *sizes]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})" if sizes else "per sequence"


def format_dtype(field: Field) -> str:
    """Return the dtype of a field, or what its integers stand for: ``timestamp[us]``."""
    return field.dtype if field.logical is None else str(field.logical)


def format_text(store: Store, title: str) -> str:
    """Return a store as text: a line for each field, and one for the lengths of each axis.

    Args:
        store: Any store.
        title: Its first line.
    """
    fields = [
        (name, format_dtype(field), format_shape(field)) for name, field in store.fields.items()
    ]
    wide = [max((len(row[at]) for row in fields), default=0) for at in (0, 1)]
    lines = [f"{name:<{wide[0]}}  {dtype:<{wide[1]}}  {shape}" for name, dtype, shape in fields]
    lines += [f"lengths along {axis!r}: {text}" for axis, text in _iter_summaries(store)]
    return "\n".join([title, *(f"  {line}" for line in lines)])


def format_html(store: Store, title: str) -> str:
    """Return a store as HTML for notebooks: a table of fields, and a histogram of each axis."""
    rows = [
        (name, format_dtype(field), format_shape(field)) for name, field in store.fields.items()
    ]
    charts = [_chart_axis(store, axis, is_sampled=True) for axis in store.lengths_of]
    table = render_table(("field", "dtype", "shape"), rows)
    return render_object(title, [table, *map(render_figure, charts)])


def chart_store(store: Store, axis: str | None, *, is_single: bool = False) -> list[Bars] | Bars:
    """Return a histogram of the lengths along one axis, or along each of several.

    Args:
        store: Any store.
        axis: Name of the axis; None: all axes, or with ``is_single`` the default one.
        is_single: Whether there is to be one chart.

    Raises:
        UnknownNameError: If there is no such axis.
    """
    if axis is not None and axis not in store.lengths_of:
        raise make_unknown_name_error("store", "axis", axis, store.lengths_of)
    axes = list(store.lengths_of)
    if axis is None and is_single and len(axes) > 1:
        axis = default_axis(store.lengths_of)
    if axis is not None or len(axes) == 1:
        return _chart_axis(store, axis or axes[0])
    return [_chart_axis(store, name) for name in axes]


def _chart_axis(store: Store, axis: str, *, is_sampled: bool = False) -> Bars:
    lengths = store.lengths_of[axis]
    step = max(1, -(-len(lengths) // MAX_SAMPLED_LENGTHS)) if is_sampled else 1
    note = "" if step == 1 else f" (every {step:,}th of {len(lengths):,})"
    return chart_lengths(lengths[::step] if step > 1 else lengths, axis, note=note)


def _iter_summaries(store: Store) -> Iterator[tuple[str, str]]:
    """Yield, for each axis, its name, and a histogram of its lengths in one line."""
    for axis, all_lengths in store.lengths_of.items():
        if not len(all_lengths):
            yield axis, "there are no sequences"
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
        yield axis, f"{low:,} {bars} {high:,}, median {np.median(lengths):,.0f}{sample_note}"
