"""Tables with a row per timestep that are read by parts, for packages.

Fields, refused rows and found files are the same as for a table that is read into memory
(``groups``); a package that reads tables larger than memory begins here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DecodeError
from seqdata.protocols import Field
from seqdata.readers.groups import find_groups, iter_groups, read_order_keys, refuse_missing
from seqdata.readers.missing import (
    Missing,
    check_missing,
    make_missing_error,
    replace_missing,
)
from seqdata.readers.source import (
    SourceFile,
    count_suffixes,
    fetch_source,
    find_file_kind,
    find_source,
)
from seqdata.readers.tables import find_table_format
from seqdata.storage.arrow_columns import combine_column, convert_column, warn_of_missing
from seqdata.storage.data_location import DataLocation
from seqdata.storage.find_files import warn_left_out
from seqdata.storage.foreign.table_file import (
    TableFile,
    digest_files,
    digest_versions,
    open_table_file,
    read_local_version,
    unify_list_types,
)
from seqdata.storage.inputs import Axes, check_unique_names, to_arrow_table
from seqdata.storage.local_copies import LocalCopies, list_files
from seqdata.storage.local_files import is_remote
from seqdata.storage.logical_values import EncodedColumn
from seqdata.storage.memory import MemoryStore
from seqdata.storage.remote.options import Remote, select_remote
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.writing.table_files import TABLE_KINDS

if TYPE_CHECKING:
    import pyarrow as pa

    ReadUnit = Callable[[int, Sequence[str], Sequence[str]], pa.Table]

_STEP = ":step"  # a column that no table has
IN_UNITS = ("parquet", "arrow")
"""Kinds of files that consist of row groups or record batches."""


@dataclass(frozen=True, slots=True, eq=False)
class TableFiles:
    """The files of one table, on this machine.

    Attributes:
        location: The table, for messages.
        files: The files, in order.
        kind: Kind of the files, such as ``parquet``.
        copies: Copies of the files behind URLs.
    """

    location: str
    files: list[SourceFile]
    kind: str
    copies: Sequence[LocalCopies] = ()

    def read_version(self, path: Path) -> str:
        """Return the version of a file: that of the server for a copy, else of the local file."""
        known = (copies.versions.get(path) for copies in self.copies)
        return next(filter(None, known), None) or read_local_version(path)

    def hold(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Return the rows unchanged; the copies of remote files are kept until all are read."""
        held = iter(rows)
        for copies in self.copies:
            held = copies.hold(held)
        return held


def find_table_files(
    locations: Sequence[str | os.PathLike[str]],
    *,
    warn: bool = True,
    remote: str | Remote | None = None,
) -> TableFiles:
    """Return the files of one table, in order; those behind URLs are fetched.

    Args:
        locations: Files, folders, globs or URLs.
        warn: Whether to say which files are skipped.
        remote: How URLs are read.

    Raises:
        ConfigError: If there are no files, or they are not tables of one kind.
        SeqDataError: If files cannot be fetched.
    """
    files: list[SourceFile] = []
    copies: list[LocalCopies] = []
    for location in locations:
        own_remote = select_remote(remote, location, locations)
        copied = fetch_source(location, own_remote, partial(_check, location))
        found, left_out = find_source(location if copied is None else copied.path)
        copies += [] if copied is None else [copied]
        if warn:
            warn_left_out([left_out if copied is None else copied.show(left_out)])
        files += found
    where = show_locations(locations)
    return TableFiles(where, files, _check(where, files), copies)


def find_table_kind(location: str | os.PathLike[str], remote: str | Remote | None = None) -> str:
    """Return the kind of the table files at a location; for a URL, no file is read.

    Raises:
        ConfigError: As ``find_table_files``.
        SeqDataError: If files cannot be listed.
    """
    if not is_remote(location):
        return find_table_files([location], warn=False).kind
    kind = find_file_kind(redact_url(os.fspath(location)))
    kinds = [] if kind is None else [kind]

    def choose(path: str) -> list[Path]:
        files, _ = find_source(path)
        kinds.append(_check(location, files))
        return []

    if kind is None:
        list_files(location, remote, choose)
    return kinds[0]


