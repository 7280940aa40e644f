"""Lengths of sequences in the smallest integers that hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_UINT32_VALUES = 1 << 32


def narrow_lengths(lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return lengths in uint32, or in uint64 where they need it."""
    fits_uint32 = int(lengths.max(initial=0)) < _UINT32_VALUES
    return lengths.astype("<u4" if fits_uint32 else "<u8")
