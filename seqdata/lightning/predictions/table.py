"""Predictions as a table that joins the data: a row per timestep, or per sequence, by its id.

``predict_table`` is one call from a model and its data to the table, on any number of ranks.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.api import open_store
from seqdata.errors import ConfigError, must_be
from seqdata.fitting.labels import FittedLabels
from seqdata.fitting.statistics import Statistics
from seqdata.lightning.predictions.writer import PredictionWriter
from seqdata.logical_types import Timestamp
from seqdata.policies.windows import Windows
from seqdata.protocols import Field, Policy, Store
from seqdata.runs.data_sources import DataSources
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.fields import make_unknown_name_error
from seqdata.storage.row_chunks import flatten_column
from seqdata.storage.span_store import find_base_name, locate_in_base
from seqdata.storage.views import get_measured_transform

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 1 << 12  # rows of predictions that are read together
_SUFFIX = "_pred"  # of a prediction of a field
_OWN_FIELDS = ("id", "position", "spans")  # of the written store


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The columns of a table of predictions.

    Attributes:
        axis: The axis that was planned on.
        horizon: Timesteps after each span that were predicted, one after the other; 0: predictions
            are of the spans themselves.
        id_name: Name of the column of ids.
        time: The field of dates along ``axis``; None: the only one, if there is one.
        statistics: Statistics that standardized fields; predictions of such fields are converted
            back to the unit of the data.
    """

    axis: str = "time"
    horizon: int = 0
    id_name: str = "id"
    time: str | None = None
    statistics: Statistics | None = None


def predict_table(
    trainer: Any, model: Any, data: Any, sources: DataSources, ckpt_path: Any = None,
    per: Any = None,
) -> pa.Table:  # fmt: skip
    """Predict, and return the table of predictions; on every rank the same.

    Args:
        trainer: A Trainer.
        model: A model whose ``predict_step`` returns tensors with a row for each row of the batch.
        data: The DataModule.
        sources: Its stores.
        ckpt_path: Checkpoint, as in ``trainer.predict``.
        per: Unit of a prediction, as in ``PredictionWriter``; None: windows, or as it infers.

    Raises:
        ConfigError: If there is no data to predict, or several datasets.
    """
    policy = sources.find_policy("predict")
    cuts = isinstance(policy, Windows)
    folder = Path(tempfile.mkdtemp(prefix="seqdata-predict-"))
    writer = PredictionWriter(folder / "predictions", per="span" if cuts and per is None else per)
    trainer.callbacks.append(writer)
    try:
        trainer.predict(model, datamodule=data, return_predictions=False, ckpt_path=ckpt_path)
        written = Path(str(trainer.strategy.broadcast(str(folder / "predictions"))))
        if not (written / MANIFEST).is_file():
            raise ConfigError(
                "datamodule: `predict` makes a table of one dataset, but there are several, by "
                "name. Use PredictionWriter"
            )
        table = make_table(open_store(written), *_describe_source(sources, policy))
        trainer.strategy.barrier("seqdata-predict")
        return table
    finally:
        trainer.callbacks.remove(writer)
        shutil.rmtree(folder, ignore_errors=True)


def _describe_source(sources: DataSources, policy: Policy) -> tuple[Store, TableOptions]:
    """Return the predicted store, and the columns of the table.

    Raises:
        ConfigError: If there is no such store.
    """
    store, options = sources.get_store("predict"), sources.options
    engines = sources.get_engines("predict")
    policy = engines[0].policy if engines else policy  # in timesteps, if it was in seconds
    if store is None:
        raise ConfigError(must_be("datamodule: `predict`", "a location", "None", "Pass it"))
    field = store.fields.get(options.order or "")
    is_date = field is not None and isinstance(field.logical, Timestamp)
    statistics = options.statistics if isinstance(options.statistics, Statistics) else None
    return store, TableOptions(
        axis=policy.axis, horizon=getattr(policy, "horizon", 0), id_name=options.group or "id",
        time=options.order if is_date else None, statistics=statistics,
    )  # fmt: skip


