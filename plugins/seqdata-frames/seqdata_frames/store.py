"""The store of a table with a row per timestep; it reads spans as ranges of rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import ArrayColumn, DataLocation, Field, make_unknown_name_error, quote
from seqdata.errors import ConfigError
from seqdata_frames.columns import Columns, split_rows
from seqdata_frames.index import ID, MASK, FrameIndex


class FrameStore:
    """Store whose sequences are the groups of a table. Implements ``Store``.

    Args:
        location: The table, for messages.
        names: Names of its files.
        fingerprint: Digest of its files.
        version: Digest that changes whenever the files change; None: a stream.
        index: The sequences of the table.
        columns: The columns of the table, by rows.
        order: The column by which rows are ordered; None: there is none.
        folder: The local folder of the table, in which cache files may be stored; None: there is
            none.
        sorted_in: The folder of the rows that were sorted; None: they are read in place.
        reopen: Value of ``__reduce__``.
        is_copied_to_workers: Whether pickling the store copies its data.
        held: Object to keep alive with the store: the file of a stream, or copies of remote files.

    Attributes:
        location: The table.
        folder: As passed.
        sorted_in: As passed.
        version: As passed.
    """

    is_local = True

    def __init__(  # noqa: PLR0913
        self,
        location: str,
        names: Sequence[str],
        fingerprint: str,
        index: FrameIndex,
        columns: Columns,
        *,
        version: str | None,
        order: str | None,
        folder: Path | None,
        sorted_in: Path | None,
        reopen: tuple[Any, ...],
        is_copied_to_workers: bool,
        held: object = None,
    ) -> None:
        self.location, self.folder, self.sorted_in = location, folder, sorted_in
        self.version = version
        self.shards = tuple(names)
        self._source, self._index, self._columns = fingerprint, index, columns
        self._order, self._reopen, self._held = order, reopen, held
        self.is_copied_to_workers = is_copied_to_workers
        self._starts = index.step_offsets
        lengths = np.diff(self._starts)
        axes = dict.fromkeys(field.axis for field in index.fields.values())
        self._lengths_of = {axis: lengths for axis in axes if axis is not None}
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._index.fields

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each sequence, int64 (sequences,)."""
        return next(iter(self._lengths_of.values()))

    @property
    def lengths_of(self) -> Mapping[str, NDArray[np.int64]]:
        """Axis -> number of timesteps of each sequence, int64 (sequences,)."""
        return self._lengths_of

    @property
    def fingerprint(self) -> str:
        """Digest of schema, groups and files (32 hex digits), computed without reading data."""
        if self._fingerprint is None:
            info, arrays = self._index.to_arrays()
            of_fields = repr((self._source, info["fields"], info["step"], info["is_sorted"]))
            digest = hashlib.sha256(of_fields.encode())
            for name, values in arrays.items():
                digest.update(name.encode() + np.ascontiguousarray(values).tobytes())
            self._fingerprint = digest.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences.

        Raises:
            ConfigError: If an index is out of range.
        """
        checked = np.asarray(getattr(numbers, "ids", numbers), dtype=np.int64)
        self._check_numbers(checked)
        return [self._index.ids[number] for number in checked.tolist()]

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same indices, because this store is not a view."""
        return numbers

    def locate(self, number: int) -> DataLocation:
        """Return the location of a sequence, for an error; of the table if the index is invalid."""
        if not 0 <= number < len(self):
            return DataLocation(dataset=self.location)
        file = self.shards[0] if len(self.shards) == 1 else None
        return DataLocation(
            dataset=self.location, file=file, sequence=number, key=self._index.ids[number]
        )

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch; see ``protocols.Store.read``.

        Raises:
            CacheError: If sorted rows were removed from the cache.
            ConfigError: If a field, the axis or a span does not exist.
            DataError: If a row group is damaged, or a value is missing.
        """
        names = list(fields)
        spans = np.asarray(spans, dtype=np.int64)
        self._check_request(spans, names, axis)
        numbers = spans[:, 0]
        found: dict[str, Any] = {}
        own = [name for name in names if self.fields[name].axis == axis]
        whole = [name for name in names if self.fields[name].axis not in (None, axis)]
        firsts, stops = self._starts[numbers], self._starts[numbers + 1]
        if own:
            found |= self._read_steps(own, numbers, firsts + spans[:, 1], firsts + spans[:, 2])
        if whole:
            found |= self._read_steps(whole, numbers, firsts, stops)
        return {name: found[name] if name in found else self._take(name, numbers) for name in names}

    def _take(self, name: str, numbers: NDArray[np.int64]) -> Any:
        """Return the values of a field with one value per sequence."""
        values = self._index.ids if name == ID else self._index.statics[name]
        if isinstance(values, np.ndarray):
            return ArrayColumn(values.dtype, (), list(values[numbers][:, None]))
        return [values[number] for number in numbers.tolist()]

    def _read_steps(
        self,
        names: list[str],
        numbers: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> dict[str, ArrayColumn]:
        """Return the columns of ranges of timesteps, which count over all sequences."""
        grid = self._index.grid
        if grid is None:
            pieces = self._columns.gather(names, begins, ends)
        else:
            pieces = self._read_grid(names, numbers, begins, ends)
        return {
            name: ArrayColumn(np.dtype(self.fields[name].dtype), (), pieces[name]) for name in names
        }

    def _read_grid(
        self,
        names: list[str],
        numbers: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> dict[str, list[NDArray[Any]]]:
        grid = self._index.grid
        if grid is None:
            return {}
        lengths = ends - begins
        first_rows, stop_rows = grid.find_rows(begins), grid.find_rows(ends)
        stored = [name for name in names if name not in (MASK, self._order)]
        rows = self._columns.gather(stored, first_rows, stop_rows)
        counts = stop_rows - first_rows
        flat_rows = np.arange(int(counts.sum())) + np.repeat(
            first_rows - (np.cumsum(counts) - counts), counts
        )
        shift = np.cumsum(lengths) - lengths - begins
        places = grid.find_steps(flat_rows) + np.repeat(shift, counts)
        found: dict[str, list[NDArray[Any]]] = {}
        for name in names:
            dtype = np.dtype(self.fields[name].dtype)
            if name == MASK:
                values = np.zeros(int(lengths.sum()), dtype=bool)
                values[places] = True
            elif name == self._order:
                steps = np.arange(int(lengths.sum())) - np.repeat(shift, lengths)
                steps -= np.repeat(grid.offsets[numbers], lengths)
                firsts = np.repeat(grid.first_keys[numbers], lengths)
                values = (firsts + steps * grid.step).astype(dtype)
            else:
                is_date = np.issubdtype(dtype, np.integer)  # others are floats on a grid
                gap = np.iinfo(dtype).min if is_date else np.nan  # NaT
                values = np.full(int(lengths.sum()), gap, dtype=dtype)
                if len(places):
                    values[places] = np.concatenate(rows[name])
            found[name] = split_rows(values, lengths)
        return found

    def _check_request(self, spans: NDArray[np.int64], names: Sequence[str], axis: str) -> None:
        if spans.ndim != 2 or spans.shape[1] != 3:
            raise ConfigError(
                f"{self.location}: `spans` must have shape (n, 3), with columns sequence, start "
                f"and stop, but has shape {spans.shape}"
            )
        if axis not in self._lengths_of:
            raise make_unknown_name_error(self.location, "axis", axis, self._lengths_of)
        for name in names:
            if name not in self.fields:
                raise make_unknown_name_error(self.location, "field", name, self.fields)
        self._check_numbers(spans[:, 0])
        lengths = self._lengths_of[axis][spans[:, 0]]
        inside = (spans[:, 1] >= 0) & (spans[:, 1] <= spans[:, 2]) & (spans[:, 2] <= lengths)
        if not inside.all():
            number, start, stop = spans[int(np.argmin(inside))].tolist()
            raise ConfigError(
                f"{self.location}: sequence {number} ({quote(self._index.ids[number])}): timesteps "
                f"must be in 0..{self._lengths_of[axis][number]}, but {start}..{stop} were "
                "requested. Use a plan that was made for this data."
            )

    def _check_numbers(self, numbers: NDArray[np.int64]) -> None:
        outside = (numbers < 0) | (numbers >= len(self))
        if outside.any():
            raise ConfigError(
                f"{self.location}: the index of a sequence must be in [0, {len(self)}), but is "
                f"{int(numbers[outside][0])}. Use a plan that was made for this data."
            )
