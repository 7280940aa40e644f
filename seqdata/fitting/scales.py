"""Median and interquartile range of a field, and logarithms: scales for values with outliers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, DecodeError, must_be
from seqdata.fitting.field_chunk import (
    NAN_PROBLEM,
    NAN_RULES,
    FieldChunk,
    check_choice,
    check_number_field,
    list_groups,
    to_plain_floats,
)
from seqdata.fitting.mean_std import MeanStd, NanRule
from seqdata.fitting.quantiles import DigitsAccumulator, Quantiles
from seqdata.protocols import Field

_LEVELS = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Robust:
    """Estimator that scales a field by its median and interquartile range.

    The median is subtracted, and the result is divided by the interquartile range, or by 1 if this
    is 0. Each feature of a timestep has its own statistics, which are exact for any order of the
    data. Results are float32, or float64 for float64 values.

    Args:
        by: Field with one value per sequence, such as ``"site"``. Each value then has its own
            statistics, and fitting holds all values of the scaled field in memory. None: all
            sequences have the same statistics.
        nan: Treatment of NaN. ``error``: raise. ``ignore``: do not count NaN, and keep it.
            ``impute``: do not count NaN, and replace it with the median.
        unknown: Treatment of a value of ``by`` that was not fitted: ``error``, or ``overall`` for
            the statistics of all sequences.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import fit
        >>> fitted = fit([[0.0, 1.0, 2.0], [3.0, 900.0]], {"x": Robust()})["x"]
        >>> fitted.mean.item(), fitted.std.item()
        (2.0, 2.0)
    """

    by: str | None = None
    nan: NanRule = "error"
    unknown: Literal["error", "overall"] = "error"

    def __post_init__(self) -> None:
        check_choice("Robust", "nan", self.nan, NAN_RULES)
        check_choice("Robust", "unknown", self.unknown, ("error", "overall"))

    def start(self, name: str, field: Field) -> RobustAccumulator | GroupedRobustAccumulator:
        """Return an accumulator; see ``Estimator``."""
        check_number_field("Robust", name, field)
        accumulator = RobustAccumulator if self.by is None else GroupedRobustAccumulator
        return accumulator(self, name, field)


class RobustAccumulator:
    """Finds quartiles as ``Quantiles`` does, without holding the values.

    Args:
        estimator: The estimator.
        name: Name of the field.
        field: Dtype and shape of the field.
    """

    def __init__(self, estimator: Robust, name: str, field: Field) -> None:
        self._estimator = estimator
        nan: NanRule = "error" if estimator.nan == "error" else "ignore"
        self._digits = DigitsAccumulator(Quantiles(*_LEVELS, nan=nan), name, field)
        self.measure = self._digits.measure
        self.add = self._digits.add
        self.end_pass = self._digits.end_pass

    def make_plain(self) -> dict[str, Any]:
        """Return the median and the interquartile range of each feature."""
        return _make_plain(self._estimator, self._digits.counts, self._digits.find_values())


class GroupedRobustAccumulator:
    """Collects the values of each group, from which quartiles are found at the end.

    Args:
        estimator: The estimator.
        name: Name of the field.
        field: Dtype and shape of the field.
    """

    def __init__(self, estimator: Robust, name: str, field: Field) -> None:
        self._estimator = estimator
        self._name, self._shape = name, field.shape
        self._values: dict[Hashable, list[NDArray[np.float64]]] = {}

    def measure(self, chunk: FieldChunk) -> list[tuple[Hashable, NDArray[np.float64]]]:
        """Return the values of each group of a chunk.

        Raises:
            DataError: If there is a NaN, unless ``nan`` allows it.
        """
        values = chunk.values.astype(np.float64)
        if self._estimator.nan == "error" and np.isnan(values).any():
            row = int(np.nonzero(np.isnan(values))[0][0])
            raise chunk.make_error(row, NAN_PROBLEM)
        groups, indices = list_groups(chunk.groups)
        rows = np.repeat(indices, chunk.lengths)
        order = np.argsort(rows, kind="stable")
        cuts = np.searchsorted(rows[order], np.arange(1, len(groups)))
        return list(zip(groups, np.split(values[order], cuts), strict=True))

    def add(self, partial: list[tuple[Hashable, NDArray[np.float64]]]) -> None:
        """Add the values of a chunk."""
        for group, values in partial:
            self._values.setdefault(group, []).append(values)

    def end_pass(self) -> bool:
        """Return False: one pass is enough."""
        return False

    def make_plain(self) -> dict[str, Any]:
        """Return medians and interquartile ranges over all values, and of each group.

        Raises:
            DataError: If there are no values.
        """
        if not self._values:
            raise DataError(
                f"fit: field {self._name!r} must have at least one value to fit, but the view has "
                "no sequences. Fit over more sequences."
            )
        joined = {group: np.concatenate(parts) for group, parts in self._values.items()}
        everything = np.concatenate(list(joined.values()))
        overall = _find_quartiles(everything)
        known = [group for group, values in joined.items() if not np.isnan(values).all()]
        groups = sorted(known, key=lambda group: (str(type(group)), group))
        counts = (~np.isnan(everything)).sum(axis=0).reshape(self._shape).tolist()
        plain = _make_plain(self._estimator, counts, overall.reshape(3, *self._shape))
        quartiles = [_find_quartiles(joined[group]) for group in groups]
        found = np.array(quartiles).reshape(len(groups), 3, *self._shape)
        found = np.where(np.isnan(found), overall.reshape(3, *self._shape), found)
        plain["groups"] = groups
        plain["group_means"] = to_plain_floats(found[:, 1])
        plain["group_stds"] = to_plain_floats(found[:, 2] - found[:, 0])
        return plain


def _find_quartiles(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quartiles of each feature, (3, features); NaN for a feature without values."""
    columns = [column[~np.isnan(column)] for column in values.T]
    found = [
        np.quantile(column, _LEVELS) if len(column) else np.full(len(_LEVELS), np.nan)
        for column in columns
    ]
    return np.stack(found, axis=1)


