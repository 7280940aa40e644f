"""Timesteps of a part that windows on a grid do not forecast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqdata.policies.windows import Windows
from seqdata.protocols import Store
from seqdata.storage.span_store import find_contexts


@dataclass(frozen=True, slots=True)
class Omissions:
    """Timesteps of a part, of all series.

    Attributes:
        timesteps: All of them, without context from earlier parts and without padding.
        without_history: Those with too few timesteps before them in their series.
        left_over: Those that no window forecasts for another reason.
    """

    timesteps: int
    without_history: int
    left_over: int


def count_omissions(store: Store, windows: Windows, time: str, padding: int) -> Omissions:
    """Return the number of timesteps that have no forecast.

    Args:
        store: The part.
        windows: Windows of one size on a grid, with a horizon.
        time: Field that runs along the axis of the windows.
        padding: Timesteps without values before each series.
    """
    lengths = np.asarray(store.lengths_of[str(store.fields[time].axis)]).astype(np.int64)
    contexts = find_contexts(store)
    contexts = np.zeros_like(lengths) if contexts is None else contexts
    own = lengths - contexts - np.maximum(0, padding - contexts)
    size, horizon, stride = int(windows.least_size), windows.horizon, int(windows.stride or 1)
    usable = np.maximum(0, lengths - size)
    counts = np.where(usable >= horizon, (usable - horizon) // stride + 1, 0)
    covered = np.where(
        counts == 0, 0, counts * horizon if stride >= horizon else (counts - 1) * stride + horizon
    )
    usable = np.minimum(usable, own)
    return Omissions(int(own.sum()), int((own - usable).sum()), int((usable - covered).sum()))
