"""One transform from fitted statistics and the transform that follows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqdata.errors import ConfigError
from seqdata.fitting.statistics import Statistics, StatisticsTransform
from seqdata.loading.transforms.declare import (
    Ragged,
    bind_fields,
    columnar,
    get_declared_axes,
    is_by_timestep,
    is_columnar,
)
from seqdata.protocols import Field, Transform


def then_transform(
    statistics: Any,
    transform: Any,
    fields: Mapping[str, Field],
) -> Any:
    """Return the transform that applies statistics, and then another transform.

    Args:
        statistics: Fitted statistics; estimators that are not fitted yet are refused when a batch
            is made.
        transform: A transform of their results; None: no transform.
        fields: The fields that are read.
    """
    if not isinstance(statistics, Statistics):
        names = statistics if isinstance(statistics, Mapping) else ()
        return Unfitted(tuple(names))
    if transform is None:
        return statistics.transform()
    first, then = statistics.transform().bind_fields(fields), bind_fields(transform, fields)
    if is_columnar(then):
        return ColumnarThen(first, then)
    ragged = tuple(name for name, field in fields.items() if field.axis is not None)
    return SequenceThen(first, then, ragged)


@columnar
@dataclass(frozen=True)
class Unfitted:
    """Transform in the place of statistics that are not fitted: it makes no batch.

    Args:
        names: The fields; empty if a function chooses them.
    """

    names: tuple[str, ...]

    def __call__(self, columns: dict[str, Any], seeds: Any) -> dict[str, Any]:
        """Raise ConfigError, because the statistics are not fitted."""
        del columns, seeds
        named = f" ({', '.join(self.names)})" if self.names else ""
        raise ConfigError(
            f"datamodule: `statistics`{named} are fitted on `train`, but `train` is "
            "None, and no checkpoint was loaded. Pass `train`, `ckpt_path`, or fitted statistics"
        )


@columnar
@dataclass(frozen=True)
class ColumnarThen:
    """Applies statistics, and then a columnar transform.

    Args:
        first: Transform of fitted statistics.
        then: A columnar transform.
    """

    first: StatisticsTransform
    then: Transform

    def __getattr__(self, name: str) -> Any:
        return _get_declaration(self, name)

    def bind_fields(self, fields: Mapping[str, Field]) -> ColumnarThen:
        """Return the transform for a store with these fields."""
        return ColumnarThen(self.first.bind_fields(fields), bind_fields(self.then, fields))

    def __call__(self, columns: dict[str, Any], seeds: Any) -> dict[str, Any]:
        """Return the columns, transformed by both."""
        then: Any = self.then
        result: dict[str, Any] = then(self.first(columns, seeds), seeds)
        return result


@dataclass(frozen=True)
class SequenceThen:
    """Applies statistics to a sequence, and then a transform of it.

    Args:
        first: Transform of fitted statistics.
        then: A transform of a sequence.
        ragged: The fields that run along an axis.
    """

    first: StatisticsTransform
    then: Transform
    ragged: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        return _get_declaration(self, name)

    def bind_fields(self, fields: Mapping[str, Field]) -> SequenceThen:
        """Return the transform for a store with these fields."""
        first, then = self.first.bind_fields(fields), bind_fields(self.then, fields)
        return SequenceThen(first, then, self.ragged)

    def __call__(self, sequence: dict[str, Any], rng: Any) -> dict[str, Any]:
        """Return the sequence, transformed by both."""
        statistics = self.first.statistics
        used = {name for name in statistics if name in sequence}
        used |= {str(statistics[name].by) for name in used} & sequence.keys()
        columns = {name: self._make_column(name, sequence[name]) for name in used}
        found = self.first(columns, None)
        changed = {
            name: column.values if isinstance(column, Ragged) else column[0]
            for name, column in found.items()
        }
        then: Any = self.then
        result: dict[str, Any] = then({**sequence, **changed}, rng)
        return result

    def _make_column(self, name: str, value: Any) -> Any:
        if isinstance(value, str | bytes):
            return [value]
        if name in self.ragged:
            return Ragged(value, np.array([len(value)], dtype=np.int64))
        return np.asarray(value)[None]


def _get_declaration(composed: Any, name: str) -> Any:
    """Return a declaration of the composed transform: axes of both, lengths of the second.

    Raises:
        AttributeError: If ``name`` is not declared.
    """
    if name not in ("lengths", "max_length", "axes", "by_timestep", "statistics"):
        raise AttributeError(name)
    first, then = composed.__dict__["first"], composed.__dict__["then"]
    if name == "statistics":
        return first.statistics
    if name == "axes":
        return {**first.axes, **get_declared_axes(then)}
    if name == "by_timestep":
        return first.by_timestep and is_by_timestep(then)
    return getattr(then, name)
