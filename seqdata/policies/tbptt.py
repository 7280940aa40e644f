"""Policy ``tbptt``: long sequences in chunks, each lane continuing where it stopped.

For truncated backpropagation through time (Williams and Peng, 1990; Sutskever, 2013): row j of the
next batch continues where row j of this one stopped, so a recurrent state can be carried over.

Chunk lengths that vary are drawn once from the seed, in a new order in every epoch. Chunks then end
at other timesteps in every epoch, which evens out the reach of gradients (AWD-LSTM: S. Merity,
N. S. Keskar and R. Socher, "Regularizing and optimizing LSTM language models", 2018). Their number
follows from the length of a lane alone. Only raw words of Philox are used, and integers, so that no
release of NumPy and no CPU changes a length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, StopIterationGuard, check_flags, must_be
from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.plan_table import ArrayTable, offsets_from_sizes
from seqdata.planning.build import check_counts, make_fingerprint, make_full_report
from seqdata.planning.items import Empty, Items, WholeSequences, select_items
from seqdata.planning.lane_assignment import LaneAssignment, SwapLimits, assign_lanes, make_queues
from seqdata.planning.lanes import (
    Chunks,
    LaneSchedule,
    UnevenChunks,
    make_column_offsets,
    make_queued_lanes,
    make_step_table,
    make_stream_lanes,
)
from seqdata.planning.policy import BasePolicy
from seqdata.planning.randomness import Draw, Purpose
from seqdata.planning.seconds import (
    SecondsCounter,
    check_one_unit,
    check_seconds,
    refuse_seconds,
    seconds_option,
)
from seqdata.protocols import Store

_WORDS_PER_LENGTH = 4  # drawn per length
_SUMMED_UNIFORMS = (
    12  # uniform numbers of 16 bits whose sum is as good as normal, with a deviation of 2^16
)
_BIT_SHIFTS = np.array([0, 16, 32, 48], dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Jitter:
    """Variation of chunk lengths: normal around the usual length or, rarely, around half of it.

    Args:
        short: Fraction of chunks around half the usual length.
        spread: Standard deviation, in timesteps.
        least: Minimum number of timesteps of a chunk.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata import TBPTT, Jitter
        >>> TBPTT(2, 70, continuous=True, jitter=Jitter(spread=3)).jitter.spread
        3
    """

    short: float = 0.05
    spread: int = 5
    least: int = 5

    def __post_init__(self) -> None:
        is_number = isinstance(self.short, int | float) and not isinstance(self.short, bool)
        if not (is_number and 0 <= self.short <= 1):
            needed = "a fraction from 0 to 1"
            raise ConfigError(must_be("jitter: `short`", needed, f"{self.short!r}"))
        for name, least in (("spread", 0), ("least", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(
                    must_be(f"jitter: `{name}`", f"an integer of at least {least}", f"{value!r}")
                )

    def count(self, chunk: int, timesteps: int) -> int:
        """Return the number of chunks that cover ``timesteps``, near the expected number."""
        rounded = 0.5 if self.spread else 0.0  # down
        mean = max(self.least, chunk * (1 - self.short / 2) - rounded)
        return math.ceil(timesteps / mean)

    def chunks(self, chunk: int, timesteps: int, seed: int, epoch: int | None) -> UnevenChunks:
        """Return an epoch's chunks, ``timesteps`` in total.

        Args:
            chunk: The usual length.
            timesteps: Timesteps of the longest lane.
            seed: The run's seed, which determines the lengths.
            epoch: The epoch, which determines the order of the lengths; None: the order in which
                they were drawn.
        """
        count = self.count(chunk, timesteps)
        if not count:
            return UnevenChunks(chunk, np.zeros(1, dtype=np.int64))
        lengths = self._fit_lengths(self._draw_lengths(chunk, count, seed), timesteps)
        if epoch is not None:
            lengths = lengths[Draw(seed, epoch).permutation(Purpose.SCHEDULE, count)]
        return UnevenChunks(chunk, offsets_from_sizes(lengths))

    def _draw_lengths(self, chunk: int, count: int, seed: int) -> NDArray[np.int64]:
        words = (
            Draw(seed, 0)
            .raw(Purpose.LENGTHS, count * _WORDS_PER_LENGTH)
            .reshape(count, _WORDS_PER_LENGTH)
        )
        uniforms = (words[:, 1:, None] >> _BIT_SHIFTS) & np.uint64(0xFFFF)
        sums = uniforms.reshape(count, _SUMMED_UNIFORMS).sum(axis=1).astype(
            np.int64
        ) - _SUMMED_UNIFORMS * (1 << 15)
        short = words[:, 0] < np.uint64(min(int(self.short * 2**64), 2**64 - 1))
        middle = np.where(short, chunk << 15, chunk << 16)
        lengths: NDArray[np.int64] = (middle + self.spread * sums) >> 16
        return np.maximum(self.least, lengths)

    def _fit_lengths(self, lengths: NDArray[np.int64], timesteps: int) -> NDArray[np.int64]:
        """Return lengths changed by nearly equal amounts, ``timesteps`` in total."""
        count = len(lengths)
        each, remainder = divmod(timesteps - int(lengths.sum()), count)
        lengths = lengths + each
        lengths[:remainder] += 1
        least = min(self.least, timesteps // count)
        deficit = int(np.maximum(least - lengths, 0).sum())
        lengths = np.maximum(lengths, least)
        while deficit:  # few lengths, far from their total
            longest = int(lengths.argmax())
            moved = min(deficit, int(lengths[longest]) - least)
            lengths[longest] -= moved
            deficit -= moved
        return lengths


@dataclass(frozen=True, slots=True)
class TBPTT(BasePolicy):
    """Chunks of at most ``chunk`` timesteps in ``lanes`` lanes; a batch has a row of each lane.

    Sequences are assigned to lanes so that all lanes end at about the same step. The number of
    steps is the same in every epoch, if ``chunk`` is not a function. When its sequence ends, a lane
    starts the next sequence, which ``batch.reset`` marks. A lane without further sequences is a row
    of weight 0: with fewer sequences than lanes, pass ``continuous``. The policy shuffles
    sequences, but never the chunks of a sequence.

    Args:
        lanes: Number of rows of a batch, over all ranks.
        chunk: Maximum number of timesteps of a row; or pass ``seconds``. With a function
            ``chunk(epoch)``, epochs differ in their number of steps, and a Trainer needs
            ``reload_dataloaders_every_n_epochs=1``.
        advance: Timesteps from the start of a chunk to the start of the next; None: ``chunk``. If
            ``advance`` is less than ``chunk``, chunks overlap. The later chunk reads the common
            timesteps as context (``batch.burn_in``) and does not score them.
        continuous: Whether to concatenate all sequences to one stream and cut the stream into equal
            columns, one per lane, as for language models or one long recording. The state is then
            carried across the ends of sequences, and ``shift`` shifts the stream.
        segments: Whether a row continues with the next sequence of the lane if a sequence ends
            within a chunk. Lanes are then packed by timesteps, and ``batch.segments`` lists the
            spans of rows.
        jitter: Whether the lengths of chunks vary from step to step, or a ``Jitter`` that sets the
            variation. Every epoch has the same lengths in another order. ``batch.lr_scale`` is the
            factor of the learning rate. Needs ``continuous`` or ``segments``.
        shuffle: Whether to shuffle sequences in every epoch. False keeps the order of the data.
        axis: Axis whose lengths the plan uses.
        empty: Treatment of sequences of length 0: ``drop`` or ``error``.
        seconds: Duration of a row in place of ``chunk``, the nearest number of timesteps: for
            stores with known sampling rates (``open_store(rates=)``). As in ``Windows``, a faster
            linked axis may replace ``time``.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> index = SequenceIndex.from_lengths([5, 2, 3])
        >>> plan = TBPTT(2, 2, shuffle=False).plan(index, seed=0, epoch=0)
        >>> [plan.batch(step).spans.tolist() for step in range(len(plan))]
        [[[0, 0, 2], [1, 0, 2]], [[0, 2, 4], [2, 0, 2]], [[0, 4, 5], [2, 2, 3]]]
    """

    lanes: int
    chunk: int | Callable[[int], int] | None = None
    advance: int | None = None
    continuous: bool = False
    segments: bool = False
    jitter: bool | Jitter = False
    shuffle: bool = True
    axis: str = DEFAULT_AXIS
    empty: Empty = "drop"
    seconds: float | str | None = seconds_option()

    def __post_init__(self) -> None:
        check_counts("tbptt", self, "lanes")
        check_seconds("tbptt", self, "seconds")
        check_one_unit("tbptt", self, ("chunk", "seconds"))
        if not callable(self.chunk):
            check_counts("tbptt", self, "chunk", optional=self.seconds is not None)
        check_flags("policy 'tbptt'", continuous=self.continuous, segments=self.segments)
        if not isinstance(self.shuffle, bool):
            raise ConfigError(
                must_be(
                    "policy 'tbptt': `shuffle`",
                    "True or False",
                    f"{self.shuffle!r}",
                    "Whole sequences are shuffled, never the chunks of one: their lane carries a "
                    "state",
                )
            )
        if self.advance is not None:
            check_counts("tbptt", self, "advance")
            if isinstance(self.chunk, int) and self.advance > self.chunk:
                raise ConfigError(
                    must_be(
                        "policy 'tbptt': `advance`",
                        f"at most `chunk={self.chunk}`",
                        f"{self.advance}",
                        "The timesteps between two chunks would be dropped",
                    )
                )
        if self.segments and self.continuous:
            raise ConfigError(
                "policy 'tbptt': at most one of `segments` and `continuous` must be True, but both "
                "are: `continuous` carries the state over the ends of sequences, `segments` does "
                "not. Leave one of them out."
            )
        if self.segments and self.advance not in (None, self.chunk):
            raise ConfigError(
                must_be(
                    "policy 'tbptt': `advance`",
                    "None",
                    f"{self.advance} with `segments=True`",
                    "A row of several sequences has no room for the context of each",
                )
            )
        if self.jitter is not False:
            self._check_jitter()
        self._make_rule()

    def _check_jitter(self) -> None:
        if not isinstance(self.jitter, bool | Jitter):
            raise ConfigError(
                must_be("policy 'tbptt': `jitter`", "True, False or a Jitter", f"{self.jitter!r}")
            )
        if not self._is_stream:
            raise ConfigError(
                must_be(
                    "policy 'tbptt': `jitter`",
                    "False for lanes that begin a chunk with each sequence",
                    f"{self.jitter!r}",
                    "The order of lengths would change the number of steps. "
                    "Set `continuous=True` or `segments=True`",
                )
            )
        if self.advance not in (None, self.chunk):
            raise ConfigError(
                must_be(
                    "policy 'tbptt': `advance`",
                    "None",
                    f"{self.advance} with `jitter`",
                    "Chunks of many lengths do not overlap",
                )
            )

    @property
    def cuts_sequences(self) -> bool:
        """True: spans are chunks of sequences."""
        return True

    def in_timesteps(self, store: Store) -> Self | None:
        """Return the policy with seconds converted to timesteps of a store; None without seconds.

        Raises:
            ConfigError: If the sampling rate of the axis is unknown, or the duration is too short.
        """
        if self.seconds is None:
            return None
        counter = SecondsCounter(store, "tbptt", self.axis, [self.seconds])
        chunk = counter.count("seconds", self.seconds)
        return replace(self, chunk=chunk, axis=counter.axis, seconds=None)

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch."""
        return self._for_epoch(epoch)._build_plan(index, seed, epoch)

    @property
    def varies(self) -> bool:
        """Whether epochs differ in their number of batches."""
        return callable(self.chunk)

    def count_batches(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        del seed
        policy = self._for_epoch(epoch)
        return policy._count_steps(*policy._select_items(index))

    def _for_epoch(self, epoch: int) -> TBPTT:
        """Return the policy with the chunk length of an epoch."""
        if self.chunk is None:
            refuse_seconds("tbptt")
        if not callable(self.chunk):
            return self
        with StopIterationGuard("policy 'tbptt': `chunk`", self.chunk):
            chunk = self.chunk(epoch)
        if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
            raise ConfigError(
                f"policy 'tbptt': `chunk` must return an integer of at least 1, but returned "
                f"{chunk!r} for epoch {epoch}. Change the function."
            )
        return replace(self, chunk=chunk)

    def _build_plan(self, index: SequenceIndex, seed: int, epoch: int) -> Plan:
        items, lookahead = self._select_items(index)
        schedule = self._make_schedule(items, lookahead, Draw(seed, epoch))
        table = (
            make_step_table(schedule)
            if schedule.steps
            else ArrayTable.from_arrays([], None, [0], self.lanes)
        )
        return Plan.lazy(
            table,
            PlanOrigin(
                fingerprint=lambda: make_fingerprint(index, self, seed, epoch),
                report=lambda batch_table: make_full_report(items, batch_table),
            ),
            lanes=self.lanes,
            overlap=self._chunks.overlap,
            carry=self.continuous,
        )

    @property
    def _chunk(self) -> int:
        return cast("int", self.chunk)  # of an epoch

    @property
    def _chunks(self) -> Chunks:
        return Chunks(self._chunk, self.advance or self._chunk)

    @property
    def _is_stream(self) -> bool:
        return self.continuous or self.segments

    def _make_rule(self) -> WholeSequences:
        return WholeSequences(empty=self.empty)

    def _select_items(self, index: SequenceIndex) -> tuple[Items, int]:
        """Return the planned sequences, and the number of last timesteps that are targets only."""
        lookahead = 0
        if self.continuous:
            index, lookahead = index.unshifted(self.axis)
        return select_items(index, self.axis, self._make_rule(), policy="tbptt"), lookahead

    def _assign_lanes(self, items: Items) -> LaneAssignment:
        """Return the assignment of sequences to lanes, made once per index."""
        sizes = _identity if self.segments else self._chunks.count_chunks
        return items.index.remember(
            ("lanes", items.axis, self.segments or self._chunks, self.lanes),
            lambda: assign_lanes(sizes(_select_nonempty(items)[1]), self.lanes),
        )

    def _count_steps(self, items: Items, lookahead: int) -> int:
        if not self._is_stream:
            return int(self._assign_lanes(items).loads.max())
        longest = self._longest_lane(items, lookahead)
        if self.jitter:
            return self._jitter.count(self._chunk, longest)
        return int(self._chunks.count_chunks(np.array([longest]))[0]) if longest else 0

    @property
    def _jitter(self) -> Jitter:
        return self.jitter if isinstance(self.jitter, Jitter) else Jitter()

    def _longest_lane(self, items: Items, lookahead: int) -> int:
        """Return the timesteps of the longest lane of a stream."""
        if self.segments:
            return int(self._assign_lanes(items).loads.max())
        return max(0, -(-(_count_timesteps(items) - lookahead) // self.lanes))

    def _make_schedule(self, items: Items, lookahead: int, draw: Draw) -> LaneSchedule:
        if self._is_stream:
            return self._make_stream(items, lookahead, draw)
        numbers, lengths = _select_nonempty(items)
        shuffle_draw = draw if self.shuffle else None
        steps, assignment = self._count_steps(items, lookahead), self._assign_lanes(items)
        queues = make_queues(
            self._chunks.count_chunks(lengths), assignment, shuffle_draw, SwapLimits(steps)
        )
        members = queues.members
        return make_queued_lanes(
            numbers[members], lengths[members], queues.offsets, self._chunks, steps
        )

    def _make_stream(self, items: Items, lookahead: int, draw: Draw) -> LaneSchedule:
        numbers, lengths = _select_nonempty(items)
        shuffle_draw = draw if self.shuffle else None
        longest = self._longest_lane(items, lookahead)
        chunks: Chunks | UnevenChunks = self._chunks
        chunk = self._chunk
        limits = SwapLimits(self._count_steps(items, lookahead) * chunk, chunk, chunk)
        if self.jitter:
            seed, epoch = (draw.seed, draw.epoch) if self.shuffle else (0, None)
            chunks = self._jitter.chunks(self._chunk, longest, seed, epoch)
            limits = SwapLimits(longest, slack=chunk)
        if self.continuous:
            order = np.arange(len(numbers))
            if shuffle_draw is not None:
                order = shuffle_draw.permutation(Purpose.MEMBERS, len(numbers))
            offsets = offsets_from_sizes(lengths[order])
            lane_offsets = make_column_offsets(max(0, int(offsets[-1]) - lookahead), self.lanes)
            return make_stream_lanes(numbers[order], offsets, lane_offsets, chunks, lookahead)
        queues = make_queues(lengths, self._assign_lanes(items), shuffle_draw, limits)
        offsets = offsets_from_sizes(lengths[queues.members])
        return make_stream_lanes(numbers[queues.members], offsets, offsets[queues.offsets], chunks)


def _identity(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return lengths


def _count_timesteps(items: Items) -> int:
    """Return the number of timesteps of all sequences, counted once per index."""
    return items.index.remember(
        ("timesteps", items.axis),
        lambda: int(_select_nonempty(items)[1].sum()),
    )


def _select_nonempty(items: Items) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the sequences that are planned, in the data's order, and their lengths, int64 (n,)."""
    lengths = np.asarray(items.index.run(items.axis, 0, len(items.index)), dtype=np.int64)
    numbers = np.flatnonzero(lengths)
    dtype = np.uint32 if len(lengths) < 1 << 32 else np.int64
    return numbers.astype(dtype), lengths[numbers]
