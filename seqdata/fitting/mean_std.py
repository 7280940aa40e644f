"""Mean and standard deviation of a field, by feature and by group: standardized values."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, DecodeError
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


@dataclass(frozen=True, slots=True)
class MeanStd:
    """Standardize a field: subtract its mean and divide by its standard deviation.

    Both are those of the population, for each feature of a timestep, and exact: the same bit for
    bit for any order of the data and any number of workers. Where the deviation is 0, values are
    divided by 1. Results are float32, of float64 values float64.

    Args:
        by: A field with one value per sequence, such as ``"site"``: statistics for each value.
        nan: What a NaN is: ``error``; ``ignore``: it is left out, and stays; ``impute``: it is
            left out, and becomes the mean.
        unknown: What a group is that had no value: ``error``, or ``overall`` for the statistics of
            all groups.

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
        """Return what collects sums; see ``Estimator``."""
        check_number_field("MeanStd", name, field)
        return MomentsAccumulator(self, field)


class MomentsAccumulator:
    """Collects exact sums by group.

    Args:
        estimator: What is fitted.
        field: Its field.
    """

    def __init__(self, estimator: MeanStd, field: Field) -> None:
        self._estimator = estimator
        self._field = field
        self._places: dict[Hashable, int] = {}
        self._sums = ExactSums.zeros(0, int(np.prod(field.shape)))

    def measure(self, chunk: FieldChunk) -> tuple[list[Hashable], ExactSums]:
        """Return the groups of a chunk and their sums."""
        values: NDArray[Any] = chunk.values
        present = _find_present(chunk, self._estimator.nan)
        groups: list[Hashable] = [None]
        places = np.zeros(len(chunk.lengths), dtype=np.int64)
        if chunk.groups is not None:
            groups, places = list_groups(chunk.groups)
        rows = np.repeat(places, chunk.lengths)
        return groups, sum_exactly(values, present, rows, len(groups))

    def add(self, partial: tuple[list[Hashable], ExactSums]) -> None:
        """Add the sums of a chunk."""
        groups, sums = partial
        places = [self._places.setdefault(group, len(self._places)) for group in groups]
        self._sums.grow(len(self._places))
        self._sums.add(sums, np.array(places, dtype=np.int64))

    def end_pass(self) -> bool:
        """Return False: one pass is enough."""
        return False

    def make_plain(self) -> dict[str, Any]:
        """Return means and deviations of each group that has values, and of all of them.

        Raises:
            DataError: If a group has values of some features only, and the rule does not allow it.
        """
        shape = self._field.shape
        overall = ExactSums.zeros(1, self._sums.counts.shape[1])
        if self._places:
            overall.counts += self._sums.counts.sum(axis=0)
            overall.sums += self._sums.sums.sum(axis=0)
            overall.squares += self._sums.squares.sum(axis=0)
        mean, std = overall.compute_moments()
        plain: dict[str, Any] = {
            "kind": "mean_std",
            **{name: getattr(self._estimator, name) for name in ("by", "nan", "unknown")},
            "count": np.array(overall.counts[0]).reshape(shape).tolist(),
            "mean": to_plain_floats(mean[0].reshape(shape)),
            "std": to_plain_floats(std[0].reshape(shape)),
        }
        if self._estimator.by is not None:
            groups = self._find_groups()
            order = [self._places[group] for group in groups]
            is_known = self._sums.counts[order] > 0  # (groups, features)
            means, deviations = (
                np.where(is_known, own[order], of_all)
                for own, of_all in zip(self._sums.compute_moments(), (mean, std), strict=True)
            )
            plain["groups"] = groups
            plain["group_means"] = to_plain_floats(means.reshape(-1, *shape))
            plain["group_stds"] = to_plain_floats(deviations.reshape(-1, *shape))
        return plain

    def _find_groups(self) -> list[Any]:
        """Return the groups that have values, in order.

        Raises:
            DataError: If one lacks values of a feature, and the rule does not allow it.
        """
        groups: list[Any] = []
        for group in sorted(self._places, key=lambda group: (str(type(group)), group)):
            is_known = self._sums.counts[self._places[group]] > 0
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
    """Means and standard deviations that were fitted.

    Args:
        name: Of the field.
        plain: What the accumulator made.

    Attributes:
        mean: float64 (*shape), of all values.
        std: float64 (*shape), of all values.
        groups: The values of ``by``, in order; empty without it.
    """

    def __init__(self, name: str, plain: dict[str, Any]) -> None:
        self.name = name
        self.by: str | None = plain["by"]
        self.mean = np.array(plain["mean"], dtype=np.float64)
        self.std = np.array(plain["std"], dtype=np.float64)
        self.groups: list[Any] = list(plain.get("groups", ()))
        self._nan, self._unknown = plain["nan"], plain["unknown"]
        shape = self.mean.shape
        means = np.array(plain.get("group_means", ()), dtype=np.float64).reshape(-1, *shape)
        scales = np.array(plain.get("group_stds", ()), dtype=np.float64).reshape(-1, *shape)
        self._means = np.concatenate([means, self.mean[None]])  # the last one is that of all
        self._scales = _to_scales(np.concatenate([scales, self.std[None]]))
        self._places = {group: place for place, group in enumerate(self.groups)}

    def apply(self, values: NDArray[Any], lengths: NDArray[np.int64], groups: Any) -> Any:
        """Return standardized values.

        Args:
            values: (rows, *shape).
            lengths: int64 (sequences,), rows of each.
            groups: A value of ``by`` per sequence.

        Raises:
            DecodeError: If there is a NaN or an unknown group, and the rule does not allow it.
        """
        dtype = np.float64 if values.dtype == np.float64 else np.float32
        mean, scale = self._select(groups, lengths)
        found = (values - mean) / scale
        if self._nan != "ignore" and values.dtype.kind == "f":
            missing = np.isnan(values)
            if missing.any() and self._nan == "error":
                raise DecodeError.at(
                    f"statistics: field {self.name!r} has a NaN, which MeanStd(nan='error') does "
                    "not allow. Fit with nan='ignore' or nan='impute'.",
                    field=self.name,
                )
            found[missing] = 0.0
        return found.astype(dtype)

    def inverse(self, values: Any, groups: Any = None) -> Any:
        """Return values in the unit of the data.

        Args:
            values: Standardized: an array or a tensor (..., *shape), of groups (sequences, ...,
                *shape).
            groups: A value of ``by`` per sequence.

        Raises:
            ConfigError: If groups are needed and not given.
        """
        mean, scale = self._means[-1], self._scales[-1]
        if self.by is not None:
            if groups is None:
                raise ConfigError(
                    f"statistics: the inverse of {self.name!r} needs {self.by!r} of each sequence, "
                    f"as it was fitted by it. Pass it: inverse({{{self.name!r}: ..., "
                    f"{self.by!r}: ...}})."
                )
            places = self._find_places(groups)
            middle = (1,) * (values.ndim - 1 - self.mean.ndim)
            shape = (len(places), *middle, *self.mean.shape)
            mean, scale = self._means[places].reshape(shape), self._scales[places].reshape(shape)
        if hasattr(values, "new_tensor"):
            if not values.is_floating_point():
                values = values.double()  # as NumPy does
            return values * values.new_tensor(scale) + values.new_tensor(mean)
        array = np.asarray(values)
        found = array * scale + mean
        return found.astype(array.dtype) if array.dtype.kind == "f" else found

    def _select(self, groups: Any, lengths: NDArray[np.int64]) -> tuple[Any, Any]:
        """Return the mean and the scale of each row, or of all of them."""
        if self.by is None:
            return self._means[-1], self._scales[-1]
        lengths = np.asarray(lengths)
        has_rows = lengths > 0  # a sequence without any needs no statistics
        groups = np.asarray(groups, dtype=object if isinstance(groups, list) else None)[has_rows]
        places = np.repeat(self._find_places(groups), lengths[has_rows])
        return self._means[places], self._scales[places]

    def _find_places(self, groups: Any) -> NDArray[np.int64]:
        distinct, places = list_groups(groups)
        known = np.array([self._places.get(group, -1) for group in distinct], dtype=np.int64)
        if self._unknown == "error" and (known < 0).any():
            group = distinct[int(np.flatnonzero(known < 0)[0])]
            raise DecodeError.at(
                f"statistics: {self.by} {group!r} of field {self.name!r} had no value in the data "
                "that was fitted. Fit over it, too, or use MeanStd(unknown='overall').",
                field=self.name,
            )
        return known[places]


def _find_present(chunk: FieldChunk, rule: NanRule) -> NDArray[np.bool_] | None:
    """Return which values are numbers; None if all are."""
    values = chunk.values
    if values.dtype.kind != "f":
        return None
    finite: NDArray[np.bool_] = np.isfinite(values)
    if finite.all():
        return None
    bad = ~finite if rule == "error" else np.isinf(values)
    if bad.any():
        row, feature = (int(place[0]) for place in np.nonzero(bad))
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
