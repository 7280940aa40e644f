"""Exact sums of floats and of their squares, as integers: equal for any order, chunks and ranks.

A column is cut into slices of so few bits that a float64 holds their sum over a whole chunk without
rounding (Rump, Ogita and Oishi, "Accurate floating-point summation, part I", SIAM J. Sci. Comput.
31, 2008); squares are two floats without error (Dekker, "A floating-point technique for extending
the available precision", Numer. Math. 18, 1971). The slices' sums are added up as integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_ROWS = 1 << 22
"""Most rows of a chunk: the more there are, the fewer bits a slice has."""

_MANTISSA_BITS = 53
_UNIT_BITS = 1074  # the smallest float64 is 2**-1074, and every other is a multiple of it
_SPLITTER = 2.0**27 + 1
_LARGE, _SMALL, _SCALE_BITS = 2.0**500, 2.0**-450, 600  # beyond these, squares are scaled
_MAX_EXACT = 1 << 53  # integers up to here are floats without rounding
_NARROW_FLOATS = ("float16", "float32")  # their squares are floats without rounding


@dataclass(slots=True, eq=False)
class ExactSums:
    """Sums and sums of squares by group and feature.

    Attributes:
        counts: Object array of integers (groups, features).
        sums: Object array of integers (groups, features), in units of 2**-1074.
        squares: Object array of integers (groups, features), in units of 2**-2148.
    """

    counts: NDArray[Any]
    sums: NDArray[Any]
    squares: NDArray[Any]

    @classmethod
    def zeros(cls, groups: int, features: int) -> ExactSums:
        """Return sums over no values."""
        return cls(*(_zeros((groups, features)) for _ in range(3)))

    def add(self, other: ExactSums, rows: NDArray[np.int64] | None = None) -> None:
        """Add other sums.

        Args:
            other: Sums of the same features.
            rows: Index here of each group of ``other``, int64 (groups of ``other``,), none twice;
                None: both have the same groups.
        """
        where: Any = slice(None) if rows is None else rows
        self.counts[where] += other.counts
        self.sums[where] += other.sums
        self.squares[where] += other.squares

    def grow(self, groups: int) -> None:
        """Add empty groups at the end until there are ``groups`` of them."""
        missing = groups - len(self.counts)
        if missing > 0:
            empty = _zeros((missing, self.counts.shape[1]))
            self.counts = np.concatenate([self.counts, empty])
            self.sums = np.concatenate([self.sums, empty])
            self.squares = np.concatenate([self.squares, empty])

    def compute_moments(self) -> tuple[Floats, Floats]:
        """Return means and standard deviations, float64 (groups, features); NaN without values.

        Means are rounded once; standard deviations are of the population and exact to one unit in
        the last place.
        """
        means = np.full(self.counts.shape, np.nan)
        deviations = np.full(self.counts.shape, np.nan)
        for at in np.ndindex(*self.counts.shape):
            count, total, square = self.counts[at], self.sums[at], self.squares[at]
            if count:
                means[at] = total / (count << _UNIT_BITS)
                spread = count * square - total * total
                deviations[at] = _compute_root(spread, count * count << 2 * _UNIT_BITS)
        return means, deviations


def sum_exactly(
    values: NDArray[Any],
    present: NDArray[np.bool_] | None,
    groups: NDArray[np.int64],
    group_count: int,
) -> ExactSums:
    """Return the sums of a chunk.

    Args:
        values: Numbers (rows, features), at most ``MAX_ROWS``, finite where they are present.
        present: bool (rows, features), whether a value is added; None: all are.
        groups: int64 (rows,), the group of each row, in [0, ``group_count``).
        group_count: Number of groups.

    Raises:
        ValueError: If there are too many rows.
    """
    if len(values) > MAX_ROWS:
        raise ValueError(
            f"sum_exactly: `values` must have at most {MAX_ROWS} rows, but has {len(values)}"
        )
    found = ExactSums.zeros(group_count, values.shape[1])
    if not values.size:
        return found
    runs = _Runs.from_groups(groups, group_count)
    if present is None:
        counts = np.bincount(groups, minlength=group_count)[:, None]
        found.counts += np.broadcast_to(counts, found.counts.shape).astype(object)
    else:
        is_present = np.ascontiguousarray(present.T, dtype=np.float64)
        found.counts += runs.sum(is_present).astype(np.int64).astype(object)
        values = np.where(present, values, np.zeros((), values.dtype))
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8 and not _fits_floats(values):
        _sum_integers(values, groups, found)
        return found
    has_exact_squares = values.dtype.name in _NARROW_FLOATS or (
        values.dtype.kind in "iub" and values.dtype.itemsize <= 2
    )
    floats = np.ascontiguousarray(values.T, dtype=np.float64)  # adding along rows is fast
    for band, bits in _iter_bands(floats):
        _add_slices(found.sums, band, runs, _UNIT_BITS - bits)
        squares = band * band
        _add_slices(found.squares, squares, runs, 2 * (_UNIT_BITS - bits))
        if not has_exact_squares:
            errors = _find_square_errors(band, squares)
            _add_slices(found.squares, errors, runs, 2 * (_UNIT_BITS - bits))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Runs of neighbouring rows of one group, which are added at once.

    Attributes:
        starts: int64 (runs,), the first row of each.
        groups: int64 (runs,), the group of each.
        group_count: Number of groups.
    """

    starts: NDArray[np.int64]
    groups: NDArray[np.int64]
    group_count: int

    @classmethod
    def from_groups(cls, groups: NDArray[np.int64], group_count: int) -> _Runs:
        starts = np.flatnonzero(np.diff(groups, prepend=-1))
        return cls(starts, groups[starts], group_count)

    def sum(self, values: Floats) -> Floats:
        """Return the sums of values (features, rows) by group, float64 (groups, features)."""
        sums = np.zeros((self.group_count, len(values)))
        if len(self.starts) == 1:
            sums[self.groups[0]] = values.sum(axis=1)
            return sums
        np.add.at(sums, self.groups, np.add.reduceat(values, self.starts, axis=1).T)
        return sums


