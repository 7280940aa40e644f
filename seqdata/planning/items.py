"""Items: what a policy batches, numbered without gaps and without a list of them.

An item is a sequence, or a part of one: of a sequence that is too long and split, of one that is
truncated. Items are found by prefix sums over runs of sequences, so virtual ones (10^9 of them)
cost no memory. Place in the flow: index -> items -> blocks. Reads: runs of lengths. Makes: spans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, PlanError
from seqdata.index import RUN, SequenceIndex
from seqdata.planning.randomness import Draw

TooLong = Literal["error", "split", "truncate", "drop"]
Empty = Literal["drop", "error"]
Keep = Literal["first", "last"]


class ItemRule(Protocol):
    """How sequences become items, by length alone. Hashable: counts are remembered under it."""

    def counts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the number of items of each sequence, int64 (n,)."""
        ...

    def longest(self, lengths: NDArray[np.int64]) -> int:
        """Give the timesteps of the longest item of these sequences, 0 for none."""
        ...

    def bounds(
        self, pieces: Pieces, draw: Draw | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give start and stop of each piece, int64 (n,); where they are random, of ``draw``."""
        ...


class Pieces(NamedTuple):
    """Items by sequence.

    Attributes:
        lengths: int64 (n,), of the sequences.
        parts: int64 (n,), which part of its sequence each is.
        drawn_for: Returns what randomness of each is keyed by, as ``SequenceIndex.drawn_for`` does.
    """

    lengths: NDArray[np.int64]
    parts: NDArray[np.int64]
    drawn_for: Callable[[], tuple[NDArray[np.int64], NDArray[np.int64]]]


@dataclass(frozen=True, slots=True)
class WholeSequences:
    """The common options of the policies: what happens to the empty and the too long.

    Args:
        max_length: Most timesteps of an item; None: no limit.
        too_long: ``error``, ``split`` into spans of at most ``max_length``, ``truncate`` or
            ``drop``.
        empty: What happens to sequences of length 0: ``drop`` or ``error``.
        keep: Which timesteps of a truncated sequence remain: the ``first`` or the ``last``.

    Raises:
        ConfigError: If an option is none of these.
    """

    max_length: int | None = None
    too_long: TooLong = "error"
    empty: Empty = "drop"
    keep: Keep = "first"

    def __post_init__(self) -> None:
        if self.too_long not in ("error", "split", "truncate", "drop"):
            raise ConfigError(
                f"policy: `too_long` is {self.too_long!r}, must be 'error', 'split', 'truncate' or "
                "'drop'; pass one of them"
            )
        if self.empty not in ("drop", "error"):
            raise ConfigError(f"policy: `empty` is {self.empty!r}, must be 'drop' or 'error'")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(
                f"policy: `max_length` is {self.max_length!r}, must be at least 1 or None"
            )
        if self.keep not in ("first", "last"):
            raise ConfigError(f"policy: `keep` must be 'first' or 'last', but is {self.keep!r}.")
        if self.keep == "last" and self.too_long != "truncate":
            raise ConfigError(
                f"policy: `keep`='last' needs `too_long`='truncate', but `too_long` is "
                f"{self.too_long!r}. Pass too_long='truncate', or leave `keep` out."
            )

    def counts(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the number of items of each sequence, int64 (n,)."""
        if self.max_length is None or self.too_long == "truncate":
            return (lengths > 0).astype(np.int64)
        if self.too_long == "split":
            return -(-lengths // self.max_length)
        return ((lengths > 0) & (lengths <= self.max_length)).astype(np.int64)

    def longest(self, lengths: NDArray[np.int64]) -> int:
        """Give the timesteps of the longest item of these sequences, 0 for none."""
        if self.max_length is None:
            return int(lengths.max(initial=0))
        if self.too_long == "drop":
            return int(lengths.max(initial=0, where=lengths <= self.max_length))
        return min(int(lengths.max(initial=0)), self.max_length)

    def bounds(
        self, pieces: Pieces, draw: Draw | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give start and stop of each piece, int64 (n,)."""
        del draw  # nothing here is random
        if self.max_length is None:
            return np.zeros_like(pieces.lengths), pieces.lengths
        if self.keep == "last":
            return np.maximum(pieces.lengths - self.max_length, 0), pieces.lengths
        starts = pieces.parts * self.max_length
        return starts, np.minimum(starts + self.max_length, pieces.lengths)


Cost = Callable[[Mapping[str, NDArray[np.int64]]], NDArray[np.int64]]
"""``cost(lengths_of) -> sizes``: axis -> int64 (n,) lengths of n items; gives int64 (n,)."""


@dataclass(frozen=True, eq=False, slots=True)
class Items:
    """The items of an index under a rule.

    Attributes:
        cost: What a row costs, where that is not its length along the planned axis.
        starts: int64 (runs+1,), number of the first item of each run of ``RUN`` sequences.
        peaks: int64 (runs,), timesteps of the longest item of each run.
    """

    index: SequenceIndex
    axis: str
    rule: ItemRule
    starts: NDArray[np.int64]
    peaks: NDArray[np.int64]
    cost: Cost | None = None

    def __len__(self) -> int:
        return int(self.starts[-1])

    def spans(self, first: int, stop: int, draw: Draw | None = None) -> NDArray[np.int64]:
        """Give the spans of items ``first:stop``, int64 (n, 3): sequence, start, stop.

        Where a rule's items lie at random, they are those of ``draw``.
        """
        stop = min(stop, len(self))
        low = int(np.searchsorted(self.starts, first, side="right")) - 1
        parts = []
        while first < stop:
            upto = min(stop, int(self.starts[low + 1]))
            if upto > first:
                parts.append(self._of_run(low, first - int(self.starts[low]), upto - first, draw))
                first = upto
            low += 1
        return np.concatenate(parts) if parts else np.empty((0, 3), dtype=np.int64)

    def sizes(self, spans: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give what each of these items costs as a row, int64 (n,): its timesteps, or ``cost``."""
        lengths = spans[:, 2] - spans[:, 1]
        if self.cost is None or not len(spans):
            return lengths
        first, stop = int(spans[0, 0]), int(spans[-1, 0]) + 1  # items lie in the data's order
        lengths_of = {self.axis: lengths}
        for axis in self.index.lengths_of:
            if axis != self.axis:  # other axes come whole
                whole = np.asarray(self.index.run(axis, first, stop), dtype=np.int64)
                lengths_of[axis] = whole[spans[:, 0] - first]
        return self.cost(lengths_of)

    def peak(self, first: int, stop: int) -> int:
        """Give an upper bound of the timesteps of items ``first:stop``, exact at runs' edges."""
        low = int(np.searchsorted(self.starts, first, side="right")) - 1
        high = int(np.searchsorted(self.starts, stop, side="left"))
        return int(self.peaks[low:high].max(initial=0))

    def _of_run(self, run: int, skip: int, count: int, draw: Draw | None) -> NDArray[np.int64]:
        base = run * RUN
        lengths = np.asarray(self.index.run(self.axis, base, base + RUN), dtype=np.int64)
        counts = self.rule.counts(lengths)
        ends = np.cumsum(counts)
        if int(ends[-1]) == len(lengths) and int(counts.max()) == 1:  # one item per sequence
            inside = np.arange(skip, skip + count)
            parts = np.zeros(count, dtype=np.int64)
        else:
            wanted = np.arange(skip, skip + count)
            inside = np.searchsorted(ends, wanted, side="right")
            parts = wanted - (ends - counts)[inside]
        spans = np.empty((count, 3), dtype=np.int64)
        spans[:, 0] = base + inside
        drawn_for = partial(self.index.drawn_for, spans[:, 0])
        pieces = Pieces(lengths[inside], parts, drawn_for)
        spans[:, 1], spans[:, 2] = self.rule.bounds(pieces, draw)
        return spans


def select(
    index: SequenceIndex,
    axis: str,
    rule: WholeSequences,
    *,
    policy: str,
    limit: str = "max_length",
    cost: Cost | None = None,
) -> Items:
    """Number the items of an index: one pass over the lengths, remembered by the index.

    Args:
        index: The lengths.
        axis: The axis that is planned on.
        rule: What happens to the empty and the too long.
        policy: Name of the policy, for messages.
        limit: Name of the option that limits the length, for messages.
        cost: What a row costs; None: its length along the axis.

    Raises:
        PlanError: If a sequence is too long or empty and the rule says ``error``; it names them.
    """
    most = rule.max_length
    if rule.too_long == "error" and most is not None:
        _refuse_too_long(index, axis, most, f"policy {policy!r}", limit)
    if rule.empty == "error":
        _refuse_empty(index, axis, f"policy {policy!r}")
    return replace(number_items(index, axis, rule), cost=cost)


def number_items(index: SequenceIndex, axis: str, rule: ItemRule) -> Items:
    """Number the items of an index under any rule, remembered by the index."""
    return index.remember(("items", axis, rule), lambda: _number(index, axis, rule))


def _number(index: SequenceIndex, axis: str, rule: ItemRule) -> Items:
    runs = range(0, len(index), RUN)
    starts = np.zeros(len(runs) + 1, dtype=np.int64)
    peaks = np.zeros(len(runs), dtype=np.int64)
    for run, first in enumerate(runs):
        lengths = index.run(axis, first, first + RUN)
        if _untouched(rule, lengths):
            starts[run + 1], peaks[run] = len(lengths), int(lengths.max())
            continue
        lengths = np.asarray(lengths, dtype=np.int64)
        starts[run + 1], peaks[run] = int(rule.counts(lengths).sum()), rule.longest(lengths)
    if not len(runs):
        index.run(axis, 0, 0)  # an unknown axis is an error on empty data too
    return Items(index, axis, rule, np.cumsum(starts), peaks)


def _untouched(rule: ItemRule, lengths: NDArray[Any]) -> bool:
    """Say cheaply whether each of these sequences is one whole item."""
    if not isinstance(rule, WholeSequences) or int(lengths.min()) == 0:
        return False
    return rule.max_length is None or int(lengths.max()) <= rule.max_length


def _refuse_too_long(index: SequenceIndex, axis: str, most: int, where: str, limit: str) -> None:
    found = find(index, axis, ("longer", most), lambda lengths: lengths > most)
    if not len(found):
        return
    if len(found) == 1:
        number = int(found[0])
        length = int(index.run(axis, number, number + 1)[0])
        what = f"sequence {index.names(found)} has {length} timesteps, more than `{limit}`={most}"
    else:
        what = f"{len(found)} sequences are longer than `{limit}`={most}: {index.names(found)}"
    raise PlanError(f"{where}: {what}; raise it, set `too_long`='split', or filter the index")


def _refuse_empty(index: SequenceIndex, axis: str, where: str) -> None:
    found = find(index, axis, ("empty",), lambda lengths: lengths == 0)
    if len(found):
        noun = "sequence" if len(found) == 1 else f"{len(found)} sequences:"
        raise PlanError(
            f"{where}: {noun} {index.names(found)} of length 0, must be at least 1; set "
            "`empty`='drop', or filter the index"
        )


def find(
    index: SequenceIndex,
    axis: str,
    key: object,
    wanted: Callable[[NDArray[Any]], NDArray[np.bool_]],
) -> NDArray[np.int64]:
    """Give the numbers of the sequences of wanted lengths, int64; remembered under ``key``."""

    def look() -> NDArray[np.int64]:
        parts = [
            np.flatnonzero(wanted(index.run(axis, first, first + RUN))) + first
            for first in range(0, len(index), RUN)
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    return index.remember(("found", axis, key), look)