def _make_plain(estimator: Robust, count: Any, quartiles: NDArray[np.float64]) -> dict[str, Any]:
    return {
        "kind": "robust",
        **{name: getattr(estimator, name) for name in ("by", "nan", "unknown")},
        "count": count,
        "mean": to_plain_floats(quartiles[1]),
        "std": to_plain_floats(quartiles[2] - quartiles[0]),
    }


@dataclass(frozen=True, slots=True)
class Log1p:
    """Estimator that replaces each value of a field with the logarithm of 1 plus the value.

    Values must be above -1. Results are float32, or float64 for float64 values. Fitting only checks
    the values.

    Args:
        nan: Treatment of NaN. ``error``: raise. ``ignore``: keep it. ``impute``: replace it with 0.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import fit
        >>> stats = fit([[0.0, 1.0]], {"x": Log1p()})
        >>> stats.inverse()({"x": np.array([0.0])})["x"].tolist()
        [0.0]
    """

    nan: NanRule = "error"

    def __post_init__(self) -> None:
        check_choice("Log1p", "nan", self.nan, NAN_RULES)

    def start(self, name: str, field: Field) -> Log1pAccumulator:
        """Return an accumulator, which checks values; see ``Estimator``."""
        check_number_field("Log1p", name, field)
        return Log1pAccumulator(self)


class Log1pAccumulator:
    """Checks that values have a logarithm.

    Args:
        estimator: The estimator.
    """

    def __init__(self, estimator: Log1p) -> None:
        self._estimator = estimator
        self._count = 0

    def measure(self, chunk: FieldChunk) -> int:
        """Return the number of values of a chunk.

        Raises:
            DataError: If a value is at most -1, or is NaN and ``nan`` does not allow it.
        """
        values = chunk.values
        is_bad = values <= -1
        if self._estimator.nan == "error" and values.dtype.kind == "f":
            is_bad |= np.isnan(values)
        if is_bad.any():
            row = int(np.nonzero(is_bad)[0][0])
            found = values[row][is_bad[row]][0]
            if np.isnan(found):
                raise chunk.make_error(row, NAN_PROBLEM)
            raise chunk.make_error(
                row, f"values of Log1p must be above -1, but one is {found}. Use another scale"
            )
        return int(values.size)

    def add(self, partial: int) -> None:
        """Add the number of values of a chunk."""
        self._count += partial

    def end_pass(self) -> bool:
        """Return False: one pass is enough."""
        return False

    def make_plain(self) -> dict[str, Any]:
        """Return the rule for NaN and the number of values."""
        return {"kind": "log1p", "nan": self._estimator.nan, "count": self._count}


class FittedLog1p:
    """Logarithms of a field.

    Args:
        name: Name of the field.
        plain: Result of the accumulator.
    """

    def __init__(self, name: str, plain: dict[str, Any]) -> None:
        self.name = name
        self.by: str | None = None
        self._nan = plain["nan"]

    def apply(
        self, values: NDArray[Any], lengths: NDArray[np.int64], groups: Any, logical: Any = None
    ) -> Any:
        """Return the logarithms of values.

        Raises:
            DecodeError: If a value is at most -1, or is NaN and ``nan`` does not allow it.
        """
        del lengths, groups, logical
        dtype = np.float64 if values.dtype == np.float64 else np.float32
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
        if self._nan == "error" and missing.any():
            raise DecodeError.at(
                f"statistics: field {self.name!r} has a NaN, which nan='error' does not allow. "
                "Fit with nan='ignore' or nan='impute'.",
                field=self.name,
            )
        if (values <= -1).any():
            raise DecodeError.at(
                f"statistics: values of field {self.name!r} must be above -1 to have a logarithm, "
                "but one is not. Use another scale",
                field=self.name,
            )
        found = np.log1p(values.astype(np.float64)).astype(dtype)
        return np.where(missing, dtype(0), found) if self._nan == "impute" else found

    def inverse(self, values: Any, groups: Any = None) -> Any:
        """Return logarithms in the unit of the data, as an array or a tensor."""
        del groups
        return values.expm1() if hasattr(values, "expm1") else np.expm1(np.asarray(values))


def make_scale(scale: str | None, by: str | None = None, nan: NanRule = "error") -> Any:
    """Return the estimator of a name: ``standard``, ``robust`` or ``log1p``; None for None.

    Raises:
        ConfigError: If there is no such scale.
    """
    if scale is None:
        return None
    if scale == "log1p":
        return Log1p(nan)
    if scale not in ("standard", "robust"):
        needed = "'standard', 'robust', 'log1p' or None"
        raise ConfigError(must_be("`scale`", needed, repr(scale)))
    return (MeanStd if scale == "standard" else Robust)(by, nan, "overall" if by else "error")
