"""Weights of sequences: what is checked of them, and their digest."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex


class WeightArray:
    """Weights that were passed as an array; equal if their digests are.

    Args:
        values: float64 (n,).

    Attributes:
        values: The same.
        digest: Digest of the values, 32 hex digits.
    """

    __slots__ = ("digest", "values")

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.values = values
        self.digest = hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()[:32]

    def __repr__(self) -> str:
        return f"WeightArray({len(self.values)} of digest {self.digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightArray) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def make_weight_array(weights: Any) -> WeightArray:
    """Return weights of sequences that were passed as anything like an array.

    Raises:
        ConfigError: If they are invalid.
    """
    return WeightArray(check_weights(np.asarray(weights), "`weights`"))


def check_weights(
    values: NDArray[Any], name: str, index: SequenceIndex | None = None
) -> NDArray[np.float64]:
    """Return weights as float64 (n,).

    Raises:
        ConfigError: If they are not numbers, one is negative, infinite or NaN, or none above 0.
    """
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise ConfigError(
            f"policy 'weighted': {name} must have one number for each sequence, but is "
            f"{values.dtype} of {values.ndim} dimensions. Pass numbers, the name of a field, or "
            "balanced(field)."
        )
    weights = values.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        first = wrong[0]
        sequence = f"sequence {first if index is None else index.names([first])}"
        raise ConfigError(
            f"policy 'weighted': {name} must be finite and at least 0, but is {weights[first]} for "
            f"{sequence}. Give it 0 to leave it out."
        )
    if len(weights) and not weights.any():
        raise ConfigError(
            f"policy 'weighted': {name} must be above 0 for a sequence, but all are 0. Pass other "
            "weights."
        )
    return weights


def check_labels(values: NDArray[Any], name: str, index: SequenceIndex) -> None:
    """Raise ConfigError if a value of a field is not a label."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        first = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ConfigError(
            f"policy 'weighted': field {name!r} must be a label to balance by, but is "
            f"{values[first]} for sequence {index.names([first])}. Store a finite number or a text."
        )


def balance_labels(is_planned: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[np.float64]:
    """Return 1 / (how often its value occurs) for each sequence that is planned, float64 (n,)."""
    weights = np.zeros(len(values))
    _, value_numbers, counts = np.unique(
        values[is_planned], return_inverse=True, return_counts=True
    )
    weights[is_planned] = 1 / counts[value_numbers]
    return weights
