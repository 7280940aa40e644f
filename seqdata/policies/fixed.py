"""Policies ``fixed``, ``sorted`` and ``bucketed``: ``batch_size`` rows in every batch.

They differ in the order that is cut into batches: random; by length; by length with noise. There
are no bucket edges to choose: one percent of noise on the length gives a sequence other neighbours
in every epoch, and the number of batches stays ceil(n / batch_size).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import PlanError
from seqdata.index import DEFAULT_AXIS
from seqdata.planning.blocks import BlockItems, Shuffle
from seqdata.planning.build import FixedSizeCutter, Ordering, SequencePolicy
from seqdata.planning.items import Empty, Keep, TooLong
from seqdata.planning.randomness import Draw, Purpose

_SCALE = 1 << 30  # lengths are scaled by this, in integers: `log` differs between CPUs
_NOISE = _SCALE // 100
_MAX_LENGTH = 1 << 32  # longer ones, scaled, would not fit 63 bits


@dataclass(frozen=True, slots=True)
class FixedSizePolicy(SequencePolicy):
    """Batches of ``batch_size`` rows, cut from an order of the sequences."""

    _ordering: ClassVar[Ordering | None] = None

    batch_size: int
    shuffle: Shuffle = True
    axis: str = DEFAULT_AXIS
    max_length: int | None = None
    too_long: TooLong = "error"
    empty: Empty = "drop"

    def __post_init__(self) -> None:
        self._check_options("batch_size")

    def _make_cutter(self) -> FixedSizeCutter:
        ordering = type(self)._ordering
        return FixedSizeCutter(self.batch_size, ordering, is_arranged=ordering is not None)


@dataclass(frozen=True, slots=True)
class Fixed(FixedSizePolicy):
    """Batches of ``batch_size`` rows in random order, independent of their lengths.

    Args:
        batch_size: Number of rows of a batch.
        shuffle: True shuffles all data, in another order in every epoch. ``"blocks"`` shuffles
            within blocks of 2^18 consecutive sequences, for data larger than memory on slow disks.
            False keeps the order of the data. See "How data is shuffled" in the docs.
        axis: Axis whose lengths the plan uses.
        max_length: Maximum number of timesteps of a row; None: no limit.
        too_long: Treatment of longer sequences: ``error``, ``split``, ``truncate`` or ``drop``.
        empty: Treatment of sequences of length 0: ``drop`` or ``error``.
        keep: Which timesteps of a truncated sequence remain, the ``first`` or the ``last``.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import Fixed, SequenceIndex
        >>> index = SequenceIndex.from_lengths([3, 1, 2])
        >>> Fixed(2, shuffle=False).plan(index, seed=0, epoch=0).batch(1).spans.tolist()
        [[2, 0, 2]]
    """

    _name: ClassVar[str] = "fixed"

    keep: Keep = "first"


@dataclass(frozen=True, slots=True)
class ByLengthPolicy(FixedSizePolicy):
    """Batches of ``batch_size`` rows of similar lengths, whose order is balanced for ranks."""

    worst_first: bool = True
    keep: Keep = "first"
    balance_ranks: int | None = None


def _order_by_length(items: BlockItems, draw: Draw | None, block: int) -> NDArray[np.int64]:
    del draw, block  # the same batches every epoch
    return items.lengths


@dataclass(frozen=True, slots=True)
class Sorted(ByLengthPolicy):
    """Batches of ``batch_size`` rows of nearly equal length, ties in the order of the data.

    This policy has the least padding. Batches have the same rows in every epoch, and only the order
    of batches changes. Rows of equal length keep the order of the data. If data is stored by class,
    use ``Bucketed``, which mixes rows. Above 2^18 sequences, the policy sorts within blocks, each
    of which is a random sample of the complete dataset.

    Args:
        batch_size: Number of rows of a batch.
        shuffle: True shuffles all data, in another order in every epoch. ``"blocks"`` shuffles
            within blocks of 2^18 consecutive sequences, for data larger than memory on slow disks.
            False keeps a fixed order, longest first. See "How data is shuffled" in the docs.
        axis: Axis whose lengths the plan uses.
        max_length: Maximum number of timesteps of a row; None: no limit.
        too_long: Treatment of longer sequences: ``error``, ``split``, ``truncate`` or ``drop``.
        empty: Treatment of sequences of length 0: ``drop`` or ``error``.
        worst_first: Whether epoch 0 begins with the most expensive batch.
        keep: Which timesteps of a truncated sequence remain, the ``first`` or the ``last``.
        balance_ranks: Number of consecutive batches of similar lengths, so that this number of
            ranks has equal work in a step. 1 gives a random order for any number of ranks. None
            means ``batches_per_update`` of the DataModule if set, otherwise the number of ranks of
            the Loader or Trainer, or 1 if ``plan`` is called directly.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import Loader, Sorted
        >>> loader = Loader([[1, 2, 3], [4], [5, 6], [7]], Sorted(2), seed=0)
        >>> sorted(tuple(batch["x"].shape) for batch in loader)
        [(2, 1), (2, 3)]
    """

    _name: ClassVar[str] = "sorted"
    _ordering: ClassVar[Ordering | None] = _order_by_length


def _make_noisy_lengths(items: BlockItems, draw: Draw | None, block: int) -> NDArray[np.int64]:
    """Return lengths with noise, int64 (n,), equal for the copies of a sequence."""
    lengths = items.lengths
    if draw is None:
        return lengths
    if int(lengths.max(initial=0)) >= _MAX_LENGTH:
        raise PlanError(
            "policy 'bucketed': every sequence must have fewer than 2**32 timesteps, but one has "
            f"{int(lengths.max())}. Set `max_length` and `too_long`, or use 'tbptt'."
        )
    raw = draw.raw(Purpose.NOISE, len(lengths), block) % np.uint64(2 * _NOISE)
    noise = raw.astype(np.int64) - _NOISE
    if items.copies is not None:
        noise = noise[items.copies.firsts]
    return lengths * (_SCALE + noise)


@dataclass(frozen=True, slots=True)
class Bucketed(ByLengthPolicy):
    """Batches of ``batch_size`` rows of similar length, different ones in every epoch.

    Args:
        batch_size: Number of rows of a batch.
        shuffle: True shuffles all data, in another order in every epoch. ``"blocks"`` shuffles
            within blocks of 2^18 consecutive sequences, for data larger than memory on slow disks.
            False keeps a fixed order, longest first. See "How data is shuffled" in the docs.
        axis: Axis whose lengths the plan uses.
        max_length: Maximum number of timesteps of a row; None: no limit.
        too_long: Treatment of longer sequences: ``error``, ``split``, ``truncate`` or ``drop``.
        empty: Treatment of sequences of length 0: ``drop`` or ``error``.
        worst_first: Whether epoch 0 begins with the most expensive batch.
        keep: Which timesteps of a truncated sequence remain, the ``first`` or the ``last``.
        balance_ranks: Number of consecutive batches of similar lengths, so that this number of
            ranks has equal work in a step. 1 gives a random order for any number of ranks. None
            means ``batches_per_update`` of the DataModule if set, otherwise the number of ranks of
            the Loader or Trainer, or 1 if ``plan`` is called directly.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import Bucketed, Loader
        >>> loader = Loader([[1, 2, 3], [4], [5, 6], [7]], Bucketed(2), seed=0)
        >>> sorted(tuple(batch["x"].shape) for batch in loader)
        [(2, 1), (2, 3)]
    """

    _name: ClassVar[str] = "bucketed"
    _ordering: ClassVar[Ordering | None] = _make_noisy_lengths
