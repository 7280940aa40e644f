"""Pictures of a batch: its rows, and the values of a field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqdata.batch.layouts import format_shape
from seqdata.errors import ConfigError, must_be
from seqdata.plotting.axes import draw, draw_values
from seqdata.plotting.charts import Strips
from seqdata.plotting.page import render_figure, render_line, render_object, render_table
from seqdata.plotting.rows import chart_rows

if TYPE_CHECKING:
    from seqdata.batch.batch import SequenceBatch

_ROWS_IN_HTML = 32


def plot_batch(batch: SequenceBatch, ax: Any, field: str | None, row: int | None) -> Any:
    """Draw a batch, or the values of a field; see ``SequenceBatch.plot``.

    Raises:
        ConfigError: If the field or row cannot be drawn, or matplotlib is not installed.
    """
    if field is None:
        if row is not None:
            raise ConfigError(
                must_be("batch: `row`", "given with `field`", repr(row), "Pass field='x', too")
            )
        return draw(chart_batch(batch), ax)
    axis, values = _read_values(batch, field)
    place = f"{field} (batch {batch.number:,} of epoch {batch.epoch})"
    lengths, width = batch.extent(axis)
    if row is not None:
        if not -len(batch) <= row < len(batch):
            needed = f"in [{-len(batch)}, {len(batch)})"
            raise ConfigError(must_be("batch: `row`", needed, repr(row)))
        own = values[row, : int(lengths[row])].reshape(int(lengths[row]), -1).T
        return draw_values(
            own, ax, x_label=f"timestep along {axis!r}", y_label="feature", label=field,
            title=f"{place}, row {row % len(batch)}",
        )  # fmt: skip
    features = int(np.prod(values.shape[2:]))
    shown = values.reshape(*values.shape[:2], -1).mean(axis=2)
    shown[np.arange(width) >= lengths.numpy()[:, None]] = np.nan
    label = field if features == 1 else f"{field}, mean of {features:,} features"
    return draw_values(
        shown, ax, x_label=f"timestep along {axis!r}", y_label="row", label=label, title=place
    )


def _read_values(batch: SequenceBatch, field: str) -> tuple[str, NDArray[Any]]:
    """Return the axis of a field, and its values as floats (r, T, *shape)."""
    values = batch[field]  # raises, if there is none
    axis = batch.axes.along(field)
    if axis is None or isinstance(values, list):
        raise ConfigError(
            must_be(
                "batch: `field`", "a field with values per timestep",
                f"{field!r}, which has one per sequence", "Draw the batch without `field`",
            )
        )  # fmt: skip
    padded = batch if batch.layout == "padded" else batch.as_layout("padded")
    tensor: Tensor = padded[field].detach().cpu()
    if tensor.is_complex():
        tensor = tensor.abs()
    return axis, tensor.to(torch.float64).numpy().copy()


def chart_batch(batch: SequenceBatch, most: int = 256) -> Strips:
    """Return the rows of a batch as a chart.

    Args:
        batch: A batch of any layout.
        most: Maximum number of rows that are drawn.
    """
    lengths, burn_in, segments = batch.lengths, batch.burn_in, batch.segments
    weights = batch.weight.detach().cpu().double().numpy()
    scored, real = int(batch.score.sum()), int(lengths.sum())
    width = batch.extent(batch.axes.axis)[1] - batch.horizon
    text = f"{len(batch):,} rows, {batch.layout}: {real:,} real timesteps, {scored:,} scored"
    if batch.layout == "padded":
        room = len(batch) * width
        text += f", {100 * (1 - real / room) if room else 0.0:.1f} % padding"
    return chart_rows(
        lengths.numpy(),
        weights,
        width=width,
        burn_in=None if burn_in is None else burn_in.cpu().numpy(),
        segments=None if segments is None else segments.numpy(),
        horizon=batch.horizon,
        layout=batch.layout,
        most=most,
        title=text,
    )


def format_html(batch: SequenceBatch) -> str:
    """Return a batch as HTML for notebooks: its fields, and the picture of its rows."""
    rows = []
    for name, value in batch.items():
        dtype = "strings" if isinstance(value, list) else str(_get_dtype(value))
        rows.append((name, dtype, format_shape(value), batch.axes.along(name) or "per sequence"))
    part = batch.part if isinstance(batch.part, str) else ""
    where = f"batch {batch.number:,} of epoch {batch.epoch}{f', part {part!r}' if part else ''}"
    scored = f"{batch.num_tokens:,} of {batch.global_num_tokens:,} scored timesteps of the step"
    return render_object(
        f"SequenceBatch: {where}",
        [
            render_table(("field", "dtype", "shape", "axis"), rows),
            render_line(f"{scored}, loss_scale {batch.loss_scale:.6g}"),
            render_figure(chart_batch(batch, _ROWS_IN_HTML)),
        ],
    )


def _get_dtype(value: Any) -> Any:
    dtype = getattr(value, "dtype", None)
    return str(value.data.dtype if dtype is None else dtype).removeprefix("torch.")