def _check(location: str | os.PathLike[str], files: Sequence[SourceFile]) -> str:
    """Return the kind of files that are one table.

    Raises:
        ConfigError: If the files are not tables of one kind.
    """
    format_name = find_table_format(files)
    if format_name is None:
        shown = ", ".join(f"{count} {suffix}" for suffix, count in count_suffixes(files).items())
        raise ConfigError(
            f"open_store: {redact_url(os.fspath(location))}: must be tables of one kind "
            f"({', '.join(TABLE_KINDS)}) to be read with `group`, but has files of others "
            f"({shown}). Name the files by a glob, or read the table and pass it"
        )
    return format_name


def show_locations(locations: Sequence[str | os.PathLike[str]]) -> str:
    """Return locations for messages, without secrets."""
    names = [os.fspath(each) for each in locations]
    return ", ".join(redact_url(name) if is_remote(name) else str(name) for name in names)


@dataclass(frozen=True, slots=True, eq=False)
class RowTables:
    """A table with a row per timestep, in files or in memory: its units are read one by one.

    Attributes:
        location: The table, for messages.
        names: Names of the files.
        schema: The columns, including those that Hive folders name.
        unit_rows: int64 (units,), number of rows of each row group or record batch.
        fingerprint: Digest of the files, or of the table in memory, 32 hex digits.
        version: Digest of the versions of the files; in memory the fingerprint.
        folder: The folder of the files, or of their copies; None in memory.
        read_unit: ``read_unit(unit, names, encoded)``; see ``read``.
        null_counts: Column -> number of nulls, for each unit; empty if the file does not say.
        is_mapped: Whether units are in memory or in mapped files, so that nothing is decoded.
        copies: Copies of files behind URLs, which are kept as long as this object exists.
    """

    location: str
    names: Sequence[str]
    schema: pa.Schema
    unit_rows: NDArray[np.int64]
    fingerprint: str
    version: str
    folder: Path | None
    read_unit: ReadUnit
    null_counts: Sequence[Mapping[str, int]]
    is_mapped: bool = True
    copies: Sequence[LocalCopies] = ()

    @classmethod
    def open(
        cls,
        locations: Sequence[str | os.PathLike[str]],
        *,
        remote: str | Remote | None = None,
    ) -> RowTables:
        """Open the files of one table: Parquet, Arrow or Feather; no rows are read.

        Args:
            locations: Files, folders or globs; also URLs, whose files are fetched.
            remote: How URLs are read.

        Raises:
            ConfigError: If there are no files, they are of another kind, or columns of a file have
                the same name.
            DataError: If a file is damaged, or the columns of files do not match.
            SeqDataError: If a file cannot be fetched.
        """
        found = find_table_files(locations, remote=remote)
        files, kind, where = found.files, found.kind, found.location
        if kind not in IN_UNITS:
            raise ConfigError(
                f"open_store: {where}: must be Parquet, Arrow or Feather files to be read by "
                f"parts, but is {kind}. Leave `backend` out, to read the table into memory"
            )
        opened = [
            open_table_file(
                file.path,
                DataLocation(dataset=where, shard=at, file=file.key),
                found.read_version,
            )
            for at, file in enumerate(files)
        ]
        opened = unify_list_types(opened)
        for table_file in opened:
            check_unique_names(table_file.schema.names)
        schema = _unify(where, kind, list(zip(files, opened, strict=True)))
        units = [
            (file, table_file, unit)
            for file, table_file in zip(files, opened, strict=True)
            for unit in range(table_file.units)
        ]
        digest = digest_files(opened, {"rows": str(schema), "of": [file.key for file in files]})
        return cls(
            location=where,
            names=[file.key for file in files],
            schema=schema,
            unit_rows=np.array([_count_rows(each, unit) for _, each, unit in units], np.int64),
            fingerprint=digest,
            version=digest_versions(opened, digest),
            folder=found.copies[0].folder if found.copies else _find_folder(files),
            read_unit=_FileUnits(schema, units),
            null_counts=[_count_nulls(schema, *each) for each in units],
            is_mapped=all(each.is_mapped for each in opened),
            copies=found.copies,
        )

    @classmethod
    def from_table(cls, table: Any, unit_rows: int = 1 << 20) -> RowTables:
        """Return a table of pandas, Polars or Arrow in units, without copying columns of Arrow.

        Args:
            table: The table.
            unit_rows: Maximum number of rows of a unit.

        Raises:
            DecodeError: If a column of pandas has no type of Arrow.
            ConfigError: If two columns have the same name.
        """
        whole = to_arrow_table(table)
        check_unique_names(whole.column_names)
        starts = range(0, len(whole), unit_rows)
        parts = [whole.slice(start, unit_rows) for start in starts]
        digest = hashlib.sha256(str(whole.schema).encode())
        for column in whole.columns:
            for chunk in column.chunks:
                for buffer in chunk.buffers():
                    digest.update(b"" if buffer is None else memoryview(buffer))
            digest.update(f"{[len(chunk) for chunk in column.chunks]}".encode())

        def read(unit: int, names: Sequence[str], encoded: Sequence[str]) -> pa.Table:
            del encoded  # it is in memory already
            return parts[unit].select(list(names))

        rows = np.array([len(part) for part in parts], dtype=np.int64)
        name = digest.hexdigest()[:32]
        nulls = [
            {each: part.column(each).null_count for each in part.column_names} for part in parts
        ]
        return cls("table", ["memory"], whole.schema, rows, name, name, None, read, nulls)

    def read(self, unit: int, names: Sequence[str], encoded: Sequence[str] = ()) -> pa.Table:
        """Return columns of a row group or record batch.

        Args:
            unit: Index of the row group or record batch.
            names: The columns.
            encoded: Columns of strings among ``names`` that may be dictionaries and codes.

        Raises:
            DataError: If the file is damaged.
        """
        return self.read_unit(unit, names, encoded)

    def column(self, table: pa.Table, name: str) -> pa.Array:
        """Return a column as one array, with the values of a dictionary in place of its codes."""
        from pyarrow import types

        column = table.column(name)
        is_plain = types.is_primitive(column.type) and column.num_chunks == 1
        return column.chunk(0) if is_plain else combine_column(table, name)

    def head(self) -> pa.Table:
        """Return the first row, or an empty table if there are no rows."""
        for unit in np.flatnonzero(self.unit_rows)[:1].tolist():
            return self.read(unit, self.schema.names).slice(0, 1)
        return self.schema.empty_table()

    def infer_fields(
        self,
        group: str,
        order: str | None,
        per_sequence: Sequence[str],
        missing: Missing | None,
        axes: Axes | None,
        *,
        has_steps: bool = True,
    ) -> Mapping[str, Field]:
        """Return the fields of the first row as a sequence, in which strings are per sequence.

        Args:
            group: The column whose equal values make a sequence.
            order: The column by which rows are sorted; None: they are in order.
            per_sequence: Columns with one value per sequence.
            missing: The rule for missing values.
            axes: Field -> axis.
            has_steps: Whether another column may have a value per timestep: strings that change.

        Raises:
            ConfigError: If a column does not exist or does not fit, or, without ``has_steps``, none
                has a value per timestep.
            DecodeError: If a value is missing.
        """
        import pyarrow as pa

        check_missing(missing)
        rule: Missing = "nan" if missing in (None, "error") else missing  # counted elsewhere
        head = self.head()
        if has_steps:
            steps = pa.py_buffer(np.arange(len(head)))  # `pa.array` would import pandas
            column = pa.Array.from_buffers(pa.int64(), len(head), [None, steps])
            head = head.append_column(_STEP, column)
        rows = iter_groups(head, group, per_sequence, order, rule)
        fields = MemoryStore.from_sequences(rows, axes).fields
        return {name: field for name, field in fields.items() if name != _STEP}

    def refuse_missing_values(self, names: Sequence[str], missing: Missing | None) -> None:
        """Raise if a column lacks a value that it must have; warn where it becomes NaN.

        Args:
            names: Columns of numbers or dates.
            missing: The rule. Columns of floats are read to the end for ``error``, and where some
                values are null.

        Raises:
            DecodeError: If a value is missing that the rule does not treat; names the row.
        """
        from pyarrow import types

        nulls = self.count_nulls()
        for name in names:
            is_float = types.is_floating(self.schema.field(name).type)
            has_nulls = any(each.get(name) for each in nulls)
            if not has_nulls and not (is_float and missing == "error"):
                continue
            count, first, start = 0, -1, 0
            for unit, rows in enumerate(self.unit_rows.tolist()):
                if is_float or nulls[unit].get(name):
                    column = combine_column(self.read(unit, [name]), name)
                    absent = np.flatnonzero(column.is_null(nan_is_null=is_float).to_numpy(False))
                    first = start + int(absent[0]) if first < 0 and len(absent) else first
                    count += len(absent)
                    if missing != "error" and not is_float:
                        self.convert(name, column, start, missing)  # raises, unless it is filled
                start += rows
            if count and missing == "error":
                raise make_missing_error(name, count, first)
            if count and missing is None and is_float:
                warn_of_missing(name, count, start, first)

    def count_nulls(self) -> list[Mapping[str, int]]:
        """Return column -> number of nulls, for each unit: from footers, else by reading units."""
        return [
            known if known or not rows else self._read_null_counts(unit)
            for unit, (known, rows) in enumerate(
                zip(self.null_counts, self.unit_rows.tolist(), strict=True)
            )
        ]

    def _read_null_counts(self, unit: int) -> Mapping[str, int]:
        table = self.read(unit, self.schema.names)
        return {name: table.column(name).null_count for name in table.column_names}

    @staticmethod
    def convert(name: str, column: pa.Array, first_row: int, missing: Missing | None) -> Any:
        """Return the numbers of a column, (rows,), as the core's readers do; dates as int64.

        Nulls of floats become NaN, unless ``missing`` is a number, which replaces them;
        ``refuse_missing_values`` warns of them.

        Raises:
            DecodeError: If a value is missing that the rule does not treat; names the row of the
                table.
            ConfigError: If the column cannot hold the number ``missing``.
        """
        import pyarrow as pa

        rule: Missing = "nan" if missing in (None, "error") else missing
        if column.null_count or rule != "nan":
            table = replace_missing(pa.Table.from_arrays([column], [name]), rule, ())
            column = combine_column(table, name)
        values = convert_column(name, column, first_row)
        return values.values if isinstance(values, EncodedColumn) else values

    @staticmethod
    def order_keys(name: str, column: pa.Array, first_row: int) -> NDArray[Any]:
        """Return numbers, (rows,), in the order of a column's values.

        Strings that are dates become microseconds.

        Raises:
            ConfigError: If the column holds neither integers, floats, dates nor strings, or strings
                with nanoseconds.
            DecodeError: If a value is missing, or a string is not a date.
        """
        from pyarrow import types

        if types.is_decimal(column.type):
            raise ConfigError(
                f"table: column {name!r} must hold integers, floats or dates to order rows that "
                f"are read by parts, but is of type {column.type}. Convert it"
            )
        keys = read_order_keys(name, column, first_row)
        is_text = types.is_string(column.type) or types.is_large_string(column.type)
        if is_text and not _has_microseconds(column):
            raise ConfigError(
                f"table: column {name!r} must hold dates without nanoseconds to order rows "
                "that are read by parts, but holds strings with nanoseconds. Convert it to dates"
            )
        return keys

    @staticmethod
    def refuse_missing(name: str, column: pa.Array, first_row: int) -> None:
        """Raise if a value is null or NaN.

        Raises:
            DecodeError: If a value is missing; the message names the row of the table.
        """
        refuse_missing(name, column, first_row)

    @staticmethod
    def refuse_order(table: pa.Table, group: str) -> None:
        """Raise if rows of a group are not together, or dates decrease within one.

        Raises:
            DecodeError: If a group is interrupted by another, its dates decrease, or ``group``
                lacks a value.
        """
        find_groups(table, group)


