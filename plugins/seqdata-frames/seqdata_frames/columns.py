"""Columns of numbers of a table, read by ranges of rows from decoded units or files of values.

A unit is a row group of a file, or a batch of a table in memory. It is decoded when rows of it are
requested, and kept in a cache of bounded size. A unit that is decoded a second time is written to
disk as plain values, from which ranges are read without decoding. Processes share files only: a
forked child has a copy of the cache.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import DataLocation
from seqdata.errors import CorruptShardError, warn

Decode = Callable[[int, list[str]], Mapping[str, NDArray[Any]]]
"""``decode(unit, names)`` returns the values of columns of a unit, (rows,) each."""
_STORED = 1 << 32  # a mark: this, and the checksum of the unit below


class Columns(Protocol):
    """Columns of a table that are read by ranges of rows."""

    def gather(
        self, names: list[str], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> dict[str, list[NDArray[Any]]]:
        """Return the values of ranges of rows.

        Args:
            names: Columns.
            begins: int64 (ranges,), the first row of each range.
            ends: int64 (ranges,), one past the last row of each range.

        Returns:
            Column -> an array (rows,) for each range.

        Raises:
            CacheError: If sorted rows were removed from the cache.
            DataError: If a row group or a cache file is damaged.
        """
        ...


class ColumnFile:
    """A column in a file of plain values, which may have only some of its units.

    Args:
        path: The file; a file with the suffix ``.units`` next to it marks the units that it has.
        dtype: Dtype of a value.
        unit_starts: int64 (units+1,), unit -> its first row.
        verify: Whether the checksum of a unit is compared before its first use in this process.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], unit_starts: NDArray[np.int64], *, verify: bool
    ) -> None:
        self._path, self._dtype, self._starts = path, dtype, unit_starts
        self._verify = verify
        self._files: tuple[int, int] | None = None
        self._ready = np.zeros(len(unit_starts) - 1, dtype=bool)

    def has(self, units: NDArray[np.int64]) -> bool:
        """Return whether all of these units are stored; another process may have stored them.

        Raises:
            CorruptShardError: If the checksum of a unit differs, with ``verify``.
        """
        for unit in units[~self._ready[units]].tolist():
            mark = self._read_mark(unit)
            if not mark:
                return False
            if self._verify and zlib.crc32(self.read_unit(unit).data) != mark ^ _STORED:
                raise DataLocation(dataset=str(self._path.parent), file=self._path.name).make_error(
                    CorruptShardError,
                    f"rows {self._starts[unit]} to {self._starts[unit + 1] - 1} must have the "
                    "checksum that was stored with them, but have another. Remove the folder; it "
                    "will be made again from the table",
                )
            self._ready[unit] = True
        return True

    def is_ready(self, unit: int) -> bool:
        """Return whether an earlier call of ``has`` found a unit stored."""
        return bool(self._ready[unit])

    def read_unit(self, unit: int) -> NDArray[Any]:
        """Return the values of all rows of a unit, (rows,)."""
        first, stop = self._starts[unit : unit + 2].tolist()
        values = np.empty(stop - first, dtype=self._dtype)
        self.read(first, values)
        return values

    def read(self, first: int, out: NDArray[Any]) -> None:
        """Fill an array with the rows from ``first`` on.

        Raises:
            CorruptShardError: If the file ends before the last of these rows.
        """
        view, at = view_bytes(out), first * self._dtype.itemsize
        while len(view):
            count = os.preadv(self._open()[0], [view], at)
            if not count:
                raise DataLocation(dataset=str(self._path.parent), file=self._path.name).make_error(
                    CorruptShardError,
                    f"must have row {at // self._dtype.itemsize}, but ends before it. Remove the "
                    "folder; it will be made again from the table",
                )
            view, at = view[count:], at + count

    def write(self, unit: int, values: NDArray[Any]) -> None:
        """Store a unit: first its values, then the mark that it is stored.

        Raises:
            OSError: If it cannot be written.
        """
        content = np.ascontiguousarray(values, dtype=self._dtype)
        mark = np.array([zlib.crc32(content.data) | _STORED], dtype=np.uint64)
        _write(self._path, int(self._starts[unit]), content)
        _write(self._path.with_suffix(".units"), unit, mark, is_flushed=False)  # may get lost

    def mark_all(self) -> None:
        """Mark all units as stored, with their checksums; their values are in the file already."""
        units = range(len(self._starts) - 1)
        marks = [zlib.crc32(self.read_unit(unit).data) | _STORED for unit in units]
        _write(self._path.with_suffix(".units"), 0, np.array(marks, dtype=np.uint64))

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._files or ():
            os.close(descriptor)
        self._files = None

    def __del__(self) -> None:
        self.close()

    def _read_mark(self, unit: int) -> int:
        if self._files is None and not self._path.with_suffix(".units").exists():
            return 0
        raw = os.pread(self._open()[1], 8, 8 * unit)
        return int.from_bytes(raw, "little") if len(raw) == 8 else 0

    def _open(self) -> tuple[int, int]:
        if self._files is None:
            marks = os.open(self._path.with_suffix(".units"), os.O_RDONLY | os.O_CREAT, 0o644)
            self._files = (os.open(self._path, os.O_RDONLY), marks)
        return self._files


def _write(path: Path, first: int, values: NDArray[Any], *, is_flushed: bool = True) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        write_rows(descriptor, first, values)
        if is_flushed:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def view_bytes(values: NDArray[Any]) -> memoryview:
    """Return the bytes of a contiguous array, which may be empty."""
    return values.data.cast("B") if values.size else memoryview(b"")


