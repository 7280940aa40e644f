"""The files of a foreign dataset: their fields, axes and lengths, and the sources of values."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, DataError
from seqdata.index import DEFAULT_AXIS
from seqdata.protocols import Field
from seqdata.storage.arrow_columns import (
    ColumnType,
    decode_column,
    has_nulls,
    infer_column_type,
    measure_nesting,
)
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.decoded_source import DecodedColumn, DecodedSource, UnitCache
from seqdata.storage.fields import ID_FIELD, MAX_WIDTH, field_width
from seqdata.storage.find_files import FoundFiles, find_partitions
from seqdata.storage.foreign.file_discovery import find_tables
from seqdata.storage.foreign.length_scan import scan_lengths
from seqdata.storage.foreign.table_file import (
    TableFile,
    digest_files,
    digest_versions,
    open_table_file,
    read_local_version,
    translate_errors,
    unify_list_types,
)
from seqdata.storage.inputs import is_pandas_index
from seqdata.storage.limits import check_depth, raise_limit_error
from seqdata.storage.store import FieldSource, StoreFields

if TYPE_CHECKING:
    import pyarrow as pa

Units = list[tuple[TableFile, int]]


@dataclass(frozen=True, slots=True, eq=False)
class TableSet:
    """Opened files, the types of their columns, and the lengths of their rows.

    Attributes:
        folder: The folder of the files.
        files: The files, in the order of their sequences.
        column_types: Column -> its type.
        fields: Column -> its field.
        rows: int64 (units,), of all files in order.
        lengths_of: Axis -> number of timesteps of each sequence.
        partitions: Column that the names of folders give -> its value in each file, as an array.
        found: The files that were found at a local location, and those left out.
    """

    folder: Path
    files: Sequence[TableFile]
    column_types: Mapping[str, ColumnType]
    fields: Mapping[str, Field]
    rows: NDArray[np.int64]
    lengths_of: Mapping[str, NDArray[Any]]
    partitions: Mapping[str, pa.Array] = field(default_factory=dict)
    found: FoundFiles | None = None

    def units(self) -> Units:
        """Return all units of all files in order."""
        return [(file, unit) for file in self.files for unit in range(file.units)]

    def decode(self, name: str, units: Units, number: int) -> DecodedColumn:
        """Return one column of one unit."""
        file, unit = units[number]
        column_type = self.column_types[name]
        width = column_type.shape[0] if column_type.nested else None
        location = file.locate_unit(unit, name)
        with translate_errors(location):
            if name in self.partitions:
                array = self._repeat_partition(name, file, int(self.rows[number]))
            else:
                array = file.read_column(unit, name)
            if len(array) != self.rows[number]:
                raise location.make_error(
                    CorruptShardError,
                    f"must have {self.rows[number]} rows, as counted before, but has {len(array)}. "
                    "Restore the file",
                    found=len(array), expected=int(self.rows[number]),
                )  # fmt: skip
            return decode_column(location, array, column_type, width)

    def _repeat_partition(self, name: str, file: TableFile, rows: int) -> pa.Array:
        """Return the value of a column of partitions in one file, once for each row."""
        values = self.partitions[name]
        return values.take(np.full(rows, file.location.shard, dtype=np.int64))

    def is_in_place(self, name: str) -> bool:
        """Return whether a column's bytes can be used in place, in all files."""
        if name in self.partitions:
            return False
        for file in self.files:
            column_type = infer_column_type(file.schema.field(name).type)
            if not file.is_mapped or column_type is None or not column_type.plain:
                return False
            if any(has_nulls(file.read_column(unit, name)) for unit in range(file.units)):
                return False
        return True


def open_tables(root: str | Path, *, unique_ids: bool = True) -> tuple[TableSet, dict[str, str]]:
    """Open a file, or the files of a folder; also return the columns dropped, with the reasons.

    Args:
        root: The file or folder, a glob, or several.
        unique_ids: Whether ids are compared; False if these files were opened before. Whenever
            lengths are counted to be cached, they are compared.

    Raises:
        ConfigError: If there are no files.
        DataError: If the files do not fit together, or no column holds lists.
        DecodeError: If a sequence is missing; the message names column and row. If an id occurs
            twice; it names both sequences.
        CorruptShardError: If a file is damaged.
    """
    found = find_tables(str(root))
    paths = {name: found.root / name for name in found.names}
    tables, left_out = open_paths(str(root), found.root, paths, unique_ids=unique_ids)
    return replace(tables, found=found), left_out