@dataclass(frozen=True, slots=True, eq=False)
class _FileUnits:
    """Reads columns of a unit of files, as columns of one schema."""

    schema: pa.Schema
    units: Sequence[tuple[SourceFile, TableFile, int]]

    def __call__(self, unit: int, names: Sequence[str], encoded: Sequence[str]) -> pa.Table:
        import pyarrow as pa

        file, opened, number = self.units[unit]
        own = [name for name in names if name in opened.schema.names]
        as_codes = [name for name in own if name in encoded and self._can_encode(opened, name)]
        reading = [name for name in own if name not in as_codes]
        if not own:
            reading = opened.schema.names[:1]  # one gives the number of rows
        columns = dict(zip(reading, opened.read(number, reading), strict=True))
        if opened.read_encoded is not None and as_codes:
            columns |= zip(as_codes, opened.read_encoded(number, as_codes), strict=True)
        rows = len(next(iter(columns.values())))
        arrays = []
        for name in names:
            target = self.schema.field(name).type
            if name in columns:
                column = columns[name]
                is_target = name in as_codes or column.type == target
                arrays.append(column if is_target else column.cast(target))
            elif name in file.partition:
                arrays.append(pa.repeat(pa.scalar(file.partition[name], target), rows))
            else:
                arrays.append(pa.nulls(rows, target))
        return pa.Table.from_arrays(arrays, names=list(names))

    def _can_encode(self, opened: TableFile, name: str) -> bool:
        from pyarrow import types

        type_ = opened.schema.field(name).type
        is_text = types.is_string(type_) or types.is_large_string(type_) or types.is_binary(type_)
        return opened.read_encoded is not None and is_text and type_ == self.schema.field(name).type


