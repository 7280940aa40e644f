"""Exact quantiles of a field, found digit by digit with integer counts, to clip values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError, DecodeError, must_be
from seqdata.fitting.field_chunk import (
    NAN_PROBLEM,
    NAN_RULES,
    FieldChunk,
    check_choice,
    check_number_field,
    to_plain_floats,
)
from seqdata.fitting.mean_std import COARSE, NanRule
from seqdata.protocols import Field

_COUNTS_IN_MEMORY = 1 << 22  # most counts of a pass, over all features and ranks
_SIGN = 1 << 63


@dataclass(frozen=True, slots=True, init=False)
class Quantiles:
    """Estimator that clips a field to the range from its lowest to its highest quantile.

    A single level clips one side: values below its quantile if it is below 0.5, else values above.
    Quantiles are exact, as from ``numpy.quantile``, for each feature of a timestep. The data is not
    sorted, but read a few times, and each pass counts the next bits of the numbers.

    Args:
        *levels: Levels of the quantiles, at least one, in [0, 1] and increasing.
        nan: Treatment of NaN. ``error``: raise. ``ignore``: do not count NaN, and keep it.
            ``impute``: do not count NaN, and replace it with the median.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import fit
        >>> fit([[1.0, 2.0], [3.0, 90.0]], {"x": Quantiles(0.0, 0.5)})["x"].values.tolist()
        [1.0, 2.5]
    """

    levels: tuple[float, ...]
    nan: NanRule = "error"

    def __init__(self, *levels: float, nan: NanRule = "error") -> None:
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "nan", nan)
        check_choice("Quantiles", "nan", nan, NAN_RULES)
        are_shares = all(
            isinstance(level, int | float) and not isinstance(level, bool) and 0 <= level <= 1
            for level in levels
        )
        if not levels or not are_shares or list(levels) != sorted(set(levels)):
            raise ConfigError(
                must_be("Quantiles: `levels`", "one or more rising numbers in [0, 1]", repr(levels))
            )

    def start(self, name: str, field: Field) -> DigitsAccumulator:
        """Return an accumulator of counts; see ``Estimator``."""
        check_number_field("Quantiles", name, field)
        return DigitsAccumulator(self, name, field)


class DigitsAccumulator:
    """Finds the numbers at given ranks of the sorted values, digit by digit, the highest first.

    Numbers become unsigned integers of the same order. Each pass counts the next digits of the
    numbers that begin with the digits known so far.

    Args:
        estimator: The estimator.
        name: Name of the field.
        field: Dtype and shape of the field.
    """

    def __init__(self, estimator: Quantiles, name: str, field: Field) -> None:
        self._estimator = estimator
        self._name = name
        self._field = field
        self._features = int(np.prod(field.shape))
        levels = estimator.levels + ((0.5,) if estimator.nan == "impute" else ())
        self._levels = np.array(levels, dtype=np.float64)
        self._key_bits = 8 * _key_dtype(np.dtype(field.dtype)).itemsize
        self._known_bits = 0
        self._counts = np.zeros(self._features, dtype=np.int64)
        # the rank below and the rank above each level of each feature, (features, levels, 2)
        self._prefixes = np.zeros((self._features, len(levels), 2), dtype=np.uint64)
        self._ranks = np.zeros(self._prefixes.shape, dtype=np.int64)
        self._begin_digit()

    def measure(self, chunk: FieldChunk) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices in the table of counts that a chunk adds to, and its counts.

        Raises:
            DataError: If there is a NaN, unless ``nan`` allows it.
        """
        keys, present = _to_keys(chunk, self._estimator.nan)
        shift = np.uint64(self._key_bits - self._known_bits - self._digit_bits)
        mask = np.uint64((1 << self._digit_bits) - 1)
        indices, counts = [], []
        for target, (feature, prefix) in enumerate(self._targets):
            column = keys[:, feature] if present is None else keys[present[:, feature], feature]
            if self._known_bits:
                known = column >> np.uint64(self._key_bits - self._known_bits)
                column = column[known == np.uint64(prefix)]
            digits = ((column >> shift) & mask).astype(np.int64)
            found = np.bincount(digits)
            used = np.flatnonzero(found)
            indices.append(used + (target << self._digit_bits))
            counts.append(found[used])
        return np.concatenate(indices), np.concatenate(counts).astype(np.int64)

    def add(self, partial: tuple[NDArray[np.int64], NDArray[np.int64]]) -> None:
        """Add the counts of a chunk."""
        indices, counts = partial
        self._table.reshape(-1)[indices] += counts

    def end_pass(self) -> bool:
        """Choose the next digit of every rank; return whether there are more digits."""
        if not self._known_bits:
            self._counts = self._table.sum(axis=1)
            virtual = (np.maximum(self._counts, 1) - 1)[:, None] * self._levels
            self._ranks[..., 0] = np.floor(virtual)
            self._ranks[..., 1] = np.minimum(
                self._ranks[..., 0] + 1, np.maximum(self._counts, 1)[:, None] - 1
            )
        ends = np.cumsum(self._table, axis=1)
        rows = {target: row for row, target in enumerate(self._targets)}
        for at in np.ndindex(*self._prefixes.shape):
            prefix = int(self._prefixes[at])
            row = rows[at[0], prefix]
            digit = int(np.searchsorted(ends[row], self._ranks[at], side="right"))
            digit = min(digit, (1 << self._digit_bits) - 1)  # larger if the feature has no values
            self._ranks[at] -= ends[row, digit - 1] if digit else 0
            self._prefixes[at] = (prefix << self._digit_bits) | digit
        self._known_bits += self._digit_bits
        if self._known_bits == self._key_bits:
            return False
        self._begin_digit()
        return True

    def make_plain(self) -> dict[str, Any]:
        """Return the quantiles of each feature.

        Raises:
            DataError: If float32 hardly distinguishes integers of the field.
        """
        values = self.find_values()
        self._check_resolution(values)
        has_median = self._estimator.nan == "impute"
        return {
            "kind": "quantiles",
            "levels": list(self._estimator.levels),
            "nan": self._estimator.nan,
            "count": self.counts,
            "values": to_plain_floats(values[:-1] if has_median else values),
            "median": to_plain_floats(values[-1]) if has_median else None,
        }

    @property
    def counts(self) -> Any:
        """Number of values of each feature, as nested lists of integers."""
        return self._counts.reshape(self._field.shape).tolist()

    def find_values(self) -> NDArray[np.float64]:
        """Return the quantiles, float64 (levels, *shape); NaN of a feature without values."""
        below, above = np.moveaxis(_from_keys(self._prefixes, np.dtype(self._field.dtype)), -1, 0)
        virtual = (np.maximum(self._counts, 1) - 1)[:, None] * self._levels
        weights = virtual - np.floor(virtual)
        values = _interpolate(below, above, weights)
        values[self._counts == 0] = np.nan
        return np.moveaxis(values.reshape(*self._field.shape, -1), -1, 0)

    def _check_resolution(self, values: NDArray[np.float64]) -> None:
        """Raise if float32, to which clipped integers are converted, hardly distinguishes them.

        Raises:
            DataError: If rounding is not small compared with the difference of the quantiles.
        """
        if np.dtype(self._field.dtype).kind not in "iu" or len(self._estimator.levels) < 2:
            return
        bounds = np.stack([values[0], values[len(self._estimator.levels) - 1]])
        largest = np.abs(bounds).max(axis=0)
        steps = np.spacing(np.minimum(largest, np.finfo(np.float32).max / 2).astype(np.float32))
        spread = bounds[1] - bounds[0]
        is_coarse = (spread > 0) & (steps > spread * COARSE)
        if is_coarse.any():
            raise DataError.at(
                f"fit: field {self._name!r} of Quantiles must have integers that float32 can "
                f"distinguish, but has values up to {largest[is_coarse].reshape(-1)[0]:.17g} and "
                f"quantiles only {spread[is_coarse].reshape(-1)[0]:.3g} apart. Subtract a constant "
                "from them, such as the smallest, or store them as float64.",
                field=self._name,
            )

    def _begin_digit(self) -> None:
        features = range(self._features)
        known = [sorted(set(self._prefixes[feature].reshape(-1).tolist())) for feature in features]
        self._targets = [(feature, prefix) for feature in features for prefix in known[feature]]
        room = max(4, (_COUNTS_IN_MEMORY // max(1, len(self._targets))).bit_length() - 1)
        self._digit_bits = min(16, room, self._key_bits - self._known_bits)
        self._table = np.zeros((len(self._targets), 1 << self._digit_bits), dtype=np.int64)


class FittedQuantiles:
    """Fitted quantiles of a field.

    Args:
        name: Name of the field.
        plain: Result of the accumulator.

    Attributes:
        levels: The levels.
        values: float64 (levels, *shape), the quantiles.
    """

    def __init__(self, name: str, plain: dict[str, Any]) -> None:
        self.name = name
        self.by: str | None = None
        self.levels = tuple(plain["levels"])
        self.values = np.array(plain["values"], dtype=np.float64)
        self._nan = plain["nan"]
        self._median = plain["median"] and np.array(plain["median"], dtype=np.float64)

    def apply(self, values: NDArray[Any], lengths: NDArray[np.int64], groups: Any) -> Any:
        """Return values, clipped to the quantiles: to both bounds, or to one with a single level.

        Raises:
            DecodeError: If there is a NaN, unless ``nan`` allows it.
        """
        del lengths, groups
        low = self.values[0] if len(self.levels) > 1 or self.levels[0] < 0.5 else -np.inf
        high = self.values[-1] if len(self.levels) > 1 or self.levels[0] >= 0.5 else np.inf
        dtype = np.float64 if values.dtype == np.float64 else np.float32
        found = np.clip(values.astype(np.float64), low, high)
        missing = np.isnan(found)
        if self._nan != "ignore" and missing.any():
            if self._nan == "error":
                raise DecodeError.at(
                    f"statistics: field {self.name!r} has a NaN, which Quantiles(nan='error') does "
                    "not allow. Fit with nan='ignore' or nan='impute'.",
                    field=self.name,
                )
            found = np.where(missing, self._median, found)
        return found.astype(dtype)

    def inverse(self, values: Any, groups: Any = None) -> Any:
        """Return the values unchanged: they are in the unit of the data."""
        del groups
        return values


def _key_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"uint{8 * dtype.itemsize}")


def _to_keys(
    chunk: FieldChunk, rule: NanRule
) -> tuple[NDArray[np.uint64], NDArray[np.bool_] | None]:
    """Return unsigned integers in the order of the values, and which are not NaN; None: all.

    Raises:
        DataError: If there is a NaN with the rule ``error``.
    """
    values: NDArray[Any] = chunk.values
    unsigned, bits = _key_dtype(values.dtype), 8 * values.dtype.itemsize
    top = np.uint64(1 << (bits - 1))
    if values.dtype.kind != "f":
        keys = values.view(unsigned).astype(np.uint64)
        return (keys ^ top if values.dtype.kind == "i" else keys), None
    missing = np.isnan(values)
    if rule == "error" and missing.any():
        row = int(np.nonzero(missing)[0][0])
        raise chunk.make_error(row, NAN_PROBLEM)
    words = (values + np.zeros((), values.dtype)).view(unsigned).astype(np.uint64)  # -0.0 is 0.0
    negative = (words & top) != 0
    keys = np.where(negative, ~words & np.uint64((1 << bits) - 1), words | top)
    return keys, ~missing if missing.any() else None


def _from_keys(keys: NDArray[np.uint64], dtype: np.dtype[Any]) -> NDArray[np.float64]:
    """Return the numbers that ``_to_keys`` made into keys, as float64."""
    bits = 8 * dtype.itemsize
    top = np.uint64(1 << (bits - 1))
    unsigned = _key_dtype(dtype)
    if dtype.kind == "b":
        return keys.astype(np.float64)
    if dtype.kind == "u":
        return keys.astype(np.float64)
    if dtype.kind == "i":
        return (keys ^ top).astype(unsigned).view(dtype).astype(np.float64)
    positive = (keys & top) != 0
    words = np.where(positive, keys ^ top, ~keys & np.uint64((1 << bits) - 1))
    return np.asarray(words.astype(unsigned).view(dtype).astype(np.float64))


def _interpolate(
    below: NDArray[np.float64], above: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Interpolate between numbers, rounded as ``numpy.quantile`` does."""
    with np.errstate(all="ignore"):  # infinite and very large numbers
        steps = above - below
        found = np.where(weights >= 0.5, above - steps * (1 - weights), below + steps * weights)
        overflows = ~np.isfinite(steps)
        found[overflows] = (below * (1 - weights) + above * weights)[overflows]
    exact = (below == above) | (weights == 0) | np.isnan(found)
    return np.where(exact, below, found)
