"""Sequences drawn by weight: how often each one comes in an epoch, and the batches of those drawn.

How often a sequence is drawn on average is an integer multiple of 2^-32, so that all machines
agree. An epoch takes a *systematic sample* (Madow, 1949; "systematic resampling" of particle
filters): one random offset, then every whole step of the running sum along a random order. Each
sequence is drawn as often as expected, rounded down or up, and the total is exact. An inner policy
plans over the index of those drawn.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.index import SequenceIndex
from seqdata.plan_table import ArrayTable, BatchTable, DrawnBatch, PlanBatch
from seqdata.planning.blocks import MAX_BLOCK_ITEMS
from seqdata.planning.randomness import Draw, Purpose

MAX_DRAWS = 1 << 30
"""Maximum number of draws of an epoch: sums of rates must fit into 63 bits."""

_BITS = 32  # of the fraction of a rate
_ONE = 1 << _BITS
_MARGIN = 1 << 16  # a rate this near to an integer is not touched by what rounding leaves over


@dataclass(frozen=True, eq=False)
class DrawRates:
    """Expected number of draws of each sequence in an epoch.

    Attributes:
        fixed: int64 (n,), in units of 2^-32; they add up to ``draws``.
        draws: Draws of an epoch.
    """

    fixed: NDArray[np.int64]
    draws: int

    @classmethod
    def from_weights(cls, weights: NDArray[np.float64], draws: int) -> DrawRates:
        """Return ``draws * weights / sum(weights)``, rounded so that the sum is exact.

        Args:
            weights: float64 (n,), finite and at least 0; one is above 0.
            draws: Draws of an epoch, at most ``MAX_DRAWS``.
        """
        exponent = int(np.frexp(weights.max())[1])
        scaled = np.ldexp(weights, -exponent)  # exact, and its sum is finite
        total = math.fsum(scaled.tolist())  # rounded once, in any order the same
        fixed = np.rint(np.ldexp(scaled * draws / total, _BITS)).astype(np.int64)
        _distribute(fixed, draws * _ONE - int(fixed.sum()))
        return cls(fixed, draws)

    @cached_property
    def support(self) -> NDArray[np.int64]:
        """Indices of the sequences that can be drawn, increasing, int64 (m,)."""
        return np.flatnonzero(self.fixed)

    @cached_property
    def digest(self) -> str:
        """Digest of all rates, 32 hex digits."""
        return hashlib.sha256(self.fixed.astype("<i8").tobytes()).hexdigest()[:32]

    def to_float(self) -> NDArray[np.float64]:
        """Return the rates as numbers, float64 (n,)."""
        return self.fixed / _ONE

    def importance(self) -> NDArray[np.float32]:
        """Return the importance weight 1 / (N p) of each of the N that can be drawn, float32 (n,).

        It is 0 for the others. The expected mean over the draws of an epoch is 1.
        """
        weights = np.zeros(len(self.fixed), dtype=np.float32)
        support = self.support
        weights[support] = self.draws * _ONE / (float(len(support)) * self.fixed[support])
        return weights

    def count(self, draw: Draw) -> NDArray[np.int64]:
        """Return the number of draws of each sequence in an epoch, int64 (n,).

        The sample goes along a random order within blocks of neighbours, one block after another.
        """
        counts: NDArray[np.int64] = self.fixed >> _BITS
        uncertain = np.flatnonzero(self.fixed & (_ONE - 1))
        last = int(draw.raw(Purpose.OFFSET, 1)[0] >> np.uint64(64 - _BITS))
        for block, first in enumerate(range(0, len(uncertain), MAX_BLOCK_ITEMS)):
            members = uncertain[first : first + MAX_BLOCK_ITEMS]
            members = members[draw.permutation(Purpose.DRAWS, len(members), block)]
            sums = last + np.cumsum(self.fixed[members] & (_ONE - 1))
            counts[members] += np.diff(sums >> _BITS, prepend=last >> _BITS)
            last = int(sums[-1])
        return counts

    def draw_numbers(self, draw: Draw) -> NDArray[Any]:
        """Return the sequences of an epoch, increasing, each repeated as often as it is drawn."""
        dtype = np.uint32 if len(self.fixed) < 1 << 32 else np.int64
        return np.repeat(np.arange(len(self.fixed), dtype=dtype), self.count(draw))


def _distribute(fixed: NDArray[np.int64], missing: int) -> None:
    """Add the rounding error of the sum to rates that are not near an integer."""
    if not missing:
        return
    fractions = fixed & (_ONE - 1)
    chosen = np.flatnonzero((fractions > _MARGIN) & (fractions < _ONE - _MARGIN))
    if not len(chosen):
        chosen = np.array([int(np.argmax(fixed))])
    each, others = divmod(missing, len(chosen))
    fixed[chosen] += each
    fixed[chosen[:others]] += 1


@dataclass(frozen=True, slots=True, eq=False)
class DrawnSequences:
    """The sequences that are drawn for one epoch.

    Attributes:
        numbers: Integers (draws,), increasing: sequences of the data, repeated for each draw.
        index: Lengths of these sequences, by position.
    """

    numbers: NDArray[Any]
    index: SequenceIndex


@dataclass(frozen=True, slots=True, eq=False)
class RenumberedTable(BatchTable):
    """The batches that a policy made of drawn sequences, with their indices in the data.

    Attributes:
        table: The batches, by position among the drawn sequences.
        drawn: The drawn sequences.
        weights: float32 (n,), the weight of a row by its sequence; None: all are 1.
        epoch: Key of the random numbers in place of the epoch; None: the epoch of the plan.
    """

    table: BatchTable
    drawn: DrawnSequences
    weights: NDArray[np.float32] | None
    epoch: int | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.table)

    def batch(self, number: int) -> PlanBatch:
        """Return one batch."""
        batch = self.table.batch(number)
        return PlanBatch(self._renumber(batch.spans), batch.rows)

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return the number of scored timesteps and of rows in batches ``first:stop``."""
        return self.table.totals(first, stop, overlap)

    def tables(self) -> Iterator[ArrayTable]:
        """Yield all batches in order, as arrays."""
        for part in self.table.tables():
            yield ArrayTable(self._renumber(part.spans), part.rows, part.offsets)

    def prepare(self, number: int) -> int:
        """Make a batch's block; return the first batch after it in another block."""
        return self.table.prepare(number)

    def slice(self, first: int, stop: int) -> ArrayTable:
        """Return batches ``first:stop`` of one run as a table of their own."""
        part = self.table.slice(first, stop)
        return replace(part, spans=self._renumber(part.spans), _cumulative_totals={})

    def drawn_batch(self, number: int) -> DrawnBatch | None:
        """Return the drawn sequences, and the batch as positions among them."""
        return DrawnBatch(self.drawn.index, self.table.batch(number).spans, self.epoch)

    def row_weights(self, numbers: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the weights of the rows of batches; None: all are 1."""
        if self.weights is None:
            return None
        return np.concatenate([self.weights[self.batch(k).spans[:, 0]] for k in numbers])

    def _renumber(self, spans: NDArray[np.int64]) -> NDArray[np.int64]:
        renumbered = spans.copy()
        renumbered[:, 0] = self.drawn.numbers[spans[:, 0]]
        return renumbered