def write_rows(descriptor: int, first: int, values: NDArray[Any]) -> None:
    """Write rows of a column to its file, from row ``first`` on."""
    view, at = view_bytes(np.ascontiguousarray(values)), first * values.dtype.itemsize
    while len(view):
        count = os.pwrite(descriptor, view, at)
        view, at = view[count:], at + count


class UnitColumns:
    """Columns that are decoded by units. Implements ``Columns``.

    Args:
        decode: Decodes columns of a unit.
        dtypes: Column -> dtype of its values.
        unit_rows: int64 (units,), number of rows of each unit.
        cache_bytes: Maximum size of the decoded units that this process keeps.
        folder: The folder for files of units that are decoded again; None: they are not stored.
        verify: Whether checksums of stored units are compared.
    """

    def __init__(
        self,
        decode: Decode,
        dtypes: Mapping[str, np.dtype[Any]],
        unit_rows: NDArray[np.int64],
        cache_bytes: int,
        folder: Path | None,
        *,
        verify: bool = False,
    ) -> None:
        self._decode, self._dtypes, self._cache_bytes = decode, dtypes, cache_bytes
        self._starts = np.concatenate(([0], np.cumsum(unit_rows)))
        self._units: dict[tuple[str, int], NDArray[Any]] = {}  # the most recently used is last
        self._once: set[tuple[str, int]] = set()
        self._files = {}
        if folder is not None:
            self._files = {
                name: ColumnFile(folder / f"{number}.column", dtype, self._starts, verify=verify)
                for number, (name, dtype) in enumerate(dtypes.items())
            }
        self.decoded = 0

    def gather(
        self, names: list[str], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> dict[str, list[NDArray[Any]]]:
        """Return the values of ranges of rows; see ``Columns``."""
        found: dict[str, list[NDArray[Any]]] = {}
        first = np.searchsorted(self._starts, begins, side="right") - 1
        last = np.searchsorted(self._starts, np.maximum(ends - 1, begins), side="right") - 1
        counts = np.where(ends > begins, last - first + 1, 0)
        at = np.repeat(np.arange(len(begins)), counts)
        inside = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        units = first[at] + inside
        needed = np.unique(units)
        to_decode = []
        for name in names:
            file = self._files.get(name)
            found[name] = split_rows(np.empty(int((ends - begins).sum()), self._dtypes[name]),
                                     ends - begins)  # fmt: skip
            if file is not None and file.has(needed):
                for begin, piece in zip(begins.tolist(), found[name], strict=True):
                    file.read(begin, piece)
            else:
                to_decode.append(name)
        if to_decode:
            pieces = at, units, np.maximum(begins[at], self._starts[units])
            stops = np.minimum(ends[at], self._starts[units + 1])
            decoded = self.decoded
            self._fill(to_decode, found, begins, (*pieces, stops))
            if self.decoded > decoded:
                release_memory()
        else:
            self._drop_stored()
        return found

    def _drop_stored(self) -> None:
        """Drop decoded units that are stored in files, from which ranges are read."""
        for name, unit in list(self._units):
            if name in self._files and self._files[name].is_ready(unit):
                del self._units[name, unit]

    def _fill(
        self,
        names: list[str],
        found: Mapping[str, list[NDArray[Any]]],
        begins: NDArray[np.int64],
        pieces: tuple[NDArray[np.int64], ...],
    ) -> None:
        """Copy rows from units into the arrays of ``found``, decoding one unit at a time."""
        at, units, starts, stops = pieces
        order = np.argsort(units, kind="stable")
        bounds = np.flatnonzero(np.diff(units[order], prepend=-1))
        for first, stop in itertools.pairwise([*bounds.tolist(), len(order)]):
            unit = int(units[order[first]])
            values = self._get(unit, names)
            base = int(self._starts[unit])
            for piece in order[first:stop].tolist():
                number, start, end = int(at[piece]), int(starts[piece]), int(stops[piece])
                target = start - int(begins[number])
                for name in names:
                    out = found[name][number]
                    out[target : target + end - start] = values[name][start - base : end - base]

    def _get(self, unit: int, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        values: dict[str, NDArray[Any]] = {}
        missing = []
        for name in names:
            kept = self._units.pop((name, unit), None)
            file = self._files.get(name)
            if kept is None and file is not None and file.has(np.array([unit])):
                kept = file.read_unit(unit)
            if kept is None:
                missing.append(name)
            else:
                values[name] = self._units[name, unit] = kept
        if missing:
            decoded = self._decode(unit, missing)
            self.decoded += len(missing)
            for name in missing:
                values[name] = decoded[name]
                if not self._store_again(name, unit, decoded[name]):
                    self._units[name, unit] = decoded[name]
        self._drop()
        return values

    def _store_again(self, name: str, unit: int, values: NDArray[Any]) -> bool:
        """Write a unit to its file if it was decoded before; return whether it was written."""
        if (name, unit) in self._once and name in self._files:
            try:
                self._files[name].write(unit, values)
                return True
            except OSError as error:
                self._files = {}
                warn(
                    f"frames: decoded row groups cannot be stored on disk ({error}), so each is "
                    "decoded whenever it is needed. Free space, or pass Frames(cache_dir=)",
                )
        self._once.add((name, unit))
        return False

    def _drop(self) -> None:
        kept = list(self._units.items())
        size = sum(values.nbytes for _, values in kept)
        for key, values in kept[:-1]:
            if size <= self._cache_bytes:
                break
            size -= values.nbytes
            self._units.pop(key, None)


def release_memory() -> None:
    """Release unused memory of Arrow to the operating system."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def split_rows(values: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return consecutive parts of an array, one for each length."""
    return [
        values[start:stop] for start, stop in itertools.pairwise([0, *np.cumsum(lengths).tolist()])
    ]