def _has_microseconds(column: pa.Array) -> bool:
    """Return whether strings that are dates need no nanoseconds."""
    import pyarrow as pa

    for zone in (None, "UTC"):
        try:
            column.cast(pa.string()).cast(pa.timestamp("us", zone))
        except pa.ArrowInvalid:
            continue
        return True
    return False


def _unify(where: str, kind: str, files: Sequence[tuple[SourceFile, TableFile]]) -> pa.Schema:
    import pyarrow as pa

    schemas = []
    for file, table_file in files:
        schema = table_file.schema
        for name, value in file.partition.items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, pa.scalar(value).type))
        schemas.append(schema)
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").remove_metadata()
    except pa.ArrowException as error:
        raise DecodeError.at(
            f"{where}: the files' columns do not match ({error}). Write them one by one.",
            kind=kind,
        ) from error


def _find_folder(files: Sequence[SourceFile]) -> Path:
    parents = {str(file.path.absolute().parent) for file in files}
    return Path(os.path.commonpath(parents))


def _count_rows(file: TableFile, unit: int) -> int:
    metadata = getattr(file.read, "metadata", None)
    if metadata is not None:
        return int(metadata.row_group(unit).num_rows)
    return len(file.read(unit, file.schema.names[:1])[0]) if file.schema.names else 0


def _count_nulls(
    schema: pa.Schema, source: SourceFile, file: TableFile, unit: int
) -> Mapping[str, int]:
    """Return column -> number of nulls in a unit, from a Parquet footer; else an empty dict."""
    metadata = getattr(file.read, "metadata", None)
    if metadata is None:
        return {}
    group, counts = metadata.row_group(unit), {}
    for number in range(group.num_columns):
        column = group.column(number)
        statistics = column.statistics if column.is_stats_set else None
        if statistics is None or not statistics.has_null_count:
            return {}
        counts[column.path_in_schema] = int(statistics.null_count)
    own = {*file.schema.names, *source.partition}
    lacking = [name for name in schema.names if name not in own]
    return counts | dict.fromkeys(lacking, int(group.num_rows))
