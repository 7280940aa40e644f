"""What a step asks for: spans of sequences, and how their columns are wanted.

It is all that a worker process is told, and needs neither plan nor torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def ignore_sequence(_sequence: int) -> None:
    """Tell nobody."""


@dataclass(slots=True, eq=False)
class StepRequest:
    """The spans of one step.

    Attributes:
        spans: int64 (n, 3): sequence, start, stop.
        ids: int64 (n,), base number of each span's sequence.
        epoch: Of the plan.
        horizon: Timesteps of a window's future, behind every span.
        joint_targets: Whether inputs and targets of a shift are one column, ``shift`` timesteps
            longer; else targets are a column of their own.
        occurrences: int64 (n,), which drawing of its sequence each span is; None: each the first.
        on_sequence: Called with the base number of each sequence that is worked on.
        is_shifted_stream: Whether spans hold already what a shift needs, along a stream: nothing
            is read past them.
    """

    spans: NDArray[np.int64]
    ids: NDArray[np.int64]
    epoch: int
    horizon: int = 0
    joint_targets: bool = False
    occurrences: NDArray[np.int64] | None = None
    on_sequence: Callable[[int], None] = ignore_sequence
    is_shifted_stream: bool = False

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Timesteps of each span, int64 (n,)."""
        lengths: NDArray[np.int64] = self.spans[:, 2] - self.spans[:, 1]
        return lengths

    def get_occurrences(self) -> NDArray[np.int64]:
        """Return which drawing of its sequence each span is, int64 (n,)."""
        if self.occurrences is None:
            return np.zeros(len(self.spans), dtype=np.int64)
        return self.occurrences
