"""The effect of a plan on the data: sizes of batches, and sequences that are not planned whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from seqdata.plan_table import BatchTable

_NO_NUMBERS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PlanReport:
    """The effect of a plan on the data, known before the epoch starts.

    Attributes:
        sequences: Number of planned sequences, each counted once.
        timesteps: Number of planned real timesteps.
        padded: Timesteps after padding each batch to its longest row.
        dropped: int64, indices of the sequences that are not planned (too long, or empty).
        split: int64, indices of the sequences that are cut into several spans.
        truncated: int64, indices of the sequences whose end (or with ``keep="last"`` beginning) is
            dropped.
        worst: Index of the most expensive batch; -1 without batches.
        worst_rows: Number of rows of that batch.
        worst_length: Timesteps of the longest row of that batch.
        repeats: Number of rows whose sequence is in an earlier row of their batch.
    """

    sequences: int
    timesteps: int
    padded: int
    dropped: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)
    split: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)
    truncated: NDArray[np.int64] = field(default_factory=lambda: _NO_NUMBERS)
    worst: int = -1
    worst_rows: int = 0
    worst_length: int = 0
    repeats: int = 0

    @property
    def waste(self) -> float:
        """Ratio of timesteps after padding to real timesteps; 1.0 without padding."""
        return self.padded / self.timesteps if self.timesteps else 1.0


@dataclass(frozen=True, slots=True, eq=False)
class BatchMeasures:
    """Sizes of all batches, int64 (batches,) each.

    Attributes:
        rows: Number of rows.
        longest: Timesteps of the longest row.
        timesteps: Real timesteps.
    """

    rows: NDArray[np.int64]
    longest: NDArray[np.int64]
    timesteps: NDArray[np.int64]

    @property
    def padded(self) -> NDArray[np.int64]:
        """Timesteps after padding, int64 (batches,)."""
        return self.rows * self.longest

    @property
    def padding(self) -> NDArray[np.float64]:
        """Fraction of each batch that is padding, float64 (batches,), in [0, 1]."""
        fractions: NDArray[np.float64] = 1.0 - self.timesteps / np.maximum(self.padded, 1)
        return fractions


def measure_batches(table: BatchTable) -> BatchMeasures:
    """Measure every batch, in one pass over the table."""
    measured = [np.empty((3, 0), dtype=np.int64)]
    for array_table in table.tables():
        lengths, first = array_table.row_lengths(), array_table.offsets[:-1]
        longest, timesteps = np.maximum.reduceat(lengths, first), np.add.reduceat(lengths, first)
        measured.append(np.stack([np.diff(array_table.offsets), longest, timesteps]))
    return BatchMeasures(*np.concatenate(measured, axis=1))


def make_report(table: BatchTable) -> PlanReport:
    """Return the report of a table."""
    measures = measure_batches(table)
    padded = measures.padded
    worst = int(np.argmax(padded)) if len(padded) else -1
    return PlanReport(
        sequences=_count_sequences(table),
        timesteps=int(measures.timesteps.sum()),
        padded=int(padded.sum()),
        worst=worst,
        worst_rows=int(measures.rows[worst]) if worst >= 0 else 0,
        worst_length=int(measures.longest[worst]) if worst >= 0 else 0,
    )


def count_repeats(
    table: BatchTable, bases: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None
) -> int:
    """Return the number of spans whose sequence occurs earlier in their batch.

    Args:
        table: The batches, which are read once.
        bases: Indices of sequences -> indices in the data; None: the same.
    """
    repeats = 0
    for arrays in table.tables():
        offsets = arrays.offsets if arrays.rows is None else arrays.rows[arrays.offsets]
        numbers = arrays.spans[:, 0] if bases is None else bases(arrays.spans[:, 0])
        batches = np.repeat(np.arange(len(arrays)), np.diff(offsets))
        keys = np.sort(batches * (int(numbers.max(initial=0)) + 1) + numbers)
        repeats += int(np.count_nonzero(keys[1:] == keys[:-1]))
    return repeats


def _count_sequences(table: BatchTable) -> int:
    """Return the number of sequences of a table, without the empty spans of idle lanes."""
    is_used = np.zeros(0, dtype=np.bool_)
    for arrays in table.tables():
        numbers = arrays.spans[arrays.spans[:, 1] < arrays.spans[:, 2], 0]
        missing = int(numbers.max(initial=-1)) + 1 - len(is_used)
        if missing > 0:
            is_used = np.concatenate([is_used, np.zeros(missing, dtype=np.bool_)])
        is_used[numbers] = True
    return int(is_used.sum())
