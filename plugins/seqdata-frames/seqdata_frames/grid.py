"""A regular grid of timesteps over rows; some timesteps have no row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Regular timesteps of all sequences, concatenated, and the rows that they have.

    Attributes:
        offsets: int64 (sequences+1,), sequence -> its first timestep.
        first_keys: int64 (sequences,), the key of the first timestep.
        step: Distance from one timestep to the next.
        rows: int64 (pieces+1,), the first row of each piece without a gap, and the number of rows.
        missing: int64 (pieces,), number of timesteps without a row before each piece.
    """

    offsets: NDArray[np.int64]
    first_keys: NDArray[np.int64]
    step: int
    rows: NDArray[np.int64]
    missing: NDArray[np.int64]

    @classmethod
    def from_gaps(
        cls,
        row_offsets: NDArray[np.int64],
        first_keys: NDArray[np.int64],
        step: int,
        gap_rows: NDArray[np.int64],
        gap_sizes: NDArray[np.int64],
    ) -> Grid:
        """Make a grid from rows with gaps.

        Args:
            row_offsets: int64 (sequences+1,), sequence -> its first row.
            first_keys: int64 (sequences,), the key of the first row of each sequence.
            step: Distance from one timestep to the next.
            gap_rows: int64 (gaps,), the row after each gap, ascending.
            gap_sizes: int64 (gaps,), number of timesteps without a row in each gap.
        """
        missing = np.concatenate(([0], np.cumsum(gap_sizes)))
        before = np.searchsorted(gap_rows, row_offsets, side="right")
        offsets = row_offsets + missing[before]
        rows = np.concatenate(([0], gap_rows, row_offsets[-1:]))
        return cls(offsets, first_keys, step, rows, missing)

    def find_rows(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first row at or after each timestep, int64 of the same shape."""
        piece = np.searchsorted(self.rows[:-1] + self.missing, steps, side="right") - 1
        rows: NDArray[np.int64] = np.minimum(steps - self.missing[piece], self.rows[piece + 1])
        return rows

    def find_steps(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the timestep of each row, int64 of the same shape."""
        piece = np.searchsorted(self.rows[:-1], rows, side="right") - 1
        return rows + self.missing[piece]
