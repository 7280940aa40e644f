"""Indices of draws, by which a sequence that occurs twice has different random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.index_scans import count_earlier
from seqdata.plan_table import DrawnBatch
from seqdata.protocols import Store

CropNumbersFn = Callable[[NDArray[np.int64], int, DrawnBatch | None], NDArray[np.int64]]
"""``crops(spans, epoch, drawn)``: int64 (n, 3), an epoch and what was drawn -> int64 (n,)."""


@dataclass(frozen=True, slots=True, eq=False)
class Occurrences:
    """Counter of the draws of each sequence: its positions in a view, or its crops.

    Attributes:
        earlier_counts: int64 (sequences,), number of earlier positions of a view with the same
            base sequence; None: each occurs once.
        crop_numbers: Returns the index of each span among its sequence's random crops, for an
            epoch; None: there are none.
    """

    earlier_counts: NDArray[np.int64] | None
    crop_numbers: CropNumbersFn | None = None

    def number_spans(
        self, spans: NDArray[np.int64], epoch: int, drawn: DrawnBatch | None = None
    ) -> NDArray[np.int64] | None:
        """Return the index of each span among the draws of its sequence, int64 (n,); None: all 0.

        If ``crop_numbers`` is given, the upper 32 bits are the index of the position in a view, or
        of the draw, and the lower 32 bits that of the crop.

        Args:
            spans: int64 (n, 3), all spans of a batch, or its first n.
            epoch: Epoch of the plan.
            drawn: The drawn sequences of the batch; None: each is drawn once.
        """
        if drawn is not None:
            spans = drawn.spans[: len(spans)]
            numbers: NDArray[np.int64] | None = drawn.sequences.drawn_for(spans[:, 0])[0]
        else:
            numbers = None if self.earlier_counts is None else self.earlier_counts[spans[:, 0]]
        if self.crop_numbers is None:
            return numbers
        crops = self.crop_numbers(spans, epoch, drawn)
        return crops if numbers is None else (numbers << 32) + crops


def count_occurrences(store: Store, crop_numbers: CropNumbersFn | None = None) -> Occurrences:
    """Return the counter of the draws of a store's sequences."""
    return Occurrences(count_earlier(store.base_numbers, len(store)), crop_numbers)
