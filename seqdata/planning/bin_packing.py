"""Pack many lengths into rows of one length: best fit decreasing, over the histogram.

Equal lengths are placed together, so the work grows with the number of different lengths and not of
items. Place in the flow: used by policy ``packed``. Reads: a histogram. Makes: rows as lists of
lengths.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Slots(NamedTuple):
    """Places for items, row by row.

    Attributes:
        lengths: int64 (n,), timesteps of each place.
        rows: int64 (r+1,), row -> places.
    """

    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]


class _Content(NamedTuple):
    """What rows hold: ``times`` items of ``length`` after what they held ``before``."""

    length: int
    times: int
    before: _Content | None


class _Alike(NamedTuple):
    """Rows with the same content."""

    rows: int
    content: _Content | None


@dataclass(slots=True)
class _Bins:
    """Rows by the room that is left in them."""

    by_room: dict[int, list[_Alike]] = field(default_factory=dict)
    rooms: list[int] = field(default_factory=list)  # rising

    def add(self, room: int, alike: _Alike) -> None:
        if not alike.rows:
            return
        if room not in self.by_room:
            self.by_room[room] = []
            insort(self.rooms, room)
        self.by_room[room].append(alike)

    def take_tightest(self, length: int) -> tuple[int, _Alike] | None:
        """Take rows whose room is the least that holds ``length``."""
        place = bisect_left(self.rooms, length)
        if place == len(self.rooms):
            return None
        room = self.rooms[place]
        alike = self.by_room[room].pop()
        if not self.by_room[room]:
            del self.by_room[room], self.rooms[place]
        return room, alike

    def all(self) -> Iterator[_Alike]:
        for room in self.rooms:
            yield from self.by_room[room]


def pack(lengths: NDArray[np.int64], counts: NDArray[np.int64], row_length: int) -> Slots:
    """Pack items into as few rows as best fit decreasing finds.

    Args:
        lengths: int64 (k,), falling, at most ``row_length``.
        counts: int64 (k,), how many items have each length.
        row_length: Timesteps of a row.

    Returns:
        The places in the rows; as many of each length as there are items of it.

    Source: D. S. Johnson, "Near-optimal bin packing algorithms", MIT, 1973 (best fit decreasing).
    """
    bins = _Bins()
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        left = count
        while left:
            found = bins.take_tightest(length)
            if found is None:
                rows = -(-left // (row_length // length))
                found = row_length, _Alike(rows, None)
            left = _place(bins, *found, length, left)
    return _slots(bins)


def _place(bins: _Bins, room: int, alike: _Alike, length: int, left: int) -> int:
    """Fill rows with items of one length, as many as fit; give how many items are left."""
    each = room // length
    full = min(alike.rows, left // each)
    bins.add(room - each * length, _Alike(full, _Content(length, each, alike.content)))
    left -= full * each
    untouched = alike.rows - full
    if untouched and left:  # fewer than `each`: one row takes them
        bins.add(room - left * length, _Alike(1, _Content(length, left, alike.content)))
        untouched, left = untouched - 1, 0
    bins.add(room, _Alike(untouched, alike.content))
    return left


def _slots(bins: _Bins) -> Slots:
    lengths: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    sizes: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    for alike in bins.all():
        one = _lengths_of(alike.content)
        lengths.append(np.tile(one, alike.rows))
        sizes.append(np.full(alike.rows, len(one), dtype=np.int64))
    rows = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.concatenate(sizes))])
    return Slots(np.concatenate(lengths), rows)


def _lengths_of(content: _Content | None) -> NDArray[np.int64]:
    parts = []
    while content is not None:
        parts.append(np.full(content.times, content.length, dtype=np.int64))
        content = content.before
    return np.concatenate(parts[::-1])