def make_table(predictions: Store, source: Store, options: TableOptions) -> pa.Table:
    """Return the predictions of a ``PredictionWriter`` as a table with the data's ids and dates.

    Columns: the id; the dates of the predicted timesteps, under the name of their field, if there
    is one; ``position``, the index of the sequence in the base of views and splits; ``timestep``,
    the index of the timestep in that sequence; ``step``, from 1, with a horizon; and the
    predictions, with ``_pred`` after the name of a field of the data. If no prediction is per
    timestep, and there is no horizon, a row is a sequence or span, without dates and timesteps.

    Args:
        predictions: The store that was written, in its order.
        source: The store or view that was predicted.
        options: The columns.

    Returns:
        A table of Arrow (as pandas and Polars take it).

    Raises:
        ConfigError: If an option does not fit the data, or two columns would have one name.
    """
    import pyarrow as pa

    maker = _TableMaker(predictions, source, options, _find_time(source, options))
    firsts = range(0, len(predictions), _ROWS_AT_ONCE)
    return pa.concat_tables([maker.make_part(first) for first in firsts])


def _find_time(source: Store, options: TableOptions) -> str | None:
    """Return the field of dates along the axis of the plan.

    Raises:
        ConfigError: If ``time`` is not such a field.
    """
    found = [name for name, field in source.fields.items() if _is_time(field, options.axis)]
    if options.time is None:
        has_same_timesteps = get_measured_transform(source) is None
        return found[0] if len(found) == 1 and has_same_timesteps else None
    if options.time not in source.fields:
        raise make_unknown_name_error("predictions: `time`", "field", options.time, source.fields)
    if options.time not in found:
        needed = f"a field with a date per timestep along {options.axis!r}"
        raise ConfigError(must_be("predictions: `time`", needed, repr(options.time)))
    return options.time


def _is_time(field: Field, axis: str) -> bool:
    return field.axis == axis and not field.shape and isinstance(field.logical, Timestamp)