def open_paths(
    location: str,
    folder: Path,
    paths: Mapping[str, Path],
    read_version: Callable[[Path], str] = read_local_version,
    *,
    unique_ids: bool = True,
) -> tuple[TableSet, dict[str, str]]:
    """Open files at given paths; see ``open_tables``.

    Args:
        location: The dataset, for messages.
        folder: The folder for the cached count of lengths.
        paths: Name of a file -> its local path, in the order of their sequences.
        read_version: Returns a string that differs between versions of a file.
        unique_ids: See ``open_tables``.
    """
    files = [
        open_table_file(path, DataLocation(dataset=location, shard=i, file=name), read_version)
        for i, (name, path) in enumerate(paths.items())
    ]
    files = unify_list_types(files)
    column_types, left_out = _infer_column_types(files)
    partitions = _make_partitions(location, list(paths), files, column_types)
    ragged = {name: column_type for name, column_type in column_types.items() if column_type.ragged}
    if not ragged:
        raise _make_no_ragged_error(location, left_out)
    must_compare = unique_ids or not all(file.is_mapped for file in files)
    ids = column_types.get(ID_FIELD) if must_compare else None
    scan = scan_lengths(
        folder, files, ragged, digest_versions(files, digest_files(files, ragged)),
        ids=ids if ids is not None and ids.is_id else None,
    )  # fmt: skip
    for name, (low, high) in scan.widths.items():
        if low == high and (low or not scan.lengths[name].any()):
            column_types[name] = replace(
                column_types[name], shape=(max(1, low), *column_types[name].shape)
            )
            check_width(replace(files[0].location, field=name), column_types[name])
        else:
            some = f"{low} to {high}" if high else "no"
            left_out[name] = f"{some} numbers per timestep"
            del column_types[name]
    if not any(column_type.ragged for column_type in column_types.values()):
        raise _make_no_ragged_error(location, left_out)
    if not scan.rows.sum():
        raise DataLocation(dataset=location).make_error(
            DataError, "must have at least one row, but has none. Check where it comes from"
        )
    for name, categories in scan.vocabularies.items():
        column_types[name] = replace(column_types[name], logical=categories)
    axes, lengths_of = _assign_axes(column_types, scan.lengths)
    fields = {
        name: Field(column_type.dtype, column_type.shape, axes.get(name), column_type.logical)
        for name, column_type in column_types.items()
    }
    tables = TableSet(folder, files, column_types, fields, scan.rows, lengths_of, partitions)
    return tables, left_out


def _make_partitions(
    location: str,
    names: Sequence[str],
    files: Sequence[TableFile],
    column_types: dict[str, ColumnType],
) -> dict[str, pa.Array]:
    """Return the columns that the names of folders give, and add their types to those of columns.

    A column that files hold themselves is theirs.
    """
    import pyarrow as pa

    found = find_partitions(names)
    partitions: dict[str, pa.Array] = {}
    for column in dict.fromkeys(column for values in found for column in values):
        if any(column in file.schema.names for file in files):
            continue
        if column == ID_FIELD:
            raise DataLocation(dataset=location, file=names[0], field=column).make_error(
                DataError,
                f"must name one sequence, but is of a folder '{column}=…': all rows of its files "
                "would have the same. Rename the folders",
            )
        for name, values in zip(names, found, strict=True):
            if values.get(column) is None:
                raise DataLocation(dataset=location, file=name, field=column).make_error(
                    DataError,
                    f"must be below a folder '{column}=VALUE', which becomes a column, as other "
                    "files are, but is not. Move it, or open the files one by one",
                )
        partitions[column] = pa.array([values[column] for values in found])
        column_type = infer_column_type(partitions[column].type)
        if column_type is not None:
            column_types[column] = column_type
    return partitions


