"""Losses of steps: the usual loss around a step, and the distance of a step from it.

The usual loss is a median over the steps before, with few of them also over later ones, and so is
the usual difference from it: neither depends on the spikes to be found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from seqdata.runs.loss_files import LossFiles

WINDOW = 40
"""Number of steps before a step that determine its usual loss."""

MIN_WINDOW = 8
"""Least number of steps before a step; with fewer, later steps are added."""

MIN_COMPARED = 3
"""Least number of other steps; with fewer, the spread is unknown and no step stands out."""

OUTLYING = 4.0
"""Number of standard deviations above which a value stands out."""

_SIGMAS_PER_MAD = 1.4826  # of a normal distribution
_MIN_SPREAD = 1e-6  # relative to the usual value, for equal values
_CANDIDATES = 20  # steps per returned step whose distance is computed exactly


@dataclass(frozen=True, slots=True)
class Usual:
    """Distribution of the usual losses around a step.

    Attributes:
        value: The median.
        spread: An estimate of the standard deviation, above 0; infinite for at least one but fewer
            than ``MIN_COMPARED`` values.
    """

    value: float
    spread: float

    def score(self, value: float) -> float:
        """Return the distance of a value above the usual one, in standard deviations.

        It is infinite for a value that is not finite.
        """
        return (value - self.value) / self.spread if math.isfinite(value) else math.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepLosses:
    """Losses of all recorded steps of a run, over all ranks.

    Attributes:
        steps: int64 (s,), the optimizer's steps, ascending.
        values: float64 (s,), mean score of each step's sequences, or of its batches.
        levels: float64 (s,), median score of a sequence or batch of the step.
        batches: int64 (s,), number of batches of each step.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    levels: NDArray[np.float64]
    batches: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.steps)

    @classmethod
    def read(cls, losses: LossFiles) -> Self:
        """Compute the losses from the files of a run, which are read once."""
        columns: list[list[NDArray[np.float64]]] = [[], [], [], []]
        for block in losses.iterate_blocks():
            chosen = block.select(np.diff(block.offsets) > 0)
            if not len(chosen):
                continue
            firsts, counts = chosen.offsets[:-1], np.diff(chosen.offsets)
            order = np.lexsort((chosen.scores, chosen.batch_of_row))
            weights = np.where(chosen.is_shared, 1, counts)
            sums = np.add.reduceat(chosen.scores, firsts) * weights / counts
            medians = chosen.scores[order][firsts + (counts - 1) // 2]
            for column, values in zip(columns, (chosen.steps, sums, weights, medians), strict=True):
                column.append(values.astype(np.float64))
        empty = np.zeros(0)
        of_batch, sums, weights, medians = (np.concatenate([empty, *part]) for part in columns)
        order = np.lexsort((medians, of_batch))
        steps, firsts, batches = np.unique(of_batch[order], return_index=True, return_counts=True)
        if not len(steps):
            return cls(steps=steps.astype(np.int64), values=empty, levels=empty, batches=batches)
        return cls(
            steps=steps.astype(np.int64),
            values=np.add.reduceat(sums[order], firsts) / np.add.reduceat(weights[order], firsts),
            levels=medians[order][firsts + (batches - 1) // 2],
            batches=batches,
        )

    def find(self, step: int) -> int | None:
        """Return the index of a step in the arrays; None if it has no record."""
        i = int(np.searchsorted(self.steps, step))
        return i if i < len(self) and self.steps[i] == step else None

    def find_nearest(self, step: int) -> int:
        """Return the nearest recorded step; of two, the earlier one."""
        return int(self.steps[np.abs(self.steps - step).argmin()])

    def find_usual(self, i: int) -> Usual:
        """Return the usual mean score of a step around a step."""
        return summarize(self.values[self._find_window(i)], self.values[i])

    def find_usual_level(self, i: int) -> Usual:
        """Return the usual score of a sequence or batch around a step."""
        return summarize(self.levels[self._find_window(i)], self.levels[i])

    def find_first_non_finite(self) -> int | None:
        """Return the first step whose loss is not finite; None if all are."""
        is_finite = np.isfinite(self.values)
        return None if is_finite.all() else int(self.steps[is_finite.argmin()])

    def find_worst(self, count: int) -> list[int]:
        """Return the steps farthest above the usual loss around them, the farthest first.

        The first step whose loss is not finite precedes all others.
        """
        if not len(self):
            return []
        first_non_finite = self.find_first_non_finite()
        finite = np.flatnonzero(np.isfinite(self.values))
        pieces = np.array_split(finite, max(1, len(finite) // WINDOW)) if len(finite) else []
        rough = np.concatenate(
            [
                (self.values[piece] - usual.value) / usual.spread
                for piece in pieces
                for usual in [summarize(self.values[piece], 0.0)]
            ]
            or [np.zeros(0)]
        )
        candidates = finite[np.argsort(-rough, kind="stable")[: max(count * _CANDIDATES, WINDOW)]]
        scores = {
            int(self.steps[i]): self.find_usual(i).score(float(self.values[i]))
            for i in candidates.tolist()
        }
        worst = sorted(scores, key=lambda step: (-scores[step], step))
        head = [] if first_non_finite is None else [first_non_finite]
        return [*head, *worst][:count]

    def _find_window(self, i: int) -> NDArray[np.int64]:
        """Return the indices of the steps before a step; with few of them also of later ones."""
        before = np.arange(max(0, i - WINDOW), i)
        if len(before) >= MIN_WINDOW:
            return before
        stop = min(len(self), i + 1 + 2 * MIN_WINDOW - len(before))
        return np.concatenate([before, np.arange(i + 1, stop)])


def summarize(values: NDArray[np.float64], own_value: float) -> Usual:
    """Return the median and spread of finite values; without any, of ``own_value``."""
    values = values[np.isfinite(values)]
    if not len(values):
        value = float(own_value) if math.isfinite(own_value) else 0.0
        return Usual(value, max(abs(value) * _MIN_SPREAD, np.finfo(np.float64).tiny))
    median = float(np.median(values))
    if len(values) < MIN_COMPARED:
        return Usual(median, math.inf)
    spread = _SIGMAS_PER_MAD * float(np.median(np.abs(values - median)))
    floor = max(abs(median) * _MIN_SPREAD, float(np.finfo(np.float64).tiny))
    return Usual(median, max(spread, floor))
