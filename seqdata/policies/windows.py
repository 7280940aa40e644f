"""Policy ``windows``: forecasting windows and random crops, as virtual items found by prefix sums.

A window is a span of ``size`` timesteps, its context, and the ``horizon`` after it, its future.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, as_integer, check_flags, must_be
from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.plan_table import ArrayTable, BatchTable, PlanBatch
from seqdata.planning.blocks import Shuffle
from seqdata.planning.build import (
    ADDED,
    BlockPolicy,
    FixedSizeCutter,
    check_counts,
    check_shuffle,
    make_fingerprint,
    make_full_report,
)
from seqdata.planning.items import ItemPieces, Items, number_items
from seqdata.planning.randomness import Draw, Purpose
from seqdata.planning.seconds import (
    SecondsCounter,
    check_one_unit,
    check_seconds,
    refuse_seconds,
    seconds_option,
)
from seqdata.protocols import Store

Anchor = Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class Windows(BlockPolicy):
    """Batches of ``batch_size`` windows of all sequences; windows need no memory in a plan.

    Windows start at 0, ``stride``, 2 x ``stride``, … with start + size + horizon <= length.
    Sequences that are too short have no window, and the report of the plan lists them.

    Args:
        size: Number of timesteps of the context; None: ``seconds`` sets it. With ``(low, high)``,
            each window has a random size, which differs between epochs.
        stride: Number of timesteps from one start to the next; None: ``size``, or its maximum. With
            ``random``, each stride has one window, at a random start, so that longer sequences have
            more windows; None: ``per_sequence`` windows of each sequence. With a ``Fraction``,
            which excludes ``random`` and ``anchor="end"``, window k starts at the timestep nearest
            to k times the stride.
        batch_size: Number of windows of a batch.
        horizon: Number of timesteps of the future.
        random: Whether windows start at random positions, which differ between epochs.
        per_sequence: Number of windows of each sequence, with ``random`` and without ``stride``.
        anchor: Position of windows that are not random. With ``start``, the first window begins at
            the start of the sequence. With ``end``, the last window ends at the end of the
            sequence.
        shuffle: True shuffles all data, in another order in every epoch. ``"blocks"`` shuffles
            within blocks of 2^18 consecutive sequences, for data larger than memory on slow disks.
            False keeps the order of the data. See "How data is shuffled" in the docs.
        axis: Axis whose lengths the plan uses. With seconds, ``time`` stands for the first of
            ``time`` and the linked axes, fastest first, on which all durations are integer numbers
            of timesteps, or else for the fastest axis.
        seconds: Duration of the context, in place of ``size``, for stores with known sampling rates
            (``open_store(rates=)``). Window k starts at k times the stride, without drift.
        stride_seconds: Time from one start to the next, in place of ``stride``, without ``random``;
            None: ``seconds``.
        horizon_seconds: Duration of the future, in place of ``horizon``.
        min_size: Minimum number of timesteps of a context; None: ``size``. A sequence that is too
            short for a window of ``size`` has one shorter window. Without ``random``, so have the
            timesteps that remain at the end opposite to the anchor.
        aligned: Whether each batch has, in the order of the data, the windows of all sequences at
            one position, in place of ``batch_size`` windows.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> index = SequenceIndex.from_lengths([10])
        >>> windows = Windows(4, 2, 2, horizon=2, shuffle=False)
        >>> windows.plan(index, seed=0, epoch=0).spans.tolist()
        [[0, 0, 4], [0, 2, 6], [0, 4, 8]]
    """

    size: int | tuple[int, int] | None = None
    stride: int | Fraction | None = None
    batch_size: int = 64
    horizon: int = 0
    random: bool = False
    per_sequence: int = 1
    shuffle: Shuffle = True
    axis: str = DEFAULT_AXIS
    anchor: Anchor = field(default="start", metadata={ADDED: True})
    seconds: float | str | None = seconds_option()
    stride_seconds: float | str | None = seconds_option()
    horizon_seconds: float | str | None = seconds_option()
    min_size: int | None = field(default=None, kw_only=True, metadata={ADDED: True})
    aligned: bool = field(default=False, kw_only=True, metadata={ADDED: True})

    def __post_init__(self) -> None:
        self._check_seconds()
        self._check_size()
        check_counts("windows", self, "batch_size", "per_sequence")
        check_counts("windows", self, "horizon", least=0)
        if not isinstance(self.stride, Fraction) or self.stride < 1:
            check_counts("windows", self, "stride", optional=True)
        check_shuffle("windows", self.shuffle)
        check_flags("policy 'windows'", random=self.random)
        if self.anchor not in ("start", "end"):
            found = repr(self.anchor)
            raise ConfigError(must_be("policy 'windows': `anchor`", "'start' or 'end'", found))
        is_fraction = isinstance(self.stride, Fraction) or self.stride_seconds is not None
        if is_fraction and (self.random or self.anchor == "end"):
            found = "random=True" if self.random else "anchor='end'"
            stride = "in seconds" if self.stride_seconds is not None else f"{self.stride} timesteps"
            raise ConfigError(
                f"policy 'windows': `{found}` requires a `stride` of an integer number of "
                f"timesteps, but it is {stride}. Pass an integer"
            )
        if self.per_sequence != 1 and (not self.random or self.stride is not None):
            found = "with `stride`" if self.random else "without `random=True`"
            raise ConfigError(
                must_be(
                    "policy 'windows': `per_sequence`",
                    "1",
                    f"{self.per_sequence} {found}",
                    "The number of windows follows from the stride",
                )
            )

    def _check_size(self) -> None:
        if isinstance(self.size, Sequence) and not isinstance(self.size, str):
            bounds = [as_integer(bound) for bound in self.size]
            if (
                len(bounds) != 2
                or None in bounds
                or not 1 <= cast(int, bounds[0]) <= cast(int, bounds[1])
            ):
                needed = "an integer, or (low, high) with 1 <= low <= high"
                raise ConfigError(must_be("policy 'windows': `size`", needed, repr(self.size)))
            object.__setattr__(self, "size", tuple(bounds))
        else:
            check_counts("windows", self, "size", optional=self.seconds is not None)
        check_counts("windows", self, "min_size", optional=True)
        check_flags("policy 'windows'", aligned=self.aligned)
        is_range = isinstance(self.size, tuple)
        if self.min_size is not None and is_range:
            raise ConfigError(
                "policy 'windows': `min_size` requires a single `size`, but `size` is "
                f"{self.size}, which has its own minimum. Leave it out"
            )
        if self.min_size is not None and isinstance(self.size, int) and self.min_size > self.size:
            most = f"at most `size`, {self.size}"
            raise ConfigError(must_be("policy 'windows': `min_size`", most, repr(self.min_size)))
        if self.aligned and (self.random or is_range or self.min_size is not None):
            found = f"min_size={self.min_size}" if self.min_size is not None else ""
            found = f"size={self.size}" if is_range else found
            found = "random=True" if self.random else found
            raise ConfigError(
                "policy 'windows': `aligned` requires windows of one size at multiples of the "
                f"stride, but is given with `{found}`. Leave one of them out"
            )

    def _check_seconds(self) -> None:
        check_seconds("windows", self, "seconds", "stride_seconds", "horizon_seconds")
        pairs = [(name, f"{name}_seconds") for name in ("stride", "horizon")]
        check_one_unit("windows", self, ("size", "seconds"), *pairs)

    @property
    def _has_seconds(self) -> bool:
        found = (self.seconds, self.stride_seconds, self.horizon_seconds)
        return any(value is not None for value in found)

    def in_timesteps(self, store: Store) -> Self | None:
        """Return the policy with seconds converted to timesteps of a store; None without seconds.

        Raises:
            ConfigError: If the sampling rate of the axis is unknown, a duration is shorter than a
                timestep, or windows from the end would have a stride that is not an integer.
        """
        if not self._has_seconds:
            return None
        given = (self.seconds, self.stride_seconds, self.horizon_seconds)
        counter = SecondsCounter(store, "windows", self.axis, given)
        size, stride, horizon = self.size, self.stride, self.horizon
        if self.seconds is not None:
            size = counter.count("seconds", self.seconds)
            if stride is None and self.stride_seconds is None and not self.random:
                stride = counter.measure("seconds", self.seconds)
        if self.stride_seconds is not None:
            stride = counter.measure("stride_seconds", self.stride_seconds)
        if self.horizon_seconds is not None:
            horizon = counter.count("horizon_seconds", self.horizon_seconds)
        return replace(
            self, size=size, stride=stride, horizon=horizon, axis=counter.axis, seconds=None,
            stride_seconds=None, horizon_seconds=None,
        )  # fmt: skip

    @property
    def _size_bounds(self) -> tuple[int, int]:
        """Maximum and minimum number of timesteps of ``size``."""
        size: Any = self.size or 0
        return (size, size) if isinstance(size, int) else (size[1], size[0])

    @property
    def least_size(self) -> int:
        """Minimum number of timesteps of a context."""
        return self.min_size or self._size_bounds[1]

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch, whose ``lookahead`` is the horizon."""
        if self.aligned:
            plan = self._plan_aligned(index, seed, epoch)
        else:
            plan = BlockPolicy.plan(self, index, seed=seed, epoch=epoch)
        return plan.with_lookahead(self.horizon)

    def _plan_aligned(self, index: SequenceIndex, seed: int, epoch: int) -> Plan:
        items, rule, draw = self._select_items(index), self._make_rule(), Draw(seed, epoch)
        counts = self._count_windows(index)
        order = np.arange(int(counts.max(initial=0)), dtype=np.int64)
        if self.shuffle:
            order = draw.permutation(Purpose.MEMBERS, len(order), 0)
        origin = PlanOrigin(
            fingerprint=lambda: make_fingerprint(index, self, seed, epoch),
            report=lambda table: make_full_report(items, table),
            order="positions shuffled" if self.shuffle else "not shuffled",
        )
        grid = cast(GridWindows, rule)
        return Plan.lazy(AlignedTable(index, self.axis, grid, counts, order), origin)

    def _count_windows(self, index: SequenceIndex) -> NDArray[np.int64]:
        """Return the number of windows of each sequence, int64 (n,)."""
        lengths = index.at(self.axis, np.arange(len(index), dtype=np.int64))
        return self._make_rule().count_items(lengths)

    def count_batches(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of every epoch."""
        if not self.aligned:
            return BlockPolicy.count_batches(self, index, seed=seed, epoch=epoch)
        key = ("aligned windows", self.axis, self._make_rule())
        return index.remember(key, lambda: int(self._count_windows(index).max(initial=0)))

    def crop_numbers(
        self, index: SequenceIndex, spans: NDArray[np.int64], *, seed: int, epoch: int
    ) -> NDArray[np.int64]:
        """Return the index of each span among the windows of its sequence, int64 (n,).

        Without ``random``, all indices are 0. Random windows at the same position have the index of
        the first of them.

        Args:
            index: Lengths of the sequences.
            spans: int64 (n, 3): sequence, start, stop.
            seed: Seed of the plan.
            epoch: Epoch of the plan.
        """
        numbers = np.zeros(len(spans), dtype=np.int64)
        if not self.random:
            return numbers
        if self.stride is not None:  # one in each stride
            usual = self._size_bounds[1] if self.min_size is None else self._size_bounds[0]
            room = index.at(self.axis, spans[:, 0]) - usual - self.horizon
            stride = int(self.stride)
            numbers = (spans[:, 1] - room % stride + stride - 1) // stride
            return np.asarray(np.maximum(0, numbers))
        rule, draw = self._make_rule(), Draw(seed, epoch)
        lengths = index.at(self.axis, spans[:, 0])
        for crop in range(self.per_sequence - 1, -1, -1):
            crops = np.full(len(spans), crop, dtype=np.int64)
            pieces = ItemPieces(lengths, crops, partial(index.drawn_for, spans[:, 0]))
            starts, stops = rule.bounds(pieces, draw)
            numbers[(starts == spans[:, 1]) & (stops == spans[:, 2])] = crop
        return numbers

    @property
    def items_per_sequence(self) -> int | None:
        """Number of windows of each sequence that is not dropped; None: it differs."""
        return self.per_sequence if self.random and self.stride is None else None

    def _make_cutter(self) -> FixedSizeCutter:
        return FixedSizeCutter(self.batch_size, None, is_arranged=False)

    def _make_rule(self) -> GridWindows | RandomWindows | StrideWindows:
        if self.size is None or self._has_seconds:
            refuse_seconds("windows")
        most, least = self._size_bounds
        is_drawn = not isinstance(self.size, int)
        sizes: Any = {"least": self.min_size or least, "is_drawn": is_drawn}
        if sizes == {"least": most, "is_drawn": False}:
            sizes = {}
        if self.random and self.stride is None:
            return RandomWindows(most, self.horizon, self.per_sequence, **sizes)
        if self.random:
            return StrideWindows(most, self.horizon, int(self.stride or most), **sizes)
        stride = Fraction(self.stride or most)
        is_at_end = self.anchor == "end"
        return GridWindows(
            most, self.horizon, stride.numerator, stride.denominator, is_at_end, **sizes
        )

    def _select_items(self, index: SequenceIndex) -> Items:
        return number_items(index, self.axis, self._make_rule())


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """Sizes of windows.

    Attributes:
        size: Maximum number of timesteps of a context.
        horizon: Number of timesteps of the future.
        least: Minimum number of timesteps of a context.
        is_drawn: Whether each size is drawn from ``least`` to ``size``. Otherwise it is ``size``,
            or less only where that does not fit.
    """

    size: int
    horizon: int
    least: int
    is_drawn: bool = False

    @property
    def usual(self) -> int:
        """Number of timesteps that must follow the start of a window, unless it is a short one."""
        return self.least if self.is_drawn else self.size

    def longest(self, lengths: NDArray[np.int64]) -> int:
        """Return the timesteps of the longest window of these sequences, 0 for none."""
        usable = int(lengths.max(initial=0)) - self.horizon
        return min(self.size, usable) if usable >= self.least else 0

    def choose(
        self, room: NDArray[np.int64], draw: Draw | None, pieces: ItemPieces
    ) -> NDArray[np.int64]:
        """Return the size of each window, at most its room, int64 (n,)."""
        most = np.minimum(room, self.size)
        if draw is None or not self.is_drawn:  # without a draw the largest ones
            return most
        earlier_counts, bases = pieces.drawn_for()
        drawn = draw.each(Purpose.SIZES, (earlier_counts << 32) + pieces.piece_numbers, bases)
        choices = (most - self.least + 1).astype(np.uint64)
        return self.least + (drawn % choices).astype(np.int64)


class _WindowRule:
    """Base of rules of windows: dataclasses with the sizes of ``WindowSizes``."""

    __slots__ = ()

    run_items: ClassVar[int] = 1

    size: int
    horizon: int
    least: int | None
    is_drawn: bool

    @property
    def sizes(self) -> WindowSizes:
        """Sizes of the windows; without ``least``, the minimum is ``size``."""
        least = self.size if self.least is None else self.least
        return WindowSizes(self.size, self.horizon, least, self.is_drawn)

    def longest(self, lengths: NDArray[np.int64]) -> int:
        """Return the timesteps of the longest window, 0 where there is none."""
        return self.sizes.longest(lengths)


@dataclass(frozen=True, slots=True)
class GridWindows(_WindowRule):
    """Windows at every multiple of a stride: ``stride / parts`` timesteps, to the nearest one.

    If sizes are not drawn, a short window has the timesteps that are left at the far end.
    """

    size: int
    horizon: int
    stride: int
    parts: int = 1
    is_at_end: bool = False
    least: int | None = None
    is_drawn: bool = False

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of windows of each sequence, int64 (n,)."""
        sizes, usable = self.sizes, lengths - self.sizes.horizon
        room = usable - sizes.usual
        last = room // self.stride
        if self.parts > 1:  # the largest k with k * stride / parts + 1/2 < room + 1
            last = ((2 * room + 1) * self.parts - 1) // (2 * self.stride)
        counts = np.where(room >= 0, last + 1, 0)
        if sizes.least == sizes.usual:
            return counts
        covered = np.where(counts > 0, self._starts(counts - 1) + sizes.size, 0)
        is_left = (usable > covered) & (usable - self._starts(counts) >= sizes.least)
        return counts + is_left

    def bounds(
        self, pieces: ItemPieces, draw: Draw | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and stop of each window's context, int64 (n,)."""
        sizes, usable = self.sizes, pieces.lengths - self.sizes.horizon
        numbers = pieces.piece_numbers
        if not self.is_at_end:
            starts = self._starts(numbers)
            room = usable - starts
        else:  # with a stride of timesteps, which are counted from the end
            room = usable - (self.count_items(pieces.lengths) - 1 - numbers) * self.stride
            starts = room
        chosen = sizes.choose(room, draw, pieces)
        if self.is_at_end:
            starts = room - chosen
        return starts, starts + chosen

    def _starts(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the timesteps from the start of the first window to each start, int64 (n,)."""
        starts = numbers * self.stride
        if self.parts > 1:
            starts = (2 * starts + self.parts) // (2 * self.parts)
        return starts


@dataclass(frozen=True, slots=True)
class StrideWindows(_WindowRule):
    """Windows at a random start in each stride, so that together all starts may be drawn.

    The last stride ends with the last start of a window; the first one may be shorter.
    """

    size: int
    horizon: int
    stride: int
    least: int | None = None
    is_drawn: bool = False

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of windows of each sequence, int64 (n,)."""
        usable = lengths - self.sizes.horizon
        room = usable - self.sizes.usual
        return np.where(room >= 0, room // self.stride + 1, usable >= self.sizes.least)

    def bounds(
        self, pieces: ItemPieces, draw: Draw | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and stop of each window's context, int64 (n,)."""
        usable = pieces.lengths - self.sizes.horizon
        room = np.maximum(usable - self.sizes.usual, 0)
        last = pieces.piece_numbers * self.stride + room % self.stride  # the latest start
        if draw is None:  # only lengths are needed
            return last, last + self.sizes.choose(usable - last, None, pieces)
        first = np.where(pieces.piece_numbers > 0, last - self.stride + 1, 0)
        earlier_counts, bases = pieces.drawn_for()
        drawn = draw.each(Purpose.CROPS, (earlier_counts << 32) + pieces.piece_numbers, bases)
        starts = first + (drawn % (last - first + 1).astype(np.uint64)).astype(np.int64)
        return starts, starts + self.sizes.choose(usable - starts, draw, pieces)


@dataclass(frozen=True, slots=True)
class RandomWindows(_WindowRule):
    """Windows at random positions, drawn per sequence and window, the same in every view."""

    size: int
    horizon: int
    per_sequence: int
    least: int | None = None
    is_drawn: bool = False

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of windows of each sequence, int64 (n,)."""
        return np.where(lengths >= self.sizes.least + self.sizes.horizon, self.per_sequence, 0)

    def bounds(
        self, pieces: ItemPieces, draw: Draw | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and stop of each window's context, int64 (n,); 0 as start without a draw."""
        usable = pieces.lengths - self.sizes.horizon
        if draw is None:  # only lengths are needed
            starts = np.zeros_like(usable)
            return starts, self.sizes.choose(usable, None, pieces)
        chosen = self.sizes.choose(usable, draw, pieces)
        earlier_counts, bases = pieces.drawn_for()
        drawn = draw.each(Purpose.CROPS, (earlier_counts << 32) + pieces.piece_numbers, bases)
        starts = (drawn % (usable - chosen + 1).astype(np.uint64)).astype(np.int64)
        return starts, starts + chosen


@dataclass(frozen=True, eq=False, slots=True)
class AlignedTable(BatchTable):
    """Batches of the windows at one position of all sequences that have it.

    Attributes:
        index: The lengths.
        axis: The planned axis.
        rule: Rule of the windows, which all have one size.
        counts: int64 (n,), windows of each sequence.
        order: int64 (batches,), the position of each batch, from the anchor.
    """

    index: SequenceIndex
    axis: str
    rule: GridWindows
    counts: NDArray[np.int64]
    order: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.order)

    def batch(self, number: int) -> PlanBatch:
        """Return one batch, whose rows are in the order of the data."""
        position = int(self.order[number])
        sequences = np.flatnonzero(self.counts > position)
        pieces = np.full(len(sequences), position, dtype=np.int64)
        if self.rule.is_at_end:
            pieces = self.counts[sequences] - 1 - position
        lengths = self.index.at(self.axis, sequences)
        spans = np.empty((len(sequences), 3), dtype=np.int64)
        spans[:, 0] = sequences
        drawn_for = partial(self.index.drawn_for, sequences)
        spans[:, 1], spans[:, 2] = self.rule.bounds(ItemPieces(lengths, pieces, drawn_for), None)
        return PlanBatch(spans, None)

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return the number of scored timesteps and of rows in batches ``first:stop``."""
        del overlap  # windows have none
        ranked = np.sort(self.counts)
        rows = len(ranked) - np.searchsorted(ranked, self.order[first:stop], side="right")
        count = int(rows.sum())
        return count * self.rule.size, count

    def tables(self) -> Iterator[ArrayTable]:
        """Yield the batches in order, one at a time."""
        for number in range(len(self)):
            yield self.slice(number, number + 1)

    def prepare(self, number: int) -> int:
        """Return the index of the next batch; nothing is prepared."""
        return number + 1