def make_fields(location: str, tables: TableSet, key: str | None) -> StoreFields:
    """Return the fields of all files.

    Args:
        location: The dataset, for messages.
        tables: The opened files.
        key: The column of ids, if there is one.
    """
    units = tables.units()
    unit_names = [f"{file.name}#{unit}" if file.units > 1 else file.name for file, unit in units]
    unit_offsets = [0, *itertools.accumulate(tables.rows.tolist())]
    locations = [file.locate_unit(unit) for file, unit in units]
    layout = ShardLayout(
        location, unit_names, unit_offsets, tables.lengths_of, locations.__getitem__
    )
    cache = UnitCache()

    def make_source(name: str, layout: ShardLayout) -> FieldSource:
        decode_unit, field = functools.partial(tables.decode, name, units), tables.fields[name]
        if tables.is_in_place(name):
            return _make_source(name, field, layout, [decode_unit(i) for i in range(len(units))])
        return DecodedSource(name, field, layout, decode_unit, cache)

    return StoreFields.from_sources(layout, tables.fields, key, make_source)


def _infer_column_types(files: Sequence[TableFile]) -> tuple[dict[str, ColumnType], dict[str, str]]:
    """Return the types of columns, and those that cannot be fields, with the reasons."""
    column_types: dict[str, ColumnType] = {}
    left_out: dict[str, str] = {}
    for column in files[0].schema:
        column_type = infer_column_type(column.type)
        if is_pandas_index(column.name):
            left_out[column.name] = "an unnamed index of pandas"
            continue
        if column_type is None:
            left_out[column.name] = str(column.type)
            continue
        column_types[column.name] = column_type
        location = replace(files[0].location, field=column.name)
        check_depth(location, measure_nesting(column.type))
        check_width(location, column_type)
    for file in files:
        if len(set(file.schema.names)) < len(file.schema.names):
            raise file.location.make_error(
                DataError, "must have columns of different names, but two have the same. Rename one"
            )
        for name, column_type in column_types.items():
            _check_alike(files[0], file, name, column_type)
        for name in file.schema.names:
            if name not in files[0].schema.names and not is_pandas_index(name):
                left_out.setdefault(name, f"not in the first file, {files[0].location.file}")
    return column_types, left_out


def check_width(location: DataLocation, column_type: ColumnType) -> None:
    """Raise if timesteps are too large.

    Raises:
        LimitError: If one takes ``MAX_WIDTH`` bytes or more.
    """
    width = field_width(Field(column_type.dtype, column_type.shape))
    if width >= MAX_WIDTH:
        problem = f"declares timesteps of {width} bytes"
        raise_limit_error(location, problem, f"have less than {MAX_WIDTH}", width, MAX_WIDTH)


def _check_alike(first: TableFile, file: TableFile, name: str, column_type: ColumnType) -> None:
    is_present = name in file.schema.names
    if is_present and column_type.is_alike(infer_column_type(file.schema.field(name).type)):
        return
    found = file.schema.field(name).type if is_present else "missing"
    raise replace(file.location, field=name).make_error(
        DataError,
        f"must be {first.schema.field(name).type} as in {first.name!r}, but is {found}. Write the "
        "files with one schema, or open them one by one",
    )


def _assign_axes(
    column_types: Mapping[str, ColumnType], lengths: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Return column -> axis and axis -> lengths: columns of equal lengths share an axis."""
    axes: dict[str, str] = {}
    lengths_of: dict[str, NDArray[Any]] = {}
    for name, column_type in column_types.items():
        if not column_type.ragged:
            continue
        found = lengths[name]
        same = (axis for axis, other in lengths_of.items() if np.array_equal(other, found))
        axis = next(same, None)
        if axis is None:
            axis = name if lengths_of else DEFAULT_AXIS
            while axis in lengths_of:
                axis += "_"
            lengths_of[axis] = found
        axes[name] = axis
    return axes, lengths_of


def _make_source(
    name: str, field: Field, layout: ShardLayout, decoded: Sequence[DecodedColumn]
) -> BufferSource:
    values = [column.values for column in decoded]
    offsets = [column.offsets for column in decoded if column.offsets is not None]
    return BufferSource.from_arrays(name, field, layout, values, offsets or None)


def _make_no_ragged_error(location: str, left_out: Mapping[str, str]) -> DataError:
    refused = ", ".join(f"{name!r} ({reason})" for name, reason in left_out.items())
    return DataLocation(dataset=location).make_error(
        DataError,
        "at least one column must hold lists of numbers or strings: a row is a sequence, but none "
        f"does{f'; dropped: {refused}' if refused else ''}. If a row is a timestep, pass `group`, "
        "the column whose equal values make a sequence (`seqdata write --group COLUMN`)",
    )
