"""Policy ``windows``: forecasting windows and random crops, as virtual items found by prefix sums.

A window is a span of ``size`` timesteps, its context, and the ``horizon`` after it, its future.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, check_flags, must_be
from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.blocks import Shuffle
from seqdata.planning.build import (
    BlockPolicy,
    FixedSizeCutter,
    check_counts,
    check_shuffle,
)
from seqdata.planning.items import ItemPieces, Items, number_items
from seqdata.planning.randomness import Draw, Purpose


@dataclass(frozen=True, slots=True)
class Windows(BlockPolicy):
    """Windows of every sequence, ``batch_size`` in a batch; 10^9 of them cost no memory.

    Windows start at 0, ``stride``, 2 x ``stride``, … with start + size + horizon <= length. Shorter
    sequences have none and are listed in the plan's report.

    Args:
        size: Number of timesteps of the context.
        stride: Timesteps from one start to the next; None: ``size``. Not with ``random``.
        batch_size: Number of windows of a batch.
        horizon: Number of timesteps of the future.
        random: Whether windows are at random positions, different ones in every epoch.
        per_sequence: Number of random windows of each sequence.
        shuffle: True: over all data, in another order in every epoch; ``"blocks"``: within blocks
            of 2^18 neighbours, for data larger than memory on slow media; False: the data's order.
            See "How data is shuffled" in the docs.
        axis: The axis that is planned on.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> index = SequenceIndex.from_lengths([10])
        >>> windows = Windows(4, 2, 2, horizon=2, shuffle=False)
        >>> windows.plan(index, seed=0, epoch=0).spans.tolist()
        [[0, 0, 4], [0, 2, 6], [0, 4, 8]]
    """

    size: int
    stride: int | None = None
    batch_size: int = 64
    horizon: int = 0
    random: bool = False
    per_sequence: int = 1
    shuffle: Shuffle = True
    axis: str = DEFAULT_AXIS

    def __post_init__(self) -> None:
        check_counts("windows", self, "size", "batch_size", "per_sequence")
        check_counts("windows", self, "horizon", least=0)
        check_counts("windows", self, "stride", optional=True)
        check_shuffle("windows", self.shuffle)
        check_flags("policy 'windows'", random=self.random)
        if self.random and self.stride is not None:
            raise ConfigError(
                must_be(
                    "policy 'windows': `stride`",
                    "None",
                    f"{self.stride} with `random`=True",
                    "Random windows have no stride",
                )
            )
        if not self.random and self.per_sequence != 1:
            raise ConfigError(
                must_be(
                    "policy 'windows': `per_sequence`",
                    "1",
                    f"{self.per_sequence} without `random`=True",
                    "The number of windows follows from the stride",
                )
            )

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch, whose ``lookahead`` is the horizon."""
        plan = BlockPolicy.plan(self, index, seed=seed, epoch=epoch)
        return plan.with_lookahead(self.horizon)

    def crop_numbers(
        self, index: SequenceIndex, spans: NDArray[np.int64], *, seed: int, epoch: int
    ) -> NDArray[np.int64]:
        """Return the index of each span among its sequence's windows, int64 (n,); 0 on a grid.

        Random windows at the same position have the index of the first of them.
        """
        numbers = np.zeros(len(spans), dtype=np.int64)
        if not self.random:
            return numbers
        rule, draw = self._make_rule(), Draw(seed, epoch)
        lengths = index.at(self.axis, spans[:, 0])
        for crop in range(self.per_sequence - 1, -1, -1):
            crops = np.full(len(spans), crop, dtype=np.int64)
            pieces = ItemPieces(lengths, crops, partial(index.drawn_for, spans[:, 0]))
            numbers[rule.bounds(pieces, draw)[0] == spans[:, 1]] = crop
        return numbers

    @property
    def items_per_sequence(self) -> int | None:
        """Number of items of each sequence that is not left out; None: it differs."""
        return self.per_sequence if self.random else None

    def _make_cutter(self) -> FixedSizeCutter:
        return FixedSizeCutter(self.batch_size, None, is_arranged=False)

    def _make_rule(self) -> GridWindows | RandomWindows:
        if self.random:
            return RandomWindows(self.size, self.horizon, self.per_sequence)
        return GridWindows(self.size, self.horizon, self.stride or self.size)

    def _select_items(self, index: SequenceIndex) -> Items:
        return number_items(index, self.axis, self._make_rule())


@dataclass(frozen=True, slots=True)
class GridWindows:
    """Windows at every multiple of a stride."""

    run_items: ClassVar[int] = 1

    size: int
    horizon: int
    stride: int

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of windows of each sequence, int64 (n,)."""
        room = lengths - self.size - self.horizon
        return np.where(room >= 0, room // self.stride + 1, 0)

    def longest(self, lengths: NDArray[np.int64]) -> int:
        """Return the timesteps of a window, 0 where there is none."""
        return self.size if int(lengths.max(initial=0)) >= self.size + self.horizon else 0

    def bounds(
        self, pieces: ItemPieces, draw: Draw | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and stop of each window's context, int64 (n,)."""
        del draw  # the grid is the same in every epoch
        starts = pieces.piece_numbers * self.stride
        return starts, starts + self.size


@dataclass(frozen=True, slots=True)
class RandomWindows:
    """Windows at random positions, drawn per sequence and window, the same in every view."""

    run_items: ClassVar[int] = 1

    size: int
    horizon: int
    per_sequence: int

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of windows of each sequence, int64 (n,)."""
        return np.where(lengths >= self.size + self.horizon, self.per_sequence, 0)

    def longest(self, lengths: NDArray[np.int64]) -> int:
        """Return the timesteps of a window, 0 where there is none."""
        return self.size if int(lengths.max(initial=0)) >= self.size + self.horizon else 0

    def bounds(
        self, pieces: ItemPieces, draw: Draw | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and stop of each window's context, int64 (n,); 0 as start without a draw."""
        if draw is None:  # only lengths are needed
            return np.zeros_like(pieces.lengths), np.full_like(pieces.lengths, self.size)
        room = pieces.lengths - self.size - self.horizon + 1
        earlier_counts, bases = pieces.drawn_for()
        drawn = draw.each(Purpose.CROPS, (earlier_counts << 32) + pieces.piece_numbers, bases)
        starts = (drawn % room.astype(np.uint64)).astype(np.int64)
        return starts, starts + self.size
