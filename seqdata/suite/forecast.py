"""Forecasting: windows of series from a table with a row per series and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from seqdata.arguments import check_arguments
from seqdata.errors import ConfigError, check_count, must_be
from seqdata.fitting.field_chunk import Estimator
from seqdata.fitting.labels import Labels
from seqdata.fitting.scales import make_scale
from seqdata.fitting.vocabulary import Vocabulary
from seqdata.index import DEFAULT_AXIS
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.logical_types import Categories
from seqdata.policies.windows import Windows
from seqdata.protocols import Store
from seqdata.runs.options import check_split
from seqdata.storage.fields import is_text
from seqdata.storage.remote.options import Remote
from seqdata.storage.span_store import find_contexts
from seqdata.suite.forecast_table import OBSERVED, ForecastTable, Gaps, MissingTargets
from seqdata.suite.sources import as_names, is_grouped, list_parts

_OWNER = "forecast"


@dataclass(frozen=True, slots=True)
class ForecastStatistics:
    """Estimators of the fields of a forecaster, for ``statistics`` of ``SequenceDataModule``.

    Args:
        target: Fields that are forecast, to which ``scale`` applies.
        covariates: Other fields with a value per timestep. Strings become ids; numbers are
            standardized, unless ``scale`` is None.
        static: Fields with one value per series. Strings become class indices, -1 for unknown
            ones; numbers are standardized, unless ``scale`` is None.
        scale: ``standard``, ``robust``, ``log1p`` or None.
        by: Field whose values each have their own scale; None: one scale. ``log1p`` ignores it.
    """

    target: tuple[str, ...]
    covariates: tuple[str, ...]
    static: tuple[str, ...]
    scale: str | None
    by: str | None

    def __call__(self, store: Store) -> dict[str, Estimator]:
        """Return field -> estimator, of the fields of a store that need one."""
        found: dict[str, Estimator] = {}
        by = None if self.scale == "log1p" else self.by
        target = make_scale(self.scale, by, "impute")
        if target is not None:
            found.update(dict.fromkeys(self.target, target))
        plain = make_scale(None if self.scale is None else "standard", None, "impute")
        for name in self.covariates:
            field = store.fields[name]
            if isinstance(field.logical, Categories):
                found[name] = Vocabulary()
            elif plain is not None and np.dtype(field.dtype).kind == "f":
                found[name] = plain
        for name in self.static:
            field = store.fields[name]
            if is_text(field):
                found[name] = Labels(unknown=-1)
            elif plain is not None and np.dtype(field.dtype).kind in "fiu":
                found[name] = plain
        return found


@final
class ForecastDataModule(SequenceDataModule):
    """Windows of time series for forecasting, each with a context and a horizon.

    The table has a row per series and time, in any order. A batch has ``batch.context[name]`` (B,
    context) and ``batch.future[name]`` (B, horizon) of each column, static columns as (B,), and a
    mask, ``<target>_observed``, where values of a target are masked. ``batch.future`` also has the
    observed columns, which a model must not read.

    Args:
        source: A table (pandas, Polars, Arrow), its file (Parquet, Arrow, CSV, JSON lines), a
            folder or glob of such files, their URL, or a store with a sequence per series.
        id: Column of the names of series.
        time: Column of times: dates, or integers.
        target: Column or columns to forecast.
        freq: Step of the times: ``"15min"``, ``"h"``, ``"D"``, ``"W"``, ``"MS"`` (months), or an
            integer for times that are integers. None: the most frequent step.
        known: Columns whose future values are known in advance, such as prices.
        observed: Columns that are known only up to the present, such as the weather.
        static: Columns with one value per series.
        context: Number of timesteps that a model reads.
        horizon: Number of timesteps that a model forecasts.
        stride: Timesteps from a window to the next. None: ``horizon``, but 1 in training with
            ``train_windows="all"``.
        train_windows: ``random``: one window at a random start in each stride, a different one in
            every epoch; ``all``: the windows at every stride.
        anchor: Whether windows for evaluation are aligned to the ``end`` or the ``start`` of each
            series. If a part is not a multiple of ``horizon``, its first timesteps have no
            forecast, or with ``start`` its last ones; ``describe`` counts them. For a forecast of
            every timestep pass ``stride=1``, or parts that are multiples of ``horizon``.
        split: Parts of the time: ranges, ``{"train": "..2024-01-01", "val": "2024-01-01.."}``, or
            fractions of each series. Windows of a later part read up to ``context`` timesteps
            before it as their context, never as their future. With ``"by"`` or ``"stratify"``,
            fractions of whole series, which are exact with ``"exact": True``; ``by`` names the
            column whose equal values stay in one part.
        scale: Scale of the targets, fitted on the training part: ``standard``, ``robust`` (median
            and interquartile range), ``log1p`` (nothing is fitted) or None. Unless ``scale`` is
            None, other numbers are standardized.
        scale_by: Column whose values each have their own scale, such as ``"id"`` for a scale per
            series; None: one scale for all. Series that are not in the training data use the scale
            of all series. ``log1p`` ignores it.
        gaps: Treatment of times that are missing within a series: ``grid`` adds timesteps without
            values; ``error`` raises DataError.
        missing: Treatment of missing values of numbers. ``mask``: the value is 0 in the scale of
            the model, and the mask of a target is False there. ``impute``: the previous value of
            the series, or 0 in the scale of the model if there is none. ``error`` raises DataError.
        calendar: Fields that are computed from dates: ``minute``, ``hour``, ``dayofweek``, ``day``,
            ``dayofyear``, ``week``, ``month``; float32 in [-0.5, 0.5], known in advance.
        min_history: Minimum number of timesteps of a series before its first forecast, at most
            ``context``. Shorter contexts are filled with masked timesteps. None: ``context``.
        batch_size: Number of windows in a batch.
        seed: Seed of order and random windows; None: the seed of ``seed_everything``, or 0.
        num_workers: Number of worker processes; 0: read in this process.
        remote: Access to URLs, as in ``open_store``.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> import pandas as pd
        >>> hours = pd.date_range("2024-01-01", periods=48, freq="h")
        >>> table = pd.DataFrame({"site": "a", "time": hours, "load": range(48)})
        >>> data = ForecastDataModule(
        ...     table, id="site", time="time", target="load", context=12, horizon=4,
        ...     split={"train": "..2024-01-02", "val": "2024-01-02.."},
        ... )
        >>> next(iter(data.train_dataloader())).future["load"].shape[1]
        4
    """

    @check_arguments
    def __init__(  # noqa: PLR0913
        self,
        source: Any,
        *,
        id: str,
        time: str,
        target: str | Sequence[str],
        freq: str | int | None = None,
        known: str | Sequence[str] = (),
        observed: str | Sequence[str] = (),
        static: str | Sequence[str] = (),
        context: int,
        horizon: int,
        stride: int | None = None,
        train_windows: Literal["random", "all"] = "random",
        anchor: Literal["end", "start"] = "end",
        split: dict[str, Any],
        scale: Literal["standard", "robust", "log1p"] | None = "standard",
        scale_by: str | None = "id",
        gaps: Gaps = "grid",
        missing: MissingTargets = "mask",
        calendar: str | Sequence[str] = (),
        min_history: int | None = None,
        batch_size: int = 256,
        seed: int | None = None,
        num_workers: int = 0,
        remote: Remote | str | None = None,
    ) -> None:
        history = _check_windows(context, horizon, stride, min_history, batch_size, train_windows)
        make_scale(scale)
        self.context, self.horizon, self.time, self._history = context, horizon, time, history
        self.target = as_names(_OWNER, "target", target)
        self.known = as_names(_OWNER, "known", known)
        self.observed = as_names(_OWNER, "observed", observed)
        self.static = as_names(_OWNER, "static", static)
        self.calendar = as_names(_OWNER, "calendar", calendar)
        table = ForecastTable(
            time, self.target, self.known, self.observed, self.static, freq, gaps, missing,
            self.calendar, context - history, scale is None, min_length=history + horizon,
        )  # fmt: skip
        covariates, by = (*self.known, *self.observed), id if scale_by == "id" else scale_by
        is_random, is_table = train_windows == "random", is_grouped(source, remote)
        super().__init__(
            train=source,
            group=id if is_table else None,
            order=time if is_table else None,
            missing="nan" if is_table else None,
            prepare=table,
            split=_make_split(check_split(_OWNER, split), time, context),
            statistics=ForecastStatistics(self.target, covariates, self.static, scale, by),
            batching=Windows(
                context, stride or (horizon if is_random else 1), batch_size, horizon, is_random
            ),
            eval_batching=Windows(context, stride or horizon, batch_size, horizon, anchor=anchor),
            dtype="float32",
            seed=seed,
            num_workers=num_workers,
            remote=remote,
        )

    @property
    def masks(self) -> tuple[str, ...]:
        """Names of the masks of targets in the training data; opens the data."""
        store = self._sources.get_store("train")
        names = [f"{name}_{OBSERVED}" for name in self.target]
        return tuple(name for name in names if store is not None and name in store.fields)

    def describe(self) -> str:
        """Describe the opened, filled, split and fitted data, and count missing forecasts.

        Raises:
            SeqDataError: If the data cannot be opened.
        """
        return "\n".join([super().describe(), *self._iter_omissions()])

    def _iter_omissions(self) -> Iterator[str]:
        """Yield lines on the timesteps of each part for evaluation that have no forecast."""
        windows: Any = self._options.eval_batching
        for kind in ("val", "test", "predict"):
            store = self._sources.get_store(kind)
            if store is None or self._options.find_part(kind) not in (None, kind):
                continue
            found = _count_omissions(store, windows, self.time, self.context - self._history)
            if found.without_history:
                yield (
                    f"  {kind}: {found.without_history:,} of {found.timesteps:,} timesteps have no "
                    f"forecast, since a series must have {self._history} before (`min_history`)"
                )
            if found.left_over:
                remedy = ", or anchor='start' to leave out the last ones"
                is_at_end = windows.anchor == "end"
                yield (
                    f"  {kind}: {found.left_over:,} of {found.timesteps:,} timesteps have no "
                    f"forecast, since windows of {self.horizon}, {windows.stride} apart, count "
                    f"from the {windows.anchor} of each series. Pass stride=1, or a part that is a "
                    f"multiple of {self.horizon}{remedy if is_at_end else ''}"
                )


@dataclass(frozen=True, slots=True)
class _Omissions:
    """Numbers of timesteps of a part, over all series.

    Attributes:
        timesteps: All timesteps, without context from earlier parts and without padding.
        without_history: Timesteps with too few timesteps before them in their series.
        left_over: Timesteps that no window forecasts for another reason.
    """

    timesteps: int
    without_history: int
    left_over: int


def _count_omissions(store: Store, windows: Windows, time: str, padding: int) -> _Omissions:
    """Count the timesteps that have no forecast, by cause.

    Args:
        store: The part.
        windows: Windows of one size on a grid, with a horizon.
        time: Field that runs along the axis of the windows.
        padding: Timesteps without values before each series.
    """
    lengths = np.asarray(store.lengths_of[str(store.fields[time].axis)]).astype(np.int64)
    contexts = find_contexts(store)
    contexts = np.zeros_like(lengths) if contexts is None else contexts
    own = lengths - contexts - np.maximum(0, padding - contexts)
    size, horizon, stride = int(windows.least_size), windows.horizon, int(windows.stride or 1)
    usable = np.maximum(0, lengths - size)
    counts = np.where(usable >= horizon, (usable - horizon) // stride + 1, 0)
    covered = np.where(
        counts == 0, 0, counts * horizon if stride >= horizon else (counts - 1) * stride + horizon
    )
    usable = np.minimum(usable, own)
    return _Omissions(int(own.sum()), int((own - usable).sum()), int((usable - covered).sum()))


def _check_windows(
    context: int, horizon: int, stride: int | None, min_history: int | None, batch_size: int,
    train_windows: str,
) -> int:  # fmt: skip
    """Return ``min_history``, or ``context`` if it is None.

    Raises:
        ConfigError: If an argument is invalid.
    """
    check_count(_OWNER, context=context, horizon=horizon, batch_size=batch_size)
    check_count(_OWNER, stride=1 if stride is None else stride)
    history = context if min_history is None else min_history
    check_count(_OWNER, min_history=history)
    if history > context:
        needed = f"at most `context`, {context}"
        raise ConfigError(must_be(f"{_OWNER}: `min_history`", needed, repr(min_history)))
    if train_windows not in ("random", "all"):
        needed = "'random' or 'all'"
        raise ConfigError(must_be(f"{_OWNER}: `train_windows`", needed, repr(train_windows)))
    return history


def _make_split(split: dict[str, Any], time: str, context: int) -> dict[str, Any]:
    """Return a split with the options of a split in time, unless it is one of whole series."""
    if split.get("by") is not None or split.get("stratify") is not None:
        return split
    has_ranges = any(isinstance(part, str) for part in list_parts(split))
    return {"along": time if has_ranges else DEFAULT_AXIS, "context": context, **split}
