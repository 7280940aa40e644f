"""Mean and standard deviation of a field, by feature and by group, to standardize values."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, DecodeError, must_be
from seqdata.fitting.exact_sums import ExactSums, sum_exactly
from seqdata.fitting.field_chunk import (
    NAN_RULES,
    FieldChunk,
    check_choice,
    check_number_field,
    list_groups,
    to_plain_floats,
)
from seqdata.protocols import Field

NanRule = Literal["error", "ignore", "impute"]

COARSE = 2.0**-6  # fraction of a deviation: coarser rounding is visible in values
_MANY = 1 << 10  # deviations by which values may differ from their mean


@dataclass(frozen=True, slots=True)
class MeanStd:
    """Estimator that standardizes a field by its mean and standard deviation.

    The mean is subtracted, and the result is divided by the standard deviation of the population,
    or by 1 if this is 0. Each feature of a timestep has its own statistics. They are exact: equal
    bit for bit for any order of the data and any number of workers. Results are float32, or float64
    for float64 values.

    Args:
        by: Field with one value per sequence, such as ``"site"``. Each value then has its own
            statistics. None: all sequences have the same.
        nan: Treatment of NaN. ``error``: raise. ``ignore``: do not count NaN, and keep it.
            ``impute``: do not count NaN, and replace it with the mean.
        unknown: Treatment of a value of ``by`` that was not fitted: ``error``, or ``overall`` for
            the statistics of all sequences.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import fit
        >>> fit([[1.0, 2.0], [6.0]], {"x": MeanStd()})["x"].mean
        array(3.)
    """

    by: str | None = None
    nan: NanRule = "error"
    unknown: Literal["error", "overall"] = "error"

    def __post_init__(self) -> None:
        check_choice("MeanStd", "nan", self.nan, NAN_RULES)
        check_choice("MeanStd", "unknown", self.unknown, ("error", "overall"))

    def start(self, name: str, field: Field) -> MomentsAccumulator:
        """Return an accumulator of sums; see ``Estimator``."""
        check_number_field("MeanStd", name, field)
        return MomentsAccumulator(self, name, field)


class MomentsAccumulator:
    """Accumulates exact sums by group.

    Args:
        estimator: The estimator.
        name: Name of the field.
        field: Dtype and shape of the field.
    """

    def __init__(self, estimator: MeanStd, name: str, field: Field) -> None:
        self._estimator = estimator
        self._name = name
        self._field = field
        self._group_indices: dict[Hashable, int] = {}
        self._sums = ExactSums.zeros(0, int(np.prod(field.shape)))

    def measure(self, chunk: FieldChunk) -> tuple[list[Hashable], ExactSums]:
        """Return the groups of a chunk and their sums."""
        values: NDArray[Any] = chunk.values
        present = _find_present(chunk, self._estimator.nan)
        groups: list[Hashable] = [None]
        indices = np.zeros(len(chunk.lengths), dtype=np.int64)
        if chunk.groups is not None:
            groups, indices = list_groups(chunk.groups)
        rows = np.repeat(indices, chunk.lengths)
        return groups, sum_exactly(values, present, rows, len(groups))

    def add(self, partial: tuple[list[Hashable], ExactSums]) -> None:
        """Add the sums of a chunk."""
        groups, sums = partial
        indices = [
            self._group_indices.setdefault(group, len(self._group_indices)) for group in groups
        ]
        self._sums.grow(len(self._group_indices))
        self._sums.add(sums, np.array(indices, dtype=np.int64))

    def end_pass(self) -> bool:
        """Return False: one pass is enough."""
        return False

    def make_plain(self) -> dict[str, Any]:
        """Return means and deviations over all values, and of each group that has values.

        Raises:
            DataError: If a group lacks values of a feature, unless ``unknown`` allows it, or
                float64 cannot distinguish integers.
        """
        shape = self._field.shape
        overall = ExactSums.zeros(1, self._sums.counts.shape[1])
        if self._group_indices:
            overall.counts += self._sums.counts.sum(axis=0)
            overall.sums += self._sums.sums.sum(axis=0)
            overall.squares += self._sums.squares.sum(axis=0)
        mean, std = overall.compute_moments()
        self._check_resolution(mean, std)
        plain: dict[str, Any] = {
            "kind": "mean_std",
            **{name: getattr(self._estimator, name) for name in ("by", "nan", "unknown")},
            "count": np.array(overall.counts[0]).reshape(shape).tolist(),
            "mean": to_plain_floats(mean[0].reshape(shape)),
            "std": to_plain_floats(std[0].reshape(shape)),
        }
        if self._estimator.by is not None:
            groups = self._find_groups()
            order = [self._group_indices[group] for group in groups]
            is_known = self._sums.counts[order] > 0  # (groups, features)
            means, deviations = (
                np.where(is_known, own[order], of_all)
                for own, of_all in zip(self._sums.compute_moments(), (mean, std), strict=True)
            )
            plain["groups"] = groups
            plain["group_means"] = to_plain_floats(means.reshape(-1, *shape))
            plain["group_stds"] = to_plain_floats(deviations.reshape(-1, *shape))
        return plain

    def _check_resolution(self, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        """Raise if integers are so large that float64 cannot distinguish them.

        Raises:
            DataError: If their standard deviation is below the rounding error of their mean.
        """
        if np.dtype(self._field.dtype).kind not in "iu":
            return
        is_coarse = (std > 0) & (np.spacing(np.abs(mean)) > std * COARSE)
        if is_coarse.any():
            at = int(np.flatnonzero(is_coarse.reshape(-1))[0])
            raise DataError.at(
                f"fit: field {self._name!r} must have integers that float64 can distinguish, but "
                f"has a mean of {mean.reshape(-1)[at]:.17g} and a standard deviation of "
                f"{std.reshape(-1)[at]:.3g}. Subtract a constant from them, such as the smallest, "
                "or leave the field out.",
                field=self._name,
            )

    def _find_groups(self) -> list[Any]:
        """Return the groups that have values, in order.

        Raises:
            DataError: If a group lacks values of a feature, unless ``unknown`` allows it.
        """
        groups: list[Any] = []
        for group in sorted(self._group_indices, key=lambda group: (str(type(group)), group)):
            is_known = self._sums.counts[self._group_indices[group]] > 0
            if is_known.any():
                groups.append(group)
                if self._estimator.unknown == "error" and not is_known.all():
                    feature = int(np.flatnonzero(~is_known)[0])
                    raise DataError(
                        f"fit: each {self._estimator.by} must have at least one value of each "
                        f"feature, but {group!r} has none of feature {feature}. Fit over more "
                        "sequences, or use MeanStd(unknown='overall')."
                    )
        return groups


class FittedMeanStd:
    """Fitted means and standard deviations of a field, or medians and interquartile ranges.

    Args:
        name: Name of the field.
        plain: Result of the accumulator.

    Attributes:
        estimator: ``MeanStd`` or ``Robust``.
        mean: float64 (*shape), mean of all values; of ``Robust`` their median.
        std: float64 (*shape), standard deviation of all values; of ``Robust`` their interquartile
            range.
        groups: The values of ``by``, in order; empty without ``by``.
    """

    def __init__(self, name: str, plain: dict[str, Any]) -> None:
        self.name = name
        self.estimator = "Robust" if plain["kind"] == "robust" else "MeanStd"
        self.by: str | None = plain["by"]
        self.mean = np.array(plain["mean"], dtype=np.float64)
        self.std = np.array(plain["std"], dtype=np.float64)
        self.groups: list[Any] = list(plain.get("groups", ()))
        self._nan, self._unknown = plain["nan"], plain["unknown"]
        shape = self.mean.shape
        means = np.array(plain.get("group_means", ()), dtype=np.float64).reshape(-1, *shape)
        scales = np.array(plain.get("group_stds", ()), dtype=np.float64).reshape(-1, *shape)
        self._means = np.concatenate([means, self.mean[None]])  # the last row is of all groups
        self._scales = _to_scales(np.concatenate([scales, self.std[None]]))
        self._group_indices = {group: index for index, group in enumerate(self.groups)}
        self._needs_float64 = _exceeds_float32(self._means, self._scales)

    def apply(self, values: NDArray[Any], lengths: NDArray[np.int64], groups: Any) -> Any:
        """Return standardized values.

        Args:
            values: (rows, *shape).
            lengths: int64 (sequences,), number of rows of each sequence.
            groups: A value of ``by`` per sequence.

        Raises:
            DecodeError: If there is a NaN or an unknown group, unless ``nan`` or ``unknown`` allows
                it, or a result exceeds the range of its dtype.
        """
        dtype = np.float64 if values.dtype == np.float64 else np.float32
        mean, scale = self._select(groups, lengths)
        found = (values - mean) / scale
        if self._nan != "ignore" and values.dtype.kind == "f":
            missing = np.isnan(values)
            if missing.any() and self._nan == "error":
                raise DecodeError.at(
                    f"statistics: field {self.name!r} has a NaN, which nan='error' does not allow. "
                    "Fit with nan='ignore' or nan='impute'.",
                    field=self.name,
                )
            found[missing] = 0.0
        try:
            with np.errstate(over="raise"):
                return found.astype(dtype)
        except FloatingPointError as error:
            largest = np.finfo(dtype).max
            spread = "interquartile ranges" if self.estimator == "Robust" else "standard deviations"
            raise DecodeError.at(
                f"statistics: values of field {self.name!r} must be less than {largest:.0e} "
                f"{spread} from the center, but one is not. Include it in the data that is fitted, "
                "or fit Quantiles of the field, which clip it.",
                field=self.name,
            ) from error

    def inverse(self, values: Any, groups: Any = None) -> Any:
        """Return standardized values in the unit of the data.

        Args:
            values: Array or tensor (..., *shape); with groups (sequences, ..., *shape).
            groups: A value of ``by`` per sequence.

        Returns:
            Values in the precision of the argument, at least float32; in float64 where float32
            cannot distinguish values that differ by a small fraction of the standard deviation.

        Raises:
            ConfigError: If groups are needed and not given, or the shape is not that of the field.
            DecodeError: If a group was not fitted, unless ``unknown`` allows it.
        """
        if not hasattr(values, "new_tensor") and not hasattr(values, "batch_sizes"):
            values = np.asarray(values)
        shape = self._check_shape(values)
        mean, scale = self._means[-1].reshape(shape), self._scales[-1].reshape(shape)
        if self.by is not None:
            indices = self._find_rows(values, groups)
            row_shape = (len(indices), *(1,) * (values.ndim - 1 - len(shape)), *shape)
            mean = self._means[indices].reshape(row_shape)
            scale = self._scales[indices].reshape(row_shape)
        if hasattr(values, "new_tensor"):
            return _rescale_tensor(values, mean, scale, self._needs_float64)
        found = values.astype(np.float64) * scale + mean
        is_double = values.dtype.kind != "f" or self._needs_float64
        return found if is_double else found.astype(np.result_type(values.dtype, np.float32))

    def _check_shape(self, values: Any) -> tuple[int, ...]:
        """Return the shape of a timestep in ``values``: that of the field, or () for one feature.

        Raises:
            ConfigError: If ``values`` has another shape.
        """
        shape = () if self.mean.size == 1 else self.mean.shape
        has_rows = self.by is not None  # groups are given by row
        found = None if hasattr(values, "batch_sizes") else tuple(values.shape)
        if has_rows and getattr(values, "is_nested", False):
            found = None
        if (
            found is None
            or len(found) < len(shape) + has_rows
            or found[len(found) - len(shape) :] != shape
        ):
            axes = ["rows"] * has_rows + ["...", *map(str, self.mean.shape)]
            raise ConfigError(
                must_be(
                    f"statistics: the shape of {self.name!r} for its inverse",
                    f"({', '.join(axes)}), with every feature that was fitted",
                    f"that of a {type(values).__name__}" if found is None else f"{found}",
                    "If a model predicts some of the features, write them into an array of all "
                    "features, zeros elsewhere, and take them out of the result. Bring a batch "
                    "without rows into the padded layout (`batch.as_layout`)",
                )
            )
        return shape

    def _find_rows(self, values: Any, groups: Any) -> NDArray[np.int64]:
        """Return the index of the group of each row.

        Raises:
            ConfigError: If groups are missing, or their number is not that of the rows.
        """
        if groups is None:
            raise ConfigError(
                f"statistics: the inverse of {self.name!r} needs {self.by!r} of each sequence, "
                f"by which it was fitted. Pass inverse({{{self.name!r}: ..., "
                f"{self.by!r}: ...}})."
            )
        indices = self._find_indices(groups)
        if len(indices) != len(values):
            raise ConfigError(
                must_be(
                    f"statistics: {self.by!r} for the inverse of {self.name!r}",
                    f"a value for each of {len(values)} rows",
                    f"{len(indices)} values",
                    "Pass those of the same batch, in the padded layout",
                )
            )
        return indices

    def _select(self, groups: Any, lengths: NDArray[np.int64]) -> tuple[Any, Any]:
        """Return the mean and the scale of each row, or one for all rows."""
        if self.by is None:
            return self._means[-1], self._scales[-1]
        lengths = np.asarray(lengths)
        has_rows = lengths > 0  # the group of an empty sequence may be unknown
        groups = np.asarray(groups, dtype=object if isinstance(groups, list) else None)[has_rows]
        indices = np.repeat(self._find_indices(groups), lengths[has_rows])
        return self._means[indices], self._scales[indices]

    def _find_indices(self, groups: Any) -> NDArray[np.int64]:
        if isinstance(groups, list):
            distinct = list(dict.fromkeys(groups))
            index_of = {group: index for index, group in enumerate(distinct)}
            indices = np.array([index_of[group] for group in groups], dtype=np.int64)
        else:
            tensor = groups.detach().cpu() if hasattr(groups, "detach") else groups
            distinct, indices = list_groups(tensor)
        known = np.array([self._group_indices.get(group, -1) for group in distinct], dtype=np.int64)
        if self._unknown == "error" and (known < 0).any():
            group = distinct[int(np.flatnonzero(known < 0)[0])]
            raise DecodeError.at(
                f"statistics: {self.by} {group!r} of field {self.name!r} had no value in the data "
                "that was fitted. Fit over it, too, or with unknown='overall'.",
                field=self.name,
            )
        return known[indices]


def _find_present(chunk: FieldChunk, rule: NanRule) -> NDArray[np.bool_] | None:
    """Return which values are finite; None if all are.

    Raises:
        DataError: If a value is infinite, or NaN with the rule ``error``.
    """
    values = chunk.values
    if values.dtype.kind != "f":
        return None
    finite: NDArray[np.bool_] = np.isfinite(values)
    if finite.all():
        return None
    bad = ~finite if rule == "error" else np.isinf(values)
    if bad.any():
        row, feature = (int(axis[0]) for axis in np.nonzero(bad))
        value = values[row, feature]
        hint = (
            "Fit with MeanStd(nan='ignore') or nan='impute'"
            if np.isnan(value)
            else "Leave the sequence out with `where`, or repair it"
        )
        raise chunk.make_error(row, f"values of MeanStd must be finite, but one is {value}. {hint}")
    return finite


def _to_scales(deviations: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(deviations > 0, deviations, np.where(np.isnan(deviations), np.nan, 1.0))


def _exceeds_float32(means: NDArray[np.float64], scales: NDArray[np.float64]) -> bool:
    """Return whether float32 cannot represent values, or rounds them too coarsely."""
    largest = float(np.finfo(np.float32).max)
    sizes = np.abs(means) + scales
    steps = np.spacing(np.minimum(sizes, largest / 2).astype(np.float32)).astype(np.float64)
    return bool(((steps > scales * COARSE) | (sizes > largest / _MANY)).any())


def _rescale_tensor(
    values: Any, mean: NDArray[np.float64], scale: NDArray[np.float64], needs_float64: bool
) -> Any:
    """Compute ``values * scale + mean`` in float64; return it in the precision of ``values``."""
    inputs = values.cpu() if values.device.type == "mps" else values  # has no float64
    doubles = inputs.double()
    found = doubles * doubles.new_tensor(scale) + doubles.new_tensor(mean)
    if needs_float64 or not values.is_floating_point():
        return found
    return (found.float() if values.element_size() < 4 else found.to(values.dtype)).to(
        values.device
    )