def _zeros(shape: tuple[int, int]) -> NDArray[Any]:
    return np.zeros(shape, dtype=object)


def _fits_floats(values: NDArray[Any]) -> bool:
    return int(values.max()) <= _MAX_EXACT and int(values.min()) >= -_MAX_EXACT


def _sum_integers(values: NDArray[Any], groups: NDArray[np.int64], found: ExactSums) -> None:
    """Add integers that float64 cannot represent, one by one."""
    integers = values.astype(object)
    np.add.at(found.sums, groups, integers << _UNIT_BITS)
    np.add.at(found.squares, groups, (integers * integers) << 2 * _UNIT_BITS)


def _iter_bands(values: Floats) -> list[tuple[Floats, int]]:
    """Return pairs of an array and a number of bits; the arrays * 2**-bits add up to the values.

    Very large and very small values are in arrays of their own, so that squares do not overflow.
    """
    sizes = np.abs(values)
    large, small = sizes > _LARGE, (sizes < _SMALL) & (sizes > 0)
    if not large.any() and not small.any():
        return [(values, 0)]
    scale = 2.0**_SCALE_BITS
    return [
        (np.where(large | small, 0.0, values), 0),
        (np.where(large, values, 0.0) / scale, -_SCALE_BITS),
        (np.where(small, values, 0.0) * scale, _SCALE_BITS),
    ]


def _find_square_errors(values: Floats, squares: Floats) -> Floats:
    """Return the rounding errors of squares."""
    split = values * _SPLITTER
    high = split - (split - values)
    low = values - high
    errors: Floats = low * low - ((squares - high * high) - 2 * (high * low))
    return errors


def _add_slices(totals: NDArray[Any], values: Floats, runs: _Runs, unit_bits: int) -> None:
    """Add the sums of values (features, rows) by group to integers.

    Args:
        totals: Integers (groups, features) in units of ``2**-unit_bits``.
        values: The values, float64.
        runs: The groups.
        unit_bits: See ``totals``.
    """
    rest = values
    slack = math.ceil(math.log2(values.shape[1] + 2))
    while True:
        largest = np.maximum(rest.max(axis=1), -rest.min(axis=1))
        if not largest.any():
            return
        _, exponents = np.frexp(largest)
        # every slice is a multiple of the last bit of `bound`, and so small that sums have room
        bound = np.ldexp(1.0, exponents + slack)[:, None]
        piece = (bound + rest) - bound
        totals += _to_integers(runs.sum(piece), unit_bits)
        rest = rest - piece


def _to_integers(floats: Floats, unit_bits: int) -> NDArray[Any]:
    """Return floats that are multiples of ``2**-unit_bits`` as integers of that unit."""
    mantissas, exponents = np.frexp(floats)
    integers = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64).astype(object)
    shifts = exponents.astype(np.int64) - _MANTISSA_BITS + unit_bits
    raised = integers << np.maximum(shifts, 0).astype(object)
    lowered: NDArray[Any] = raised >> np.maximum(-shifts, 0).astype(object)
    return lowered


def _compute_root(numerator: int, denominator: int) -> float:
    """Return the square root of a fraction of integers."""
    if numerator == 0:
        return 0.0
    shift = max(0, 140 - (numerator.bit_length() - denominator.bit_length()))
    shift += shift % 2
    root = math.isqrt((numerator << shift) // denominator)
    return root / (1 << shift // 2)
