"""Opening of a table: its cache files are read, or it is scanned and sorted.

It reads the columns that group and order rows, and makes the index and the reader of a store.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import Field, make_unknown_name_error
from seqdata.backends.files import RowTables
from seqdata.errors import CacheError, ConfigError, warn
from seqdata.logical_types import Categories
from seqdata_frames.columns import ColumnFile, Decode, UnitColumns, release_memory
from seqdata_frames.external_sort import CODE, KEY, FileRows, MemoryRows, Rows, Sorting, sort_table
from seqdata_frames.grid import Grid
from seqdata_frames.index import ID, MASK, FrameIndex
from seqdata_frames.kept import Kept, load_arrays, save_arrays
from seqdata_frames.progress import say, show_bar
from seqdata_frames.scan import AUTO, Scan, Wanted, encoded_column, look_up, scan_table
from seqdata_frames.steps import RowSteps

_KEEP_ROWS = 1_000_000  # tables of fewer rows are looked through at each opening
_TEXTS = ("str", "bytes")
Axes = Mapping[str, str | None]
Missing = Literal["error", "nan", "drop"] | float


@dataclass(frozen=True, slots=True)
class Request:
    """The options with which a table is opened; see ``Frames``.

    Attributes:
        group: The column whose equal values make a sequence.
        order: The column by which the rows of a group are sorted; None: they are in order.
        missing: The rule for missing values, as in ``open_store``.
        axes: Field -> axis; None: one value per sequence.
        static: ``auto``, or columns with one value per sequence.
        freq: The step of a regular grid.
        cache_bytes: Maximum size of decoded row groups.
        sort_bytes: Memory of a sort.
        cache_dir: Folder of the cache files.
        progress: Whether to show a bar.
        verify: Whether checksums of cache files are compared.
    """

    group: str
    order: str | None
    missing: Missing | None
    axes: Axes
    static: str | tuple[str, ...]
    freq: str | int | None
    cache_bytes: int
    sort_bytes: int
    cache_dir: str | None
    progress: bool | None
    verify: bool


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """The parts of which a store is made.

    Attributes:
        index: The sequences.
        columns: The columns of their rows.
        sorted_in: The folder of the sorted rows; None: rows are read in place or from memory.
    """

    index: FrameIndex
    columns: UnitColumns
    sorted_in: Path | None


def open_rows(tables: RowTables, request: Request) -> Opened:
    """Open a table: return its sequences and the reader of their rows.

    Raises:
        ConfigError: If a column does not exist or has the wrong type.
        DataError: If a file is damaged, a value is missing, or rows are not in order.
        CacheError: If a cache file cannot be written.
    """
    kept = None
    if tables.folder is not None and tables.unit_rows.sum() >= _KEEP_ROWS:
        columns = (request.group, request.order, request.missing, request.static, request.freq)
        source = repr((tables.location, list(tables.names), columns, dict(request.axes)))
        kept = Kept(tables.folder, request.cache_dir, source, tables.version)
    opened = _load(tables, request, kept)
    if opened is None:
        opened = _build(_scan(tables, request), kept)
    for note in opened.index.notes:
        warn(note)
    return opened


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """A table that was scanned.

    Attributes:
        tables: The table.
        request: The options.
        scan: Its groups, and the order of its rows.
        fields: Name -> field.
        dtypes: Column with a value per row -> dtype.
        notes: Warnings so far.
    """

    tables: RowTables
    request: Request
    scan: Scan
    fields: Mapping[str, Field]
    dtypes: Mapping[str, np.dtype[Any]]
    notes: list[str]

    def make_index(self, steps: RowSteps | None) -> FrameIndex:
        """Return the index of the rows in their final order.

        Args:
            steps: The steps of the order column in the final order; None: there is none.

        Raises:
            DecodeError: If a row is not on the grid of ``freq``.
        """
        scan, request = self.scan, self.request
        offsets = np.concatenate(([0], np.cumsum(scan.counts)))
        notes, grid = list(self.notes), None
        if steps is not None:
            if steps.equals:
                notes.append(_describe_equal(steps, scan.names))
            if steps.step is not None:
                steps.refuse_off_grid(scan.names, str(request.freq))
                first_keys = np.concatenate(steps.first_keys)
                grid = Grid.from_gaps(offsets, first_keys, steps.step, *steps.gaps())
        statics: dict[str, NDArray[Any] | Sequence[Any]] = {}
        for name, field in self.fields.items():
            if name == request.group:
                is_text = field.dtype in _TEXTS
                statics[name] = scan.names if is_text else np.array(scan.names, dtype=field.dtype)
            elif field.axis is None and name != ID:
                statics[name] = scan.constants[name]
        ids = [str(name) for name in scan.names]
        is_sorted = not scan.is_in_place
        return FrameIndex(self.fields, ids, offsets, statics, self.dtypes, grid, is_sorted, notes)

    def decode(self, unit: int, names: list[str]) -> dict[str, NDArray[Any]]:
        """Return the values of columns of a unit, (rows,) each."""
        return _FileUnits(self.tables, self.request.missing, self.fields, self.dtypes)(unit, names)


def _load(tables: RowTables, request: Request, kept: Kept | None) -> Opened | None:
    """Open a table from its cache files; return None if there are none, or they are damaged."""
    folder = None if kept is None else kept.find()
    if folder is None:
        return None
    loaded = load_arrays(folder)
    if loaded is None:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return _open_in(tables, request, FrameIndex.from_arrays(*loaded), folder)


def _scan(tables: RowTables, request: Request) -> _Table:
    named = _find_named(tables, request)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        axes = {**dict.fromkeys(named), **request.axes}
        keys = request.group, request.order
        fields = dict(tables.infer_fields(*keys, named, request.missing, axes))
    notes = list(dict.fromkeys(str(each.message) for each in caught))
    wanted = _make_wanted(request, fields, named)
    rows = int(tables.unit_rows.sum())
    with show_bar(request.progress, "scanning the table", rows) as on_progress:
        scan = scan_table(tables, wanted, on_progress)
    release_memory()
    for name, values in scan.changing.items():
        if fields[name].dtype == "bytes" or request.freq is not None:
            what = (
                "bytes that change within a group have no codes; they must be constant"
                if fields[name].dtype == "bytes"
                else "strings that change within a group have no value in a gap of `freq`"
            )
            notes.append(f"table: column {name!r} is dropped: {what}")
            del fields[name]
        else:
            fields[name] = Field(
                "int32", (), request.axes.get(name, "time"), Categories(tuple(values))
            )
    fields = _name_statics(fields, scan, named)
    dtypes = {name: np.dtype(each.dtype) for name, each in fields.items() if each.axis is not None}
    if not dtypes:
        tables.infer_fields(*keys, named, request.missing, axes, has_steps=False)  # raises
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        numbers = [name for name in dtypes if name not in scan.changing]
        tables.refuse_missing_values(numbers, request.missing)
    notes += [str(each.message) for each in caught]
    if request.freq is not None:
        fields, dtypes = _add_mask(fields, dtypes, request.order)
    return _Table(tables, request, scan, fields, dtypes, notes)


def _build(table: _Table, kept: Kept | None) -> Opened:
    """Open a scanned table; rows that are not in order are sorted first."""
    tables, request, scan = table.tables, table.request, table.scan
    if kept is None and scan.is_in_place:
        return _open_in(tables, request, table.make_index(scan.steps), None)
    if kept is None:
        sorted_steps, rows = _sort(table, None)
        arrays = {name: each.get(0, int(scan.counts.sum())) for name, each in rows.items()}
        units = _MemoryUnits(arrays, tables.unit_rows)
        index = table.make_index(sorted_steps)
        columns = UnitColumns(units, table.dtypes, tables.unit_rows, request.cache_bytes, None)
        return Opened(index, columns, None)
    with kept.make() as (partial_folder, made):
        if made is None:
            steps = scan.steps
            if not scan.is_in_place:
                steps, _ = _sort(table, partial_folder)
                _finish_sorted(table, partial_folder)
            save_arrays(partial_folder, *table.make_index(steps).to_arrays())
    opened = _load(tables, request, kept)
    if opened is None:
        raise CacheError(
            f"frames: the cache files of {tables.location} were removed while it was opened. Open "
            "it again"
        )
    if opened.sorted_in is not None:
        what = request.group if request.order is None else f"{request.group} and {request.order}"
        say(request.progress, f"{tables.location}: rows are not in order; sorted by {what} into "
            f"{opened.sorted_in}")  # fmt: skip
    return opened


def _open_in(tables: RowTables, request: Request, index: FrameIndex, folder: Path | None) -> Opened:
    if tables.is_mapped and not index.is_sorted:
        folder = None  # nothing is decoded
    decode: Decode = (
        partial(_refuse_to_decode, folder)
        if index.is_sorted
        else _FileUnits(tables, request.missing, index.fields, index.dtypes)
    )
    columns = UnitColumns(
        decode, index.dtypes, tables.unit_rows, request.cache_bytes, folder, verify=request.verify
    )
    return Opened(index, columns, folder if index.is_sorted else None)


@dataclass(frozen=True, slots=True, eq=False)
class _FileUnits:
    """Decoder of columns of a unit of a table. Implements ``Decode``."""

    tables: RowTables
    missing: Missing | None
    fields: Mapping[str, Field]
    dtypes: Mapping[str, np.dtype[Any]]

    def __call__(self, unit: int, names: list[str]) -> dict[str, NDArray[Any]]:
        texts = [name for name in names if isinstance(self.fields[name].logical, Categories)]
        table = self.tables.read(unit, names, texts)
        first_row = int(self.tables.unit_rows[:unit].sum())
        found: dict[str, NDArray[Any]] = {}
        for name in names:
            logical = self.fields[name].logical
            if isinstance(logical, Categories):
                column = encoded_column(self.tables, table, name)
                found[name] = look_up(column, logical.codes)
                continue
            column = self.tables.column(table, name)
            values = self.tables.convert(name, column, first_row, self.missing)
            found[name] = np.asarray(values).astype(self.dtypes[name], copy=False)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _MemoryUnits:
    """Columns of rows that were sorted in memory, by units. Implements ``Decode``."""

    arrays: Mapping[str, NDArray[Any]]
    unit_rows: NDArray[np.int64]

    def __call__(self, unit: int, names: list[str]) -> dict[str, NDArray[Any]]:
        first = int(self.unit_rows[:unit].sum())
        stop = first + int(self.unit_rows[unit])
        return {name: self.arrays[name][first:stop] for name in names}


def _refuse_to_decode(folder: Path | None, unit: int, names: list[str]) -> dict[str, NDArray[Any]]:
    """Raise a CacheError, because sorted rows cannot be decoded from units of the table."""
    raise CacheError(
        f"frames: the cache must have the sorted rows of {', '.join(names)}, but part {unit} of "
        f"them is missing. Remove the folder {folder}, and open the table again"
    )


def _sort(table: _Table, folder: Path | None) -> tuple[RowSteps, dict[str, Rows]]:
    """Sort the rows of a table into files of a folder, or in memory."""
    tables, request = table.tables, table.request
    rows, names = int(tables.unit_rows.sum()), list(table.dtypes)

    def make_rows(name: str, dtype: np.dtype[Any]) -> Rows:
        if folder is None:
            return MemoryRows(dtype, rows)
        stem = names.index(name) if name in names else name.removeprefix(":")
        return FileRows(folder / f"{stem}.column", dtype)

    sorting = Sorting(
        tables, request.group, str(request.order), request.freq, table.decode, table.dtypes,
        make_rows, request.sort_bytes // 4,
    )  # fmt: skip
    with show_bar(request.progress, "sorting rows that are not in order", 2 * rows) as on_progress:
        found = sort_table(sorting, table.scan.counts, on_progress)
    release_memory()  # sorted rows are read without Arrow, which would keep it
    return found


def _finish_sorted(table: _Table, folder: Path) -> None:
    """Write the checksums of sorted rows, and remove the temporary columns of the sort."""
    for name in (CODE, KEY):
        (folder / f"{name.removeprefix(':')}.column").unlink()
    starts = np.concatenate(([0], np.cumsum(table.tables.unit_rows)))
    for number, dtype in enumerate(table.dtypes.values()):
        ColumnFile(folder / f"{number}.column", dtype, starts, verify=False).mark_all()


def _find_named(tables: RowTables, request: Request) -> list[str]:
    """Return the columns that must have one value per sequence."""
    named = [] if request.static == AUTO else list(request.static)
    for name in named:
        if name not in tables.schema.names:
            raise make_unknown_name_error("table", "column", name, tables.schema.names)
    return [*named, *(name for name, axis in request.axes.items() if axis is None)]


def _make_wanted(request: Request, fields: Mapping[str, Field], named: list[str]) -> Wanted:
    own = (ID, request.group)
    texts = [name for name, each in fields.items() if each.dtype in _TEXTS and name not in own]
    static = [name for name in named if name in fields and name not in own]
    numbers = [name for name in static if name not in texts]
    if request.static == AUTO:
        free = set(fields) - {*own, request.order, *texts, *static, *request.axes}
        numbers += [name for name in fields if name in free]
    return Wanted(
        request.group, request.order, texts, numbers, static, request.freq, request.missing
    )


def _name_statics(fields: Mapping[str, Field], scan: Scan, named: list[str]) -> dict[str, Field]:
    """Return the fields; those of constant columns get one value per sequence.

    If no column would have a value per timestep, only the named columns are such fields.
    """
    constant = [name for name in fields if name in scan.constants and name not in named]
    found = {
        name: replace(each, axis=None) if name in constant else each
        for name, each in fields.items()
    }
    return found if any(each.axis is not None for each in found.values()) else dict(fields)


def _add_mask(
    fields: Mapping[str, Field], dtypes: Mapping[str, np.dtype[Any]], order: str | None
) -> tuple[dict[str, Field], dict[str, np.dtype[Any]]]:
    """Return fields and dtypes on a grid: numbers are floats, which can be NaN; a mask is added.

    Raises:
        ConfigError: If a column has the name of the mask.
    """
    if MASK in fields:
        raise ConfigError(
            f"frames: a column must not be called {MASK!r} where `freq` is given, since a field of "
            "that name says which timesteps have a row. Rename the column"
        )
    found: dict[str, Field] = {}
    for name, each in fields.items():
        is_float = np.issubdtype(dtypes.get(name, np.float64), np.floating)
        is_kept = is_float or name == order or each.logical is not None  # dates have NaT
        found[name] = each if is_kept else replace(each, dtype="float64")
    axis = next(each.axis for each in fields.values() if each.axis is not None)
    found[MASK] = Field("bool", (), axis)
    return found, {name: dtype for name, dtype in dtypes.items() if name != order}


def _describe_equal(steps: RowSteps, names: list[Any]) -> str:
    code, key = steps.first_equal or (0, None)
    return (
        f"table: column {steps.order!r} has equal values within a group, first {steps.show(key)} "
        f"of {names[code]!r} ({steps.equals} rows have the value of the row before): such rows "
        "stay in the order of the table"
    )
