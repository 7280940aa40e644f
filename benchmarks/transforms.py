"""Transforms of the benchmarks, for seqdata by batch and by sequence, and for the peer.

The same arithmetic in all: a token above a bound becomes the unknown one, frames are normalised.
NumPy alone, so that a worker process need not import torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from samples import FRAME

from seqdata.loading.transforms.declare import Ragged, columnar

KNOWN, UNKNOWN = 40_000, 1
_MEAN = np.linspace(0.4, 0.6, FRAME, dtype=np.float32)
_SCALE = np.linspace(3.0, 4.0, FRAME, dtype=np.float32)


def change_s(values: np.ndarray) -> np.ndarray:
    """Replace rare tokens."""
    return np.where(values < KNOWN, values, np.int32(UNKNOWN))


def change_m(values: np.ndarray) -> np.ndarray:
    """Normalise frames."""
    return (values - _MEAN) * _SCALE


def each_s(sequence: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    return {"x": change_s(sequence["x"])}


def each_m(sequence: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
    return {"x": change_m(sequence["x"])}


@columnar
def all_s(columns: dict[str, Any], _: np.ndarray) -> dict[str, Any]:
    x = columns["x"]
    return {"x": Ragged(change_s(x.values), x.lengths)}


@columnar
def all_m(columns: dict[str, Any], _: np.ndarray) -> dict[str, Any]:
    x = columns["x"]
    return {"x": Ragged(change_m(x.values), x.lengths)}


CHANGES = {"S": change_s, "M": change_m}
SETTINGS: dict[str, dict[str, Any]] = {
    "no transform": {},
    "columnar": {"S": all_s, "M": all_m},
    "per sequence": {"S": each_s, "M": each_m},
}
"""Setting -> data set -> transform of seqdata; the peer changes each sequence in any case."""
