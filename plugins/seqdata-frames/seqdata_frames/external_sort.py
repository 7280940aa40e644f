"""Rows sorted by group and key in bounded memory: a distribution sort.

The scan has counted the rows of each group, so the position of each group is known. One pass over
the table writes every row into the range of its bucket of groups; then each bucket is read, sorted
and written back. Memory holds one unit or one bucket (a bucket has at least one whole group). Rows
of equal keys stay in the order of the table.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.backends.files import RowTables
from seqdata_frames.columns import Decode, view_bytes, write_rows
from seqdata_frames.scan import Groups, encoded_column, make_steps, order_keys
from seqdata_frames.steps import RowSteps

CODE, KEY = ":code", ":key"


class Rows(Protocol):
    """A column whose rows can be written and read at any position."""

    def put(self, first: int, values: NDArray[Any]) -> None:
        """Write rows from ``first`` on."""
        ...

    def get(self, first: int, stop: int) -> NDArray[Any]:
        """Return rows, (stop - first,)."""
        ...

    def close(self) -> None:
        """Flush what was written."""
        ...


class MemoryRows:
    """Rows in memory."""

    def __init__(self, dtype: np.dtype[Any], count: int) -> None:
        self.values = np.empty(count, dtype=dtype)

    def put(self, first: int, values: NDArray[Any]) -> None:
        """Write rows; see ``Rows``."""
        self.values[first : first + len(values)] = values

    def get(self, first: int, stop: int) -> NDArray[Any]:
        """Return rows; see ``Rows``."""
        return self.values[first:stop]

    def close(self) -> None:
        """Do nothing; rows in memory need no flush."""


class FileRows:
    """Rows in a file of plain values."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)

    def put(self, first: int, values: NDArray[Any]) -> None:
        """Write rows; see ``Rows``."""
        write_rows(self._file, first, np.ascontiguousarray(values, dtype=self._dtype))

    def get(self, first: int, stop: int) -> NDArray[Any]:
        """Return rows; see ``Rows``."""
        size, values = self._dtype.itemsize, np.empty(stop - first, dtype=self._dtype)
        view, at = view_bytes(values), first * size
        while len(view):
            count = os.preadv(self._file, [view], at)
            if not count:
                raise EOFError(f"row {at // size} is missing")
            view, at = view[count:], at + count
        return values

    def close(self) -> None:
        """Flush what was written, and close the file."""
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


@dataclass(frozen=True, slots=True, eq=False)
class Sorting:
    """A table to sort, and the options of the sort.

    Attributes:
        tables: The table.
        group: The column of groups.
        order: The column of keys.
        freq: The step of a regular grid; None: no grid.
        decode: Decodes columns of a unit.
        dtypes: Column -> dtype of its values.
        make_rows: ``make_rows(name, dtype)`` returns the ``Rows`` of a column. It is also called
            for the temporary columns ``:code`` and ``:key``.
        bucket_bytes: Bytes of rows that are sorted at once.
    """

    tables: RowTables
    group: str
    order: str
    freq: str | int | None
    decode: Decode
    dtypes: Mapping[str, np.dtype[Any]]
    make_rows: Callable[[str, np.dtype[Any]], Rows]
    bucket_bytes: int


def sort_table(
    sorting: Sorting, counts: NDArray[np.int64], on_progress: Callable[[int], None] | None = None
) -> tuple[RowSteps, dict[str, Rows]]:
    """Sort the rows of a table by group, in order of appearance, and by key.

    Args:
        sorting: The table, and the options.
        counts: int64 (groups,), number of rows of each group.
        on_progress: Called with the number of rows read so far, plus the number of rows sorted so
            far.

    Returns:
        The steps of the keys in their new order, and the sorted columns.
    """
    tables, steps = sorting.tables, make_steps(sorting.tables, sorting.order, sorting.freq)
    places = np.concatenate(([0], np.cumsum(counts)))
    row_bytes = 32 + sum(dtype.itemsize for dtype in sorting.dtypes.values())
    firsts = _cut_buckets(places, max(1, sorting.bucket_bytes // row_bytes))
    bucket_of = np.searchsorted(firsts, np.arange(len(counts)), side="right") - 1
    cursors = places[firsts].copy()
    rows = {name: sorting.make_rows(name, dtype) for name, dtype in sorting.dtypes.items()}
    helpers: dict[str, Rows] = {}
    groups, first_row = Groups(), 0
    for unit in np.flatnonzero(tables.unit_rows).tolist():
        table = tables.read(unit, [sorting.group, sorting.order], [sorting.group])
        codes = groups.add(encoded_column(tables, table, sorting.group))
        keys = order_keys(tables, steps, tables.column(table, sorting.order), first_row)
        if not helpers:
            made = {CODE: codes.dtype, KEY: keys.dtype}
            helpers = {name: sorting.make_rows(name, dtype) for name, dtype in made.items()}
        values = {**sorting.decode(unit, list(rows)), CODE: codes, KEY: keys}
        _distribute(bucket_of[codes], values, {**rows, **helpers}, cursors)
        first_row += len(codes)
        if on_progress is not None:
            on_progress(first_row)
    for first, stop in itertools.pairwise([*places[firsts].tolist(), int(places[-1])]):
        codes, keys = helpers[CODE].get(first, stop), helpers[KEY].get(first, stop)
        in_order = np.lexsort((keys, codes))  # stable
        for each in rows.values():
            each.put(first, each.get(first, stop)[in_order])
        steps.add(codes[in_order], keys[in_order])
        if on_progress is not None:
            on_progress(first_row + stop)
    for each in (*rows.values(), *helpers.values()):
        each.close()
    return steps, rows


def _distribute(
    buckets: NDArray[np.int64],
    values: Mapping[str, NDArray[Any]],
    rows: Mapping[str, Rows],
    cursors: NDArray[np.int64],
) -> None:
    """Append rows to their buckets, and advance the cursors of these."""
    by_bucket = np.argsort(buckets, kind="stable")
    counts = np.bincount(buckets, minlength=len(cursors))
    starts = np.cumsum(counts) - counts
    for name, each in rows.items():
        ordered = values[name][by_bucket]
        for bucket in np.flatnonzero(counts).tolist():
            start = int(starts[bucket])
            each.put(int(cursors[bucket]), ordered[start : start + int(counts[bucket])])
    cursors += counts


def _cut_buckets(places: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the first group of each bucket, int64; a bucket has one group or ``most`` rows."""
    firsts, start = [], 0
    while start < len(places) - 1:
        firsts.append(start)
        stop = int(np.searchsorted(places, places[start] + most, side="right")) - 1
        start = max(stop, start + 1)
    return np.array(firsts, dtype=np.int64)
