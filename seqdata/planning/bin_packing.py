"""Packs many lengths into rows of one length: best fit decreasing, over the histogram.

Equal lengths are placed together, so the work grows with the number of different lengths, not of
items.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class PackedRowsLayout(NamedTuple):
    """Slots for items, row by row.

    Attributes:
        lengths: int64 (n,), timesteps of each place.
        offsets: int64 (r+1,), row -> places.
    """

    lengths: NDArray[np.int64]
    offsets: NDArray[np.int64]


class _RowContent(NamedTuple):
    """What rows hold: ``repeats`` items of ``length`` after what they held ``previous``."""

    length: int
    repeats: int
    previous: _RowContent | None


class _EqualRows(NamedTuple):
    """Rows of equal content."""

    num_rows: int
    content: _RowContent | None


@dataclass(slots=True)
class _RowBins:
    """Rows by their free room."""

    by_room: dict[int, list[_EqualRows]] = field(default_factory=dict)
    rooms: list[int] = field(default_factory=list)  # rising

    def add(self, room: int, equal_rows: _EqualRows) -> None:
        if not equal_rows.num_rows:
            return
        if room not in self.by_room:
            self.by_room[room] = []
            insort(self.rooms, room)
        self.by_room[room].append(equal_rows)

    def take_tightest(self, length: int) -> tuple[int, _EqualRows] | None:
        """Take the rows with the least room that holds ``length``."""
        i = bisect_left(self.rooms, length)
        if i == len(self.rooms):
            return None
        room = self.rooms[i]
        equal_rows = self.by_room[room].pop()
        if not self.by_room[room]:
            del self.by_room[room], self.rooms[i]
        return room, equal_rows

    def iter_rows(self) -> Iterator[_EqualRows]:
        for room in self.rooms:
            yield from self.by_room[room]


def pack_lengths(
    lengths: NDArray[np.int64], counts: NDArray[np.int64], row_length: int
) -> PackedRowsLayout:
    """Pack items into as few rows as best fit decreasing finds.

    Args:
        lengths: int64 (k,), decreasing, at most ``row_length``.
        counts: int64 (k,), how many items have each length.
        row_length: Timesteps of a row.

    Returns:
        The slots in the rows; as many of each length as there are items of it.

    Source: D. S. Johnson, "Near-optimal bin packing algorithms", MIT, 1973 (best fit decreasing).
    """
    bins = _RowBins()
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        remaining = count
        while remaining:
            candidate = bins.take_tightest(length)
            if candidate is None:
                rows = -(-remaining // (row_length // length))
                candidate = row_length, _EqualRows(rows, None)
            remaining = _place_items(bins, *candidate, length, remaining)
    return _make_layout(bins)


def _place_items(
    bins: _RowBins, room: int, equal_rows: _EqualRows, length: int, remaining: int
) -> int:
    """Fill rows with items of one length, as many as fit; return how many items are left."""
    each = room // length
    full = min(equal_rows.num_rows, remaining // each)
    bins.add(room - each * length, _EqualRows(full, _RowContent(length, each, equal_rows.content)))
    remaining -= full * each
    untouched = equal_rows.num_rows - full
    if untouched and remaining:  # fewer than `each`: one row takes them
        bins.add(
            room - remaining * length,
            _EqualRows(1, _RowContent(length, remaining, equal_rows.content)),
        )
        untouched, remaining = untouched - 1, 0
    bins.add(room, _EqualRows(untouched, equal_rows.content))
    return remaining


def _make_layout(bins: _RowBins) -> PackedRowsLayout:
    lengths: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    sizes: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    for equal_rows in bins.iter_rows():
        row_lengths = _content_lengths(equal_rows.content)
        lengths.append(np.tile(row_lengths, equal_rows.num_rows))
        sizes.append(np.full(equal_rows.num_rows, len(row_lengths), dtype=np.int64))
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.concatenate(sizes))])
    return PackedRowsLayout(np.concatenate(lengths), offsets)


def _content_lengths(content: _RowContent | None) -> NDArray[np.int64]:
    lengths = []
    while content is not None:
        lengths.append(np.full(content.repeats, content.length, dtype=np.int64))
        content = content.previous
    return np.concatenate(lengths[::-1])
