"""The request of a step: spans of sequences, and the form of their columns.

Worker processes receive nothing else, and need neither plan nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

LinkedSpans = Mapping[str, NDArray[np.int64]]
"""Axis -> int64 (n, 3): sequence, start, stop in timesteps of the axis."""


def ignore_sequence(_sequence: int) -> None:
    """Do nothing: the default of ``on_sequence``."""


@dataclass(slots=True, eq=False)
class StepRequest:
    """The spans to read for one step.

    Attributes:
        spans: int64 (n, 3): sequence, start, stop.
        ids: int64 (n,), base index of each span's sequence.
        epoch: Epoch of the random numbers: that of the plan, or in a mixture that of the part.
        horizon: Timesteps of a window's future, after each span.
        joint_targets: Whether inputs and targets of a shift are one column, ``shift`` timesteps
            longer; else targets are a column of their own.
        occurrences: int64 (n,), index of each span among the draws of its sequence; None: all are
            0.
        on_sequence: Called with the base index of each sequence before it is read or transformed.
        is_shifted_stream: Whether spans already include the timesteps of a shift along a stream, so
            that nothing is read after them.
        linked: Axis -> int64 (n, 3), the spans of fields of linked axes; None: there are none, or
            the reader computes them.
        has_lanes: Whether spans without timesteps are those of idle lanes, which no transform sees.
    """

    spans: NDArray[np.int64]
    ids: NDArray[np.int64]
    epoch: int
    horizon: int = 0
    joint_targets: bool = False
    occurrences: NDArray[np.int64] | None = None
    on_sequence: Callable[[int], None] = ignore_sequence
    is_shifted_stream: bool = False
    has_lanes: bool = False
    linked: LinkedSpans | None = None

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each span, int64 (n,)."""
        lengths: NDArray[np.int64] = self.spans[:, 2] - self.spans[:, 1]
        return lengths

    @property
    def is_idle(self) -> NDArray[np.bool_]:
        """Whether each span is that of an idle lane, bool (n,)."""
        is_empty: NDArray[np.bool_] = self.lengths == 0
        return is_empty & self.has_lanes

    def with_spans(self, spans: NDArray[np.int64], **changes: Any) -> StepRequest:
        """Return the request of other spans, whose linked spans are computed again."""
        return replace(self, spans=spans, linked=None, **changes)

    def get_occurrences(self) -> NDArray[np.int64]:
        """Return the index of each span among the draws of its sequence, int64 (n,)."""
        if self.occurrences is None:
            return np.zeros(len(self.spans), dtype=np.int64)
        return self.occurrences
