"""Which drawing of its sequence a span is: what keeps the randomness of repeats apart.

Place in the flow: beside the plan, before a request is made. Reads: numbers of a view. Makes: one
number per span.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Store

Crops = Callable[[NDArray[np.int64], int], NDArray[np.int64]]
"""``crops(spans, epoch)``: int64 (n, 3) and an epoch -> int64 (n,)."""

_RUN = 1 << 16  # sequences looked at together


@dataclass(frozen=True, slots=True, eq=False)
class Occurrences:
    """Counts what was drawn for before of each span's sequence: positions of a view, or crops.

    Attributes:
        before: int64 (sequences,), how many earlier positions of a view hold the same base
            sequence; None: each is there once.
        crops: Gives the number of each span among its sequence's random crops, for an epoch.
    """

    before: NDArray[np.int64] | None
    crops: Crops | None = None

    def of(self, spans: NDArray[np.int64], epoch: int) -> NDArray[np.int64] | None:
        """Give the number of each span, int64 (n,); None: all are 0.

        The upper half of a number is the position's, the lower half the crop's.
        """
        found = None if self.before is None else self.before[spans[:, 0]]
        if self.crops is None:
            return found
        crops = self.crops(spans, epoch)
        return crops if found is None else (found << 32) + crops


def occurrences_of(store: Store, crops: Crops | None = None) -> Occurrences:
    """Look which sequences a store holds more than once.

    Where their numbers rise, as in most stores, nothing is sorted or kept.
    """
    if _rises(store):
        return Occurrences(None, crops)
    bases = store.base_numbers(np.arange(len(store), dtype=np.int64))
    order = np.argsort(bases, kind="stable")
    ranked = bases[order]
    begins = np.ones(len(bases), dtype=bool)
    begins[1:] = ranked[1:] != ranked[:-1]
    if begins.all():
        return Occurrences(None, crops)
    places = np.arange(len(bases))
    firsts = np.maximum.accumulate(np.where(begins, places, 0))
    counted = np.empty(len(bases), dtype=np.int64)
    counted[order] = places - firsts
    return Occurrences(counted, crops)


def _rises(store: Store) -> bool:
    last = -1
    for first in range(0, len(store), _RUN):
        run = np.arange(first, min(first + _RUN, len(store)), dtype=np.int64)
        bases = store.base_numbers(run)
        if bases[0] <= last or (np.diff(bases) <= 0).any():
            return False
        last = int(bases[-1])
    return True