@dataclass(frozen=True, slots=True, eq=False)
class _TableMaker:
    """Makes a table part by part.

    Attributes:
        predictions: The store that was written.
        source: The store or view that was predicted.
        options: The columns.
        time: The field of dates; None: there is none.
    """

    predictions: Store
    source: Store
    options: TableOptions
    time: str | None

    def make_part(self, first: int) -> pa.Table:
        """Return the rows of the table for some rows of the store."""
        import pyarrow as pa

        fields = {
            name: field
            for name, field in self.predictions.fields.items()
            if name not in _OWN_FIELDS
        }
        columns = self._read(first, min(first + _ROWS_AT_ONCE, len(self.predictions)))
        pieces, counts = self._find_pieces(columns, fields)
        rows = np.repeat(np.arange(len(counts)), counts)
        table: dict[str, Any] = {self.options.id_name: pa.array(columns["id"]).take(pa.array(rows))}
        positions = flatten_column(columns["position"])
        if pieces is not None and self.time is not None:
            _add_column(table, self.time, self._read_dates(pieces, self.time))
        _add_column(table, "position", positions[rows])
        if pieces is not None:
            _add_column(table, "timestep", _count_up(pieces[:, 1], pieces[:, 2]))
        if self.options.horizon:
            _add_column(table, "step", _count_up(0 * counts, counts) + 1)
        values = {
            name: self._spread(columns[name], field, counts) for name, field in fields.items()
        }
        for name, column in self._invert(values, positions, counts).items():
            _add_column(table, name + (_SUFFIX if name in self.source.fields else ""), column)
        return pa.table(table)

    def _read(self, first: int, stop: int) -> Mapping[str, Any]:
        store = self.predictions
        axis = self.options.axis if self.options.axis in store.lengths_of else "spans"
        spans = np.zeros((stop - first, 3), dtype=np.int64)
        spans[:, 0] = np.arange(first, stop)
        spans[:, 2] = store.lengths_of[axis][first:stop]
        return store.read(spans, list(store.fields), axis=axis)

    def _find_pieces(
        self, columns: Mapping[str, Any], fields: Mapping[str, Field]
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
        """Return the predicted spans of the base, (pieces, 3), and the rows of each sequence."""
        positions = flatten_column(columns["position"])
        spans, counts = flatten_column(columns["spans"]), np.asarray(columns["spans"].lengths)
        if self.options.horizon:
            stops = spans[np.cumsum(counts) - 1, 1]
            pieces = np.stack([positions, stops, stops + self.options.horizon], axis=1)
            return pieces, np.full(len(positions), self.options.horizon)
        if not any(field.axis == self.options.axis for field in fields.values()):
            return None, np.ones(len(positions), dtype=np.int64)
        pieces = np.concatenate([np.repeat(positions, counts)[:, None], spans], axis=1)
        ends = np.cumsum(np.diff(spans, axis=1))
        before = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(counts)])]
        return pieces, np.diff(before)

    def _read_dates(self, pieces: NDArray[np.int64], time: str) -> Any:
        """Return the dates of the timesteps of spans of the base, an Arrow array."""
        import pyarrow as pa

        logical = cast(Timestamp, self.source.fields[time].logical)
        dates = pa.array(flatten_column(self._read_base(pieces, time)).astype(np.int64))
        if logical.unit == "D":
            return dates.cast(pa.int32()).view(pa.date32())
        return dates.view(pa.timestamp(logical.unit, logical.timezone))

    def _read_base(self, spans: NDArray[np.int64], name: str) -> Any:
        """Return a column of a field, by its name in the source, over spans of the base."""
        base, _, _ = locate_in_base(self.source, np.empty(0, dtype=np.int64))
        base_name = find_base_name(self.source, name)
        return base.read(spans, [base_name], axis=self.options.axis)[base_name]

    def _spread(self, column: Any, field: Field, counts: NDArray[np.int64]) -> NDArray[Any]:
        """Return predictions by row of the table."""
        values = flatten_column(column)
        if field.axis == self.options.axis:
            return np.asarray(values)
        horizon = self.options.horizon
        if horizon and field.shape[:1] == (horizon,):
            return np.asarray(values).reshape(-1, *field.shape[1:])
        return np.repeat(np.asarray(values), counts, axis=0)

    def _invert(
        self, values: dict[str, NDArray[Any]], positions: NDArray[np.int64], counts: Any
    ) -> dict[str, Any]:
        """Return predictions in the unit of the data."""
        statistics = self.options.statistics
        if statistics is None:
            return values
        given: dict[str, Any] = dict(values)
        for name in values:
            by = statistics[name].by if name in statistics else None
            if by is not None:
                given[by] = self._read_groups(by, statistics, positions, counts)
            if name in statistics and name in self.source.fields:
                shape = (len(values[name]), *self.source.fields[name].shape)
                given[name] = values[name].reshape(shape)
        inverted = statistics.inverse()(given)
        return {name: inverted[name] for name in values}

    def _read_groups(
        self, by: str, statistics: Statistics, positions: NDArray[np.int64], counts: Any
    ) -> Any:
        """Return the groups of rows as a batch has them."""
        spans = np.stack([positions, 0 * positions, 0 * positions], axis=1)
        column = self._read_base(spans, by)
        groups = column if isinstance(column, list) else flatten_column(column)
        encoder = dict(statistics.items()).get(by)
        if isinstance(encoder, FittedLabels):
            groups = encoder.apply(groups, 0 * positions + 1, None)
        rows = np.repeat(np.arange(len(positions)), counts)
        return [groups[row] for row in rows] if isinstance(groups, list) else groups[rows]


def _count_up(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the integers of ranges, one range after the other, int64."""
    counts = stops - starts
    begins = np.cumsum(counts) - counts
    found: NDArray[np.int64] = np.arange(int(counts.sum())) + np.repeat(starts - begins, counts)
    return found


def _add_column(table: dict[str, Any], name: str, values: Any) -> None:
    """Add a column: numbers, or lists of a fixed size.

    Raises:
        ConfigError: If the table has a column of this name.
    """
    import pyarrow as pa

    if name in table:
        raise ConfigError(
            f"predictions: columns must have different names, but two are named {name!r}. Rename "
            "the field of the data, or the entry that predict_step returns"
        )
    if not isinstance(values, np.ndarray):
        table[name] = values if isinstance(values, pa.Array) else pa.array(values)
        return
    values = values.reshape(len(values), -1) if values.ndim > 1 else values
    flat = pa.array(values.reshape(-1))
    is_list = values.ndim > 1 and values.shape[1] != 1
    table[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1]) if is_list else flat
