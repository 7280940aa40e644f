"""Charts of one batch: the mask, the scored timesteps, and the weights of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seqdata.plotting.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, Category, Strips, sample_rows

_MAX_ROWS = 256
_MAX_SPANS = 4096  # of a flat batch

_CATEGORIES = (
    Category(name="scored", color=BLUE),
    Category(name="scored", color=GREEN),  # the next span of a row
    Category(name="real, not scored", color=ORANGE, opacity=0.7),
    Category(name="future", color=PURPLE),
    Category(name="padding", color=GREY, opacity=0.35),
)
_SCORED, _OTHER, _UNSCORED, _HORIZON, _PADDING = range(5)


def chart_rows(
    lengths: NDArray[np.int64],
    weights: NDArray[np.float64],
    *,
    width: int,
    burn_in: NDArray[np.int64] | None = None,
    segments: NDArray[np.int64] | None = None,
    horizon: int = 0,
    layout: str = "padded",
    most: int = _MAX_ROWS,
    title: str = "",
) -> Strips:
    """Return the timesteps of a batch: which are real, which are scored, which are padding.

    A padded batch is a grid; a packed one has its rows in the order in which they are packed, a
    jagged one its rows without padding, and a flat one all rows after each other.

    Args:
        lengths: int64 (r,), number of real timesteps of each row.
        weights: float64 (r,), weight of each row.
        width: Timesteps of a padded row, without a horizon.
        burn_in: int64 (r,), timesteps at the head of each row that are not scored; None: all are.
        segments: int64 (n, 4), row, id, start, stop of spans; None: a row is one span.
        horizon: Timesteps of the future of a window.
        layout: ``padded``, ``packed``, ``jagged`` or ``varlen``.
        most: Maximum number of rows that are drawn.
        title: Title.
    """
    order = np.arange(len(lengths))
    if layout == "packed":
        order = np.argsort(-lengths, kind="stable")
    is_flat = layout == "varlen"
    chosen = order[sample_rows(len(order), _MAX_SPANS if is_flat else most)]
    builder = _RowBuilder(
        weights,
        burn_in,
        width + horizon if layout == "padded" else None,
        horizon,
        alternates=is_flat or segments is not None,
    )
    spans = _list_spans(lengths, segments, chosen)
    offset = 0
    for at, row in enumerate(chosen.tolist()):
        builder.add(0 if is_flat else at, offset, row, int(lengths[row]), spans[row])
        if is_flat:
            offset += int(lengths[row]) + horizon
        else:
            builder.turn = 0
    runs = np.array(builder.runs, dtype=np.float64).reshape(-1, 5)
    used = np.unique(runs[:, 3].astype(np.int64))
    some = f" ({len(chosen):,} of {len(order):,} rows drawn)" if len(chosen) < len(order) else ""
    own_weights = runs[:, 4]
    differ = len(np.unique(own_weights[~np.isnan(own_weights)])) > 1
    flat_label = "position in the flat values, timesteps"
    row_names = ("",) if is_flat else tuple(map(str, chosen.tolist()))
    return Strips(
        rows=runs[:, 0].astype(np.int64),
        starts=runs[:, 1],
        stops=runs[:, 2],
        kinds=np.searchsorted(used, runs[:, 3].astype(np.int64)),
        categories=tuple(_name_kind(_CATEGORIES[kind], horizon) for kind in used.tolist()),
        row_names=row_names,
        width=float(max(1, offset if is_flat else width + horizon)),
        x_label=flat_label if is_flat else "timestep",
        y_label={"varlen": "", "packed": "row, longest first"}.get(layout, "row"),
        title=title + some,
        weights=own_weights if differ else None,
    )


def _name_kind(kind: Category, horizon: int) -> Category:
    """Return a kind of timesteps; of a window with a future, those scored are its context."""
    return replace(kind, name="context") if horizon and kind.name == "scored" else kind


def _list_spans(
    lengths: NDArray[np.int64], segments: NDArray[np.int64] | None, rows: NDArray[np.int64]
) -> dict[int, list[int]]:
    """Return the lengths of the spans of each of some rows."""
    if segments is None:
        return {row: [int(lengths[row])] for row in rows.tolist()}
    found: dict[int, list[int]] = {row: [] for row in rows.tolist()}
    is_chosen = np.isin(segments[:, 0], rows)
    for row, _, start, stop in segments[is_chosen].tolist():
        found[row].append(stop - start)
    return found


class _RowBuilder:
    """Builder of the coloured runs of rows.

    Args:
        weights: float64 (r,), weight of each row.
        burn_in: int64 (r,), context of each row; None: no context.
        end: End of padded rows; None: rows are not padded.
        horizon: Timesteps of the future.
        alternates: Whether spans are told apart by colour.

    Attributes:
        runs: Row of the picture, start, end, category and weight of each run.
        turn: Number of spans before the next one.
    """

    def __init__(
        self,
        weights: NDArray[np.float64],
        burn_in: NDArray[np.int64] | None,
        end: int | None,
        horizon: int,
        *,
        alternates: bool,
    ) -> None:
        self.runs: list[tuple[float, float, float, int, float]] = []
        self.turn = 0
        self._weights = weights
        self._burn_in = burn_in
        self._end = end
        self._horizon = horizon
        self._alternates = alternates

    def add(self, at: int, offset: int, row: int, length: int, spans: list[int]) -> None:
        """Add one row.

        Args:
            at: Its row in the picture.
            offset: Its first position.
            row: Its index in the batch.
            length: Its real timesteps.
            spans: Lengths of its spans.
        """
        weight = float(self._weights[row])
        context = 0 if self._burn_in is None else int(self._burn_in[row])
        context = min(length, context) if weight > 0 else length
        begin = 0
        for size in spans:
            stop = min(length, begin + size)
            scored = min(stop, max(begin, context))
            kind = self.turn % 2 if self._alternates else _SCORED
            self._append(at, offset + begin, offset + scored, _UNSCORED, np.nan)
            self._append(at, offset + scored, offset + stop, kind, weight)
            begin, self.turn = stop, self.turn + 1
        end = offset + length
        self._append(at, offset + begin, end, _UNSCORED, np.nan)  # of no span
        self._append(at, end, end + self._horizon, _HORIZON, np.nan)
        if self._end is not None:
            self._append(at, end + self._horizon, self._end, _PADDING, np.nan)

    def _append(self, at: int, start: int, stop: int, kind: int, weight: float) -> None:
        if stop > start:
            self.runs.append((at, start, stop, kind, weight))
