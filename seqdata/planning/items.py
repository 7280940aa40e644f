"""Items that a policy puts into batches, numbered without gaps and without a list of them.

An item is a sequence, or a piece of one that is split or truncated because it is too long. Items
are found by prefix sums over chunks of the sequences, so virtual ones (10^9 of them) cost no
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, PlanError, must_be
from seqdata.index import SCAN_CHUNK, Copies, SequenceIndex
from seqdata.plan_table import concat_ranges, offsets_from_sizes
from seqdata.planning.randomness import Draw

TooLong = Literal["error", "split", "truncate", "drop"]
Empty = Literal["drop", "error"]
Keep = Literal["first", "last"]


class ItemRule(Protocol):
    """Rule by which sequences become items, by length. Hashable: it is the key of cached counts."""

    @property
    def run_items(self) -> int:
        """Maximum number of neighbours that are planned together; 1: this would save no reads."""
        ...

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of items of each sequence, int64 (n,)."""
        ...

    def longest(self, lengths: NDArray[np.int64]) -> int:
        """Return the timesteps of the longest item of these sequences, 0 for none."""
        ...

    def bounds(
        self, pieces: ItemPieces, draw: Draw | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and stop of each piece, int64 (n,); random ones are drawn from ``draw``."""
        ...


class ItemPieces(NamedTuple):
    """Items by sequence.

    Attributes:
        lengths: int64 (n,), lengths of the sequences.
        piece_numbers: int64 (n,), index of each piece in its sequence.
        drawn_for: Function that returns keys of random numbers, as ``SequenceIndex.drawn_for``.
    """

    lengths: NDArray[np.int64]
    piece_numbers: NDArray[np.int64]
    drawn_for: Callable[[], tuple[NDArray[np.int64], NDArray[np.int64]]]


@dataclass(frozen=True, slots=True)
class WholeSequences:
    """Every sequence as one item, except for empty and too long ones.

    Args:
        max_length: Maximum number of timesteps of an item; None: no limit.
        too_long: Treatment of longer sequences: ``error``, ``split`` into spans of at most
            ``max_length``, ``truncate`` or ``drop``.
        empty: Treatment of sequences of length 0: ``drop`` or ``error``.
        keep: Timesteps of a truncated sequence that remain: the ``first`` or the ``last``.

    Raises:
        ConfigError: If an option has another value.
    """

    run_items: ClassVar[int] = 16

    max_length: int | None = None
    too_long: TooLong = "error"
    empty: Empty = "drop"
    keep: Keep = "first"

    def __post_init__(self) -> None:
        if self.too_long not in ("error", "split", "truncate", "drop"):
            raise ConfigError(
                must_be(
                    "policy: `too_long`",
                    "'error', 'split', 'truncate' or 'drop'",
                    f"{self.too_long!r}",
                    "Pass one of them",
                )
            )
        if self.empty not in ("drop", "error"):
            raise ConfigError(must_be("policy: `empty`", "'drop' or 'error'", f"{self.empty!r}"))
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(
                must_be("policy: `max_length`", "at least 1 or None", f"{self.max_length!r}")
            )
        if self.keep not in ("first", "last"):
            raise ConfigError(f"policy: `keep` must be 'first' or 'last', but is {self.keep!r}.")
        if self.keep == "last" and self.too_long != "truncate":
            raise ConfigError(
                f"policy: `keep='last'` needs `too_long='truncate'`, but `too_long` is "
                f"{self.too_long!r}. Pass too_long='truncate', or leave `keep` out."
            )

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of items of each sequence, int64 (n,)."""
        if self.max_length is None or self.too_long == "truncate":
            return (lengths > 0).astype(np.int64)
        if self.too_long == "split":
            return -(-lengths // self.max_length)
        return ((lengths > 0) & (lengths <= self.max_length)).astype(np.int64)

    @property
    def items_per_sequence(self) -> int | None:
        """Number of items of each sequence that is not left out; None: it differs."""
        return None if self.max_length is not None and self.too_long == "split" else 1

    def longest(self, lengths: NDArray[np.int64]) -> int:
        """Return the timesteps of the longest item of these sequences, 0 for none."""
        if self.max_length is None:
            return int(lengths.max(initial=0))
        if self.too_long == "drop":
            return int(lengths.max(initial=0, where=lengths <= self.max_length))
        return min(int(lengths.max(initial=0)), self.max_length)

    def bounds(
        self, pieces: ItemPieces, draw: Draw | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return start and stop of each piece, int64 (n,)."""
        del draw  # not random
        if self.max_length is None:
            return np.zeros_like(pieces.lengths), pieces.lengths
        if self.keep == "last":
            return np.maximum(pieces.lengths - self.max_length, 0), pieces.lengths
        starts = pieces.piece_numbers * self.max_length
        return starts, np.minimum(starts + self.max_length, pieces.lengths)


_BIN = 1 << 5  # sequences whose items are counted together: what is read to find one of them

Cost = Callable[[Mapping[str, NDArray[np.int64]]], NDArray[np.int64]]
"""``cost(lengths_of) -> sizes``: axis -> int64 (n,) lengths of n items; returns int64 (n,)."""


@dataclass(frozen=True, eq=False, slots=True)
class Items:
    """The items of an index under a rule.

    Attributes:
        index: The lengths.
        axis: The axis that is planned on.
        rule: Rule by which sequences become items.
        offsets: int64 (chunks+1,), index of the first item of each ``SCAN_CHUNK`` sequences.
        peaks: int64 (chunks,), timesteps of the longest item of each chunk.
        bin_offsets: int64 (bins+1,), index of the first item of each ``_BIN`` sequences; None:
            each sequence is one item.
        are_whole: Whether each item is a whole sequence.
        cost: Cost function of rows; None: a row costs its length along the planned axis.
    """

    index: SequenceIndex
    axis: str
    rule: ItemRule
    offsets: NDArray[np.int64]
    peaks: NDArray[np.int64]
    bin_offsets: NDArray[np.int64] | None = None
    are_whole: bool = False
    cost: Cost | None = None

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def spans_at(self, numbers: NDArray[np.int64], draw: Draw | None = None) -> NDArray[np.int64]:
        """Return the spans of some items, int64 (n, 3): sequence, start, stop.

        Args:
            numbers: int64 (n,), indices of items, increasing.
            draw: Randomness of the epoch, for items of a random rule.
        """
        if self.bin_offsets is None:
            lengths = self.index.at(self.axis, numbers)
            return self._make_spans(numbers, lengths, np.zeros_like(numbers), draw)
        firsts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)  # of runs of neighbours
        low, high = (
            np.searchsorted(self.bin_offsets, numbers[ends], side="right") - 1
            for ends in (firsts, np.append(firsts[1:], len(numbers)) - 1)
        )
        bins = concat_ranges(low, offsets_from_sizes(high - low + 1))
        bins = bins[np.diff(bins, prepend=-1) > 0]
        sequences = (bins[:, np.newaxis] * _BIN + np.arange(_BIN)).reshape(-1)
        sequences = sequences[: np.searchsorted(sequences, len(self.index))]
        lengths = self.index.at(self.axis, sequences)
        counts = self.rule.count_items(lengths)
        starts = offsets_from_sizes(counts)  # sequence -> its first item among all of these bins
        found_bins = np.searchsorted(bins, low)
        shifts = starts[found_bins * _BIN] - self.bin_offsets[low]
        items = numbers + np.repeat(shifts, np.diff(np.append(firsts, len(numbers))))
        found = np.searchsorted(starts, items, side="right") - 1
        return self._make_spans(sequences[found], lengths[found], items - starts[found], draw)

    @property
    def stored_sizes(self) -> NDArray[Any] | None:
        """Stored lengths, integers (items,), if they are the costs of items as rows; else None."""
        is_stored = self.are_whole and self.cost is None and not self.index.maps.get(self.axis)
        return self.index.lengths_of[self.axis] if is_stored else None

    def find_longest(self) -> int:
        """Return the index of the first item with the most timesteps."""
        chunk = int(np.argmax(self.peaks))
        first, stop = int(self.offsets[chunk]), int(self.offsets[chunk + 1])
        spans = self.spans(first, stop)
        return first + int(np.argmax(spans[:, 2] - spans[:, 1]))

    def find_copies(self, spans: NDArray[np.int64]) -> Copies | None:
        """Return the items that have the same sequence; None if no sequence occurs repeatedly.

        Args:
            spans: int64 (n, 3), spans of the items.
        """
        return self.index.find_copies(spans[:, 0]) if self.index.has_copies else None

    def spans(self, first: int, stop: int, draw: Draw | None = None) -> NDArray[np.int64]:
        """Return the spans of items ``first:stop``, int64 (n, 3): sequence, start, stop.

        Random positions are taken from ``draw``.
        """
        stop = min(stop, len(self))
        chunk = int(np.searchsorted(self.offsets, first, side="right")) - 1
        span_arrays = []
        while first < stop:
            upto = min(stop, int(self.offsets[chunk + 1]))
            if upto > first:
                span_arrays.append(
                    self._spans_of_chunk(
                        chunk, first - int(self.offsets[chunk]), upto - first, draw
                    )
                )
                first = upto
            chunk += 1
        return np.concatenate(span_arrays) if span_arrays else np.empty((0, 3), dtype=np.int64)

    def sizes(self, spans: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the cost of each item as a row, int64 (n,): its timesteps or ``cost``.

        Raises:
            ConfigError: If ``cost`` does not return an integer for each.
        """
        lengths = spans[:, 2] - spans[:, 1]
        if self.cost is None or not len(spans):
            return lengths
        lengths_of = {self.axis: lengths}
        for axis in self.index.lengths_of:
            if axis != self.axis:  # other axes are read whole
                lengths_of[axis] = self.index.at(axis, spans[:, 0])
        return _check_sizes(self.cost(lengths_of), len(lengths))

    def peak(self, first: int, stop: int) -> int:
        """Return an upper bound of the timesteps of items ``first:stop``, exact at chunk bounds."""
        low = int(np.searchsorted(self.offsets, first, side="right")) - 1
        high = int(np.searchsorted(self.offsets, stop, side="left"))
        return int(self.peaks[low:high].max(initial=0))

    def _spans_of_chunk(
        self, chunk: int, skip: int, count: int, draw: Draw | None
    ) -> NDArray[np.int64]:
        base = chunk * SCAN_CHUNK
        lengths = np.asarray(self.index.run(self.axis, base, base + SCAN_CHUNK), dtype=np.int64)
        counts = self.rule.count_items(lengths)
        ends = np.cumsum(counts)
        if int(ends[-1]) == len(lengths) and int(counts.max()) == 1:  # one item per sequence
            sequences = np.arange(skip, skip + count)
            piece_numbers = np.zeros(count, dtype=np.int64)
        else:
            item_numbers = np.arange(skip, skip + count)
            sequences = np.searchsorted(ends, item_numbers, side="right")
            piece_numbers = item_numbers - (ends - counts)[sequences]
        return self._make_spans(base + sequences, lengths[sequences], piece_numbers, draw)

    def _make_spans(
        self,
        sequences: NDArray[np.int64],
        lengths: NDArray[np.int64],
        piece_numbers: NDArray[np.int64],
        draw: Draw | None,
    ) -> NDArray[np.int64]:
        spans = np.empty((len(sequences), 3), dtype=np.int64)
        spans[:, 0] = sequences
        drawn_for = partial(self.index.drawn_for, spans[:, 0])
        pieces = ItemPieces(lengths, piece_numbers, drawn_for)
        spans[:, 1], spans[:, 2] = self.rule.bounds(pieces, draw)
        return spans


def _check_sizes(costs: Any, count: int) -> NDArray[np.int64]:
    """Return the costs of rows as int64 (n,), since unsigned integers cannot be negated.

    Raises:
        ConfigError: If they are not an integer for each of ``count`` rows.
    """
    try:
        sizes = np.asarray(costs)
        found = f"{sizes.dtype} {sizes.shape}"
    except ValueError:  # lists of several lengths
        sizes, found = np.empty(0), f"a {type(costs).__name__} of unequal lists"
    if sizes.shape == (count,) and sizes.dtype.kind in "iu":
        most = int(sizes.max(initial=0))
        if most <= np.iinfo(np.int64).max:
            return sizes.astype(np.int64, copy=False)
        found = f"{most}"
    raise ConfigError(
        must_be(
            "policy: the result of `cost`",
            f"int64 ({count},), an integer for each row",
            found,
            "Return an array of integers, as long as those it is given",
        )
    )


def select_items(
    index: SequenceIndex,
    axis: str,
    rule: WholeSequences,
    *,
    policy: str,
    limit: str = "max_length",
    cost: Cost | None = None,
) -> Items:
    """Number the items of an index in one pass over the lengths, cached by the index.

    Args:
        index: The lengths.
        axis: The axis that is planned on.
        rule: Treatment of empty and too long sequences.
        policy: Name of the policy, for messages.
        limit: Name of the option that limits the length, for messages.
        cost: Cost function of rows; None: a row costs its length along the axis.

    Raises:
        PlanError: If a sequence is too long or empty and the rule is ``error``; it names them.
    """
    max_length = rule.max_length
    if rule.too_long == "error" and max_length is not None:
        _refuse_too_long(index, axis, max_length, f"policy {policy!r}", limit)
    if rule.empty == "error":
        _refuse_empty(index, axis, f"policy {policy!r}")
    return replace(number_items(index, axis, rule), cost=cost)


def number_items(index: SequenceIndex, axis: str, rule: ItemRule) -> Items:
    """Number the items of an index under any rule, cached by the index."""
    return index.remember(("items", axis, rule), lambda: _count_per_chunk(index, axis, rule))


def _count_per_chunk(index: SequenceIndex, axis: str, rule: ItemRule) -> Items:
    chunk_starts = range(0, len(index), SCAN_CHUNK)
    counts = np.zeros(len(chunk_starts) + 1, dtype=np.int64)
    peaks = np.zeros(len(chunk_starts), dtype=np.int64)
    bin_counts = np.diff(
        np.minimum(np.arange(-(-len(index) // _BIN) + 1) * _BIN, len(index)), prepend=0
    )
    is_changed, are_whole = False, True
    for chunk, first in enumerate(chunk_starts):
        lengths = index.run(axis, first, first + SCAN_CHUNK)
        if _is_unchanged(rule, lengths):
            counts[chunk + 1], peaks[chunk] = len(lengths), int(lengths.max())
            continue
        are_whole = False
        lengths = np.asarray(lengths, dtype=np.int64)
        items = rule.count_items(lengths)
        counts[chunk + 1], peaks[chunk] = int(items.sum()), rule.longest(lengths)
        bins = np.arange(0, len(items), _BIN)
        bin_counts[first // _BIN + 1 :][: len(bins)] = np.add.reduceat(items, bins)
        is_changed = is_changed or int(items.min()) != 1 or int(items.max()) != 1
    if not len(chunk_starts):
        index.run(axis, 0, 0)  # an unknown axis is an error on empty data too
    bin_offsets = np.cumsum(bin_counts) if is_changed else None
    return Items(index, axis, rule, np.cumsum(counts), peaks, bin_offsets, are_whole)


def count_planned(items: Items) -> tuple[int, int]:
    """Return the number of items and their timesteps, in one pass that the index remembers."""
    key = ("planned", items.axis, items.rule)
    return items.index.remember(key, lambda: (len(items), _sum_timesteps(items)))


def _sum_timesteps(items: Items) -> int:
    total = 0
    for chunk, (first, stop) in enumerate(pairwise(items.offsets.tolist())):
        base = chunk * SCAN_CHUNK
        lengths = items.index.run(items.axis, base, base + SCAN_CHUNK)
        if _is_unchanged(items.rule, lengths):
            total += int(lengths.sum(dtype=np.int64))
        else:
            spans = items.spans(first, stop)
            total += int((spans[:, 2] - spans[:, 1]).sum())
    return total


def _is_unchanged(rule: ItemRule, lengths: NDArray[Any]) -> bool:
    """Return whether a fast check shows that each sequence is one whole item."""
    if not isinstance(rule, WholeSequences) or int(lengths.min()) == 0:
        return False
    return rule.max_length is None or int(lengths.max()) <= rule.max_length


def _refuse_too_long(
    index: SequenceIndex, axis: str, max_length: int, where: str, limit: str
) -> None:
    too_long = find_sequences(
        index, axis, ("longer", max_length), lambda lengths: lengths > max_length
    )
    if not len(too_long):
        return
    if len(too_long) == 1:
        number = int(too_long[0])
        length = int(index.run(axis, number, number + 1)[0])
        description = (
            f"sequence {index.names(too_long)} has {length} timesteps, more than "
            f"`{limit}={max_length}`"
        )
    else:
        description = (
            f"{len(too_long)} sequences are longer than `{limit}={max_length}`: "
            f"{index.names(too_long)}"
        )
    raise PlanError(
        f"{where}: {description}. Raise it, set `too_long='split'`, or filter with "
        "store.where(...)."
    )


def _refuse_empty(index: SequenceIndex, axis: str, where: str) -> None:
    empty = find_sequences(index, axis, ("empty",), lambda lengths: lengths == 0)
    if len(empty):
        found = "but one has" if len(empty) == 1 else f"but {len(empty)} have"
        raise PlanError(
            f"{where}: sequences must have at least 1 timestep, {found} none: "
            f"{index.names(empty)}. Set `empty='drop'`, or filter with store.where(...)."
        )


def find_sequences(
    index: SequenceIndex,
    axis: str,
    key: object,
    predicate: Callable[[NDArray[Any]], NDArray[np.bool_]],
) -> NDArray[np.int64]:
    """Return the indices of the sequences whose lengths match, int64; cached under ``key``."""

    def scan() -> NDArray[np.int64]:
        matches = [
            np.flatnonzero(predicate(index.run(axis, first, first + SCAN_CHUNK))) + first
            for first in range(0, len(index), SCAN_CHUNK)
        ]
        return np.concatenate(matches) if matches else np.empty(0, dtype=np.int64)

    return index.remember(("found", axis, key), scan)
