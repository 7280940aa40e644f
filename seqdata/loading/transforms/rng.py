"""Which drawing of its sequence a span is: what keeps the randomness of repeats apart.

Place in the flow: beside the plan, before a request is made. Reads: numbers of a view. Makes: one
number per span.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.index import earlier_of
from seqdata.protocols import Store

Crops = Callable[[NDArray[np.int64], int], NDArray[np.int64]]
"""``crops(spans, epoch)``: int64 (n, 3) and an epoch -> int64 (n,)."""


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
    """Look which sequences a store holds more than once."""
    return Occurrences(earlier_of(store.base_numbers, len(store)), crops)
