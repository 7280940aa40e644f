"""A stable argsort that is fast if few keys are equal, such as random ones.

NumPy sorts 64-bit keys several times faster if the order of equal ones may be arbitrary; here that
order is restored afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MIN_KEYS = 1 << 10  # below this it is not faster
_MIN_KEYS_PER_TIE = 8  # where more than one key in so many is tied, neither


def stable_argsort(keys: NDArray[Any]) -> NDArray[np.int64]:
    """Return exactly ``np.argsort(keys, kind="stable")``, int64 (n,).

    Args:
        keys: (n,), of a type whose equal values are identical: integers.

    Examples:
        >>> stable_argsort(np.array([3, 1, 3, 2])).tolist()
        [1, 3, 0, 2]
    """
    if len(keys) < _MIN_KEYS:
        return np.argsort(keys, kind="stable")
    order = np.argsort(keys)
    ranked = keys.take(order)
    same = ranked[1:] == ranked[:-1]
    if not same.any():
        return order
    tied = np.zeros(len(keys), dtype=bool)
    tied[1:] = same
    tied[:-1] |= same
    tied_positions = np.flatnonzero(tied)
    if len(tied_positions) * _MIN_KEYS_PER_TIE > len(keys):
        return np.argsort(keys, kind="stable")
    tie_groups = np.zeros(len(keys), dtype=np.int64)  # equal keys have equal numbers
    np.cumsum(~same, out=tie_groups[1:])
    order[tied_positions] = order[
        tied_positions[np.lexsort((order[tied_positions], tie_groups[tied_positions]))]
    ]
    return order
