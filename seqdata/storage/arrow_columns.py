"""Columns of Arrow data: their fields, and their values as NumPy arrays.

The one conversion of columns, for files that are read in place, tables in memory, and tables that
are written. Nothing is copied if NumPy can use Arrow's buffers directly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError, warn
from seqdata.logical_types import Categories, LogicalType
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation
from seqdata.storage.decoded_source import DecodedColumn
from seqdata.storage.fields import kind_of
from seqdata.storage.limits import check_size, make_damage_error
from seqdata.storage.logical_values import (
    EncodedColumn,
    convert_values,
    encode_arrow,
    find_logical_type,
    holds_strings,
    view_integers,
    view_numbers,
)
from seqdata.storage.packing import FieldMismatch

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The properties of a column that its type determines.

    Attributes:
        dtype: NumPy name of one element, or ``str`` or ``bytes``.
        shape: Shape of one timestep, or of the whole value.
        ragged: Whether a cell is a list of timesteps.
        nested: Whether timesteps are lists, whose width only the data determines.
        plain: Whether the buffers can be used directly.
        logical: Logical type of the integers of dates and durations.
        has_categories: Whether timesteps are strings, whose vocabulary only the data determines.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    ragged: bool = False
    nested: bool = False
    plain: bool = True
    logical: LogicalType | None = None
    has_categories: bool = False

    @property
    def is_text(self) -> bool:
        """True if a cell is one ``str`` or ``bytes``."""
        return not kind_of(Field(self.dtype)).is_array

    @property
    def is_id(self) -> bool:
        """True if a cell can name its sequence: a ``str``."""
        return kind_of(Field(self.dtype)).is_id

    def is_alike(self, other: ColumnType | None) -> bool:
        """Return whether both are the same field, regardless of storage."""
        return other is not None and replace(self, plain=True) == replace(other, plain=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation(DataLocation):
    """A column of a table in memory, for messages.

    Attributes:
        first_row: The index in the table of the first row of a part of it.
    """

    first_row: int = 0

    def __str__(self) -> str:
        return f"{self.dataset}: column {self.field!r}"


Values = NDArray[Any] | list[Any] | DecodedColumn | EncodedColumn
"""Values by row: numbers, or arrays of one shape; strings or bytes; or lists of any length; or
integers with a logical type, one or a list of any length per row."""


def infer_column_type(type_: pa.DataType) -> ColumnType | None:
    """Return the properties of a column of this type; None if it cannot be a field."""
    from pyarrow import BaseExtensionType, types

    if isinstance(type_, BaseExtensionType):
        return _infer_extension_type(type_)
    if types.is_dictionary(type_):
        storage_type = infer_column_type(type_.value_type)
        return (
            None
            if storage_type is None or storage_type.ragged
            else replace(storage_type, plain=False)
        )
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return ColumnType("str", plain=not types.is_string_view(type_))
    if types.is_binary(type_) or types.is_large_binary(type_):
        return ColumnType("bytes")
    if types.is_binary_view(type_) or types.is_fixed_size_binary(type_):
        return ColumnType("bytes", plain=False)
    if _is_ragged(type_):
        inner = type_.value_type
        if holds_strings(inner):
            return ColumnType("int32", ragged=True, plain=False, has_categories=True)
        nested = _is_ragged(inner)
        cell = _infer_number_type(inner.value_type if nested else inner)
        return None if cell is None else replace(cell, ragged=True, nested=nested)
    return _infer_number_type(type_)


def _infer_extension_type(type_: Any) -> ColumnType | None:
    """Return the properties of a column of an extension type; None if it cannot be a field.

    ``bool8`` and ``fixed_shape_tensor`` are read as Arrow defines them, other types as their
    storage. See "Canonical Extension Types" of the Arrow specification.
    """
    storage_type = infer_column_type(type_.storage_type)
    if storage_type is None:
        return None
    if type_.extension_name == "arrow.bool8":
        return ColumnType("bool", plain=False)
    if type_.extension_name != "arrow.fixed_shape_tensor":
        return replace(storage_type, plain=False)
    shape, order = tuple(type_.shape), type_.permutation
    if math.prod(shape) != storage_type.shape[0] or list(order or []) != sorted(order or []):
        return None
    return replace(storage_type, shape=(*shape, *storage_type.shape[1:]), plain=False)


def _infer_number_type(type_: pa.DataType) -> ColumnType | None:
    from pyarrow import types

    if types.is_fixed_size_list(type_):
        inner = _infer_number_type(type_.value_type)
        if inner is None or type_.list_size < 1:
            return None
        return replace(inner, shape=(type_.list_size, *inner.shape))
    if types.is_boolean(type_):
        return ColumnType("bool", plain=False)  # bits
    if types.is_integer(type_) or types.is_floating(type_):
        return ColumnType(np.dtype(type_.to_pandas_dtype()).name)
    logical = find_logical_type(type_)
    if logical is None:
        return None
    return ColumnType("int64", plain=type_.bit_width == 64, logical=logical)


def has_string_lists(type_: pa.DataType) -> bool:
    """Return whether a type is of lists of strings, or of codes of them."""
    column_type = infer_column_type(type_)
    return column_type is not None and column_type.has_categories


def is_untyped_list(type_: pa.DataType) -> bool:
    """Return whether a type is of lists of nulls, which writers infer if all lists are empty."""
    from pyarrow import types

    if not _is_ragged(type_):
        return False
    return bool(types.is_null(type_.value_type)) or is_untyped_list(type_.value_type)


def find_list_types(schemas: Iterable[pa.Schema]) -> dict[str, pa.DataType]:
    """Return column -> the first of its types in schemas that is a list of typed values."""
    return {
        column.name: column.type
        for schema in reversed(list(schemas))
        for column in schema
        if _is_ragged(column.type) and not is_untyped_list(column.type)
    }


def _is_ragged(type_: pa.DataType) -> bool:
    """Return whether a type is of lists of variable length."""
    from pyarrow import types

    return bool(types.is_list(type_) or types.is_large_list(type_))


def is_list(type_: pa.DataType) -> bool:
    """Return whether a type is of lists, of variable or fixed length."""
    from pyarrow import types

    return _is_ragged(type_) or bool(types.is_fixed_size_list(type_))


def measure_nesting(type_: pa.DataType) -> int:
    """Return the nesting depth of a type."""
    from pyarrow import BaseExtensionType, types

    if isinstance(type_, BaseExtensionType):
        return 1 + measure_nesting(type_.storage_type)
    has_inner_type = is_list(type_) or types.is_dictionary(type_)
    return 1 + measure_nesting(type_.value_type) if has_inner_type else 1


def combine_column(table: pa.Table, name: str | int) -> pa.Array:
    """Return a column in one piece, its values in place of codes of a dictionary or views."""
    import pyarrow as pa
    from pyarrow import types

    chunks = table.column(name).chunks or [pa.array([], type=table.schema.field(name).type)]
    if types.is_dictionary(chunks[0].type):
        chunks = [
            pa.DictionaryArray.from_arrays(chunk.indices, _drop_views(chunk.dictionary))
            for chunk in chunks
        ]
        chunks = [chunk.dictionary_decode() for chunk in chunks]
    return pa.concat_arrays([_drop_views(chunk) for chunk in chunks])


def _drop_views(column: Any) -> Any:
    """Return a column of views of strings as strings, which more functions of PyArrow take."""
    import pyarrow as pa

    return column.cast(pa.large_string()) if pa.types.is_string_view(column.type) else column


def convert_column(
    name: str, column: pa.Array, first_row: int = 0, categories: Categories | None = None
) -> Values | None:
    """Return the values of a column of a table in memory; None if they cannot be a field.

    Args:
        name: The name of the column.
        column: The column, or a part of it.
        first_row: The index of its first row in the table, for messages.
        categories: The vocabulary of a column of lists of strings; None: that of ``column``.

    Raises:
        DecodeError: If a value is missing, or text is not UTF-8. A missing float of a column of
            floats becomes NaN, with a warning.
    """
    column_type = infer_column_type(column.type)
    if column_type is None:
        return None
    location = TableLocation(dataset="table", field=name, first_row=first_row)
    if column.null_count and is_float(column.type):
        column = _keep_nan(name, column, first_row)
    if column_type.has_categories:
        return encode_lists(location, column, categories)
    if not column_type.is_text:
        decoded = decode_column(location, column, column_type)
        if column_type.logical is not None:
            return EncodedColumn(decoded.values, decoded.offsets, column_type.logical)
        return decoded.values if decoded.offsets is None else decoded
    column = _unwrap(location, column)
    refuse_nulls(location, column)
    try:
        texts: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise location.make_error(
            DecodeError, f"must hold text in UTF-8, but does not ({error}). Convert it"
        ) from error
    return texts


def is_float(type_: pa.DataType) -> bool:
    """Return whether a type is of floats, which have NaN for a missing value."""
    from pyarrow import types

    return bool(types.is_floating(type_))


def _keep_nan(name: str, column: pa.Array, first_row: int) -> pa.Array:
    """Return a column of floats whose nulls are NaN, with a warning."""
    is_null = column.is_null()
    first = first_row + int(np.flatnonzero(is_null.to_numpy(zero_copy_only=False))[0])
    warn_of_missing(name, column.null_count, first_row + len(column), first)
    return column.fill_null(np.nan)


def warn_of_missing(name: str, count: int, rows: int, first: int) -> None:
    """Warn that missing values of a column are NaN.

    Args:
        name: The column.
        count: The number of missing values.
        rows: The number of rows that were looked at.
        first: The first row that lacks its value.
    """
    warn(
        f"table: column {name!r} lacks {count} of {rows} values, the first in row {first}: they "
        "are NaN. With `group`, `missing` says what they are: 'nan', 'drop', 'error', or a number",
    )


def count_strings(location: DataLocation, column: pa.Array, found: dict[str, None]) -> None:
    """Add to ``found`` the strings of a column of lists that it lacks, in order of appearance.

    Raises:
        DecodeError: If one is missing.
    """
    encoded = encode_lists(location, column)
    codes, first = np.unique(encoded.values, return_index=True)
    values = cast(Categories, encoded.logical).values
    found.update((values[code], None) for code in codes[np.argsort(first)].tolist())


def find_vocabularies(columns: Iterable[tuple[str, int, pa.Array]]) -> dict[str, Categories]:
    """Return the vocabulary of each column of lists of strings, in order of appearance.

    Args:
        columns: Name, the index of the first row, and a part of a column, in order.

    Raises:
        DecodeError: If a string is missing.
    """
    found: dict[str, dict[str, None]] = {}
    for name, first_row, column in columns:
        column_type = infer_column_type(column.type)
        if column_type is not None and column_type.has_categories:
            location = TableLocation(dataset="table", field=name, first_row=first_row)
            count_strings(location, column, found.setdefault(name, {}))
    return {name: Categories(tuple(values)) for name, values in found.items()}


def encode_lists(
    location: DataLocation, column: pa.Array, categories: Categories | None = None
) -> EncodedColumn:
    """Return the codes of a column of lists of strings.

    Args:
        location: The column, for messages.
        column: Lists of strings, or of codes of them.
        categories: The vocabulary; None: the strings of the column, in order of appearance.

    Raises:
        DecodeError: If a value is missing, or is not in the vocabulary.
    """
    import pyarrow as pa

    column = _unwrap(location, column)
    refuse_nulls(location, column)
    offsets = read_list_offsets(location, column)
    inner = column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    offsets = offsets - offsets[0]
    refuse_nulls(location, inner, offsets)
    if pa.types.is_dictionary(inner.type):
        inner.validate(full=True)
    try:
        encoded = encode_arrow(inner)
        if encoded is None:
            raise TypeError(f"strings of type {inner.type}")
        values = encoded.values if categories is None else convert_values(encoded, categories)
    except FieldMismatch as mismatch:
        raise location.make_error(DecodeError, str(mismatch)) from mismatch
    return EncodedColumn(values, offsets, categories or encoded.logical)


def decode_column(
    location: DataLocation, array: pa.Array, column_type: ColumnType, width: int | None = None
) -> DecodedColumn:
    """Return a column's values and offsets.

    Args:
        location: The unit and column, for messages.
        array: The column of a record batch or row group.
        column_type: The type of the column.
        width: The width of the timesteps of a nested column, where it was counted before.

    Raises:
        DecodeError: If a value is missing, or timesteps are of several widths; the message names
            column and row.
        CorruptShardError: If the offsets are invalid, or a width is not the one that was counted.
    """
    if column_type.has_categories:
        encoded = encode_lists(location, array, cast(Categories, column_type.logical))
        return DecodedColumn(encoded.values, encoded.offsets)
    array = _unwrap(location, array)
    refuse_nulls(location, array)
    if column_type.is_text:
        return _decode_text(location, array)
    if not column_type.ragged:
        values = _decode_numbers(location, array, None).astype(column_type.dtype, copy=False)
        return DecodedColumn(values.reshape(len(array), *column_type.shape), None)
    offsets = read_list_offsets(location, array)
    first, stop = int(offsets[0]), int(offsets[-1])
    inner = array.values.slice(first, stop - first)
    offsets = offsets - first if first else offsets
    if column_type.nested:
        return DecodedColumn(_decode_vectors(location, inner, offsets, width), offsets)
    return DecodedColumn(_decode_numbers(location, inner, offsets), offsets)


def _decode_vectors(
    location: DataLocation, array: pa.Array, row_offsets: NDArray[np.int64], width: int | None
) -> NDArray[Any]:
    """Return the timesteps of a nested column, which must have one width."""
    refuse_nulls(location, array, row_offsets)
    offsets = read_list_offsets(location, array)
    widths = np.diff(offsets)
    first, stop = int(offsets[0]), int(offsets[-1])
    if width is None:
        width = int(widths[0]) if len(widths) else 0
        if (widths != width).any():
            raise location.make_error(
                DecodeError,
                "must hold the same number of values per timestep, but holds vectors of "
                f"{widths.min()} to {widths.max()}. Split it into several columns",
            )
    elif (widths != width).any():
        raise make_damage_error(location, f"timesteps whose number of values is not {width}")
    inner_offsets = row_offsets * width  # of numbers by row, for messages
    values = _decode_numbers(location, array.values.slice(first, stop - first), inner_offsets)
    return values.reshape(len(array), width, *values.shape[1:])


def read_list_offsets(location: DataLocation, array: pa.Array) -> NDArray[np.int64]:
    """Return the offsets of lists or strings, int64 (rows+1,), within the column's values.

    Raises:
        CorruptShardError: If they are not ascending.
    """
    from pyarrow import types

    type_ = array.type
    is_large = (
        types.is_large_list(type_) or types.is_large_string(type_) or types.is_large_binary(type_)
    )
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(len(array) + 1, dtype=np.int64)
    dtype = np.dtype(np.int64 if is_large else np.int32)
    raw = np.frombuffer(buffer, dtype, buffer.size // dtype.itemsize)
    found = raw[array.offset : array.offset + len(array) + 1].astype(np.int64, copy=False)
    if len(found) <= len(array) or found[0] < 0 or (found[1:] < found[:-1]).any():
        raise make_damage_error(location, "offsets that are not ascending")
    return found


def measure_row_lengths(
    location: DataLocation, array: pa.Array, column_type: ColumnType
) -> tuple[NDArray[np.int64], tuple[int, int] | None]:
    """Return the number of timesteps of each row, int64 (rows,), and their least and largest width.

    The latter is None if the type determines it, or there is no timestep.

    Raises:
        DecodeError: If a row is missing.
        CorruptShardError: If the offsets are invalid.
    """
    array = _unwrap(location, array)
    refuse_nulls(location, array)
    offsets = read_list_offsets(location, array)
    if not column_type.nested:
        return np.diff(offsets), None
    inner = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    widths = np.diff(read_list_offsets(location, inner))
    width_range = (int(widths.min()), int(widths.max())) if len(widths) else None
    return np.diff(offsets), width_range


def has_nulls(array: pa.Array) -> bool:
    """Return whether a value is missing, at any depth."""
    return bool(array.null_count) or (is_list(array.type) and has_nulls(array.values))


def _unwrap(location: DataLocation, array: pa.Array) -> pa.Array:
    """Return a column as plain numbers, lists or text.

    pyarrow does not check indices and views of bytes, so all of them are checked before.
    """
    from pyarrow import BaseExtensionType, large_binary, large_string, types

    while isinstance(array.type, BaseExtensionType):
        array = array.storage
    if types.is_dictionary(array.type):
        return _decode_dictionary(location, array)
    if types.is_string_view(array.type) or types.is_binary_view(array.type):
        array.validate(full=True)
        stored = sum(buffer.size for buffer in array.buffers() if buffer is not None)
        check_size(location, stored, int(_view_sizes(array).sum()))
        return array.cast(
            large_string() if types.is_string_view(array.type) else large_binary(), safe=True
        )
    return array.cast(large_binary()) if types.is_fixed_size_binary(array.type) else array


def _decode_dictionary(location: DataLocation, array: pa.DictionaryArray) -> pa.Array:
    """Return the values that the codes of a dictionary stand for."""
    from pyarrow import DictionaryArray

    array.validate(full=True)
    refuse_nulls(location, array)
    values, codes = _unwrap(location, array.dictionary), array.indices
    if infer_column_type(values.type) in (ColumnType("str"), ColumnType("bytes")):
        sizes = np.diff(read_list_offsets(location, values))
        needed = int(sizes[codes.to_numpy(zero_copy_only=False)].sum())
    else:
        value_bytes = -(-int(values.nbytes) // max(1, len(values)))  # all have the same size
        needed = len(codes) * value_bytes
    check_size(location, codes.nbytes + values.nbytes, needed)
    if values.type != array.dictionary.type:  # views must be converted before the lookup
        array = DictionaryArray.from_arrays(codes, values)
    return array.dictionary_decode()


def _view_sizes(array: pa.Array) -> NDArray[np.int64]:
    """Return the size of each view of a column in bytes, int64 (rows,)."""
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(len(array), dtype=np.int64)
    words = np.frombuffer(buffer, dtype=np.int32, count=4 * (array.offset + len(array)))
    return words[4 * array.offset :: 4].astype(np.int64)


def _decode_text(location: DataLocation, array: pa.Array) -> DecodedColumn:
    offsets = read_list_offsets(location, array)
    raw = array.buffers()[2]
    values = np.empty(0, np.uint8) if raw is None else np.frombuffer(raw, dtype=np.uint8)
    return DecodedColumn(values, offsets)


def _decode_numbers(
    location: DataLocation, array: pa.Array, offsets: NDArray[np.int64] | None
) -> NDArray[Any]:
    from pyarrow import types

    refuse_nulls(location, array, offsets)
    if types.is_fixed_size_list(array.type):
        size = array.type.list_size
        inner = array.values.slice(array.offset * size, len(array) * size)
        flat = _decode_numbers(location, inner, None if offsets is None else offsets * size)
        return flat.reshape(len(array), size, *flat.shape[1:])
    if find_logical_type(array.type) is not None:
        return view_integers(array)
    return view_numbers(array)


def refuse_nulls(
    location: DataLocation, array: Any, offsets: NDArray[np.int64] | None = None
) -> None:
    """Raise if a value is missing.

    Args:
        location: The column, for messages.
        array: The values, or those inside of its lists.
        offsets: int64 (rows+1,), the offsets of the lists in the values.

    Raises:
        DecodeError: If one is; the message names the row.
    """
    if not array.null_count:
        return
    missing = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
    if not len(missing):
        raise make_damage_error(location, "a null count that does not match")
    row = int(missing[0])
    if offsets is not None:
        row = int(np.searchsorted(offsets, row, side="right")) - 1
    row += location.first_row if isinstance(location, TableLocation) else 0
    inside = "" if offsets is None else " inside its list"
    raise location.make_error(
        DecodeError,
        f"must not hold missing values, but holds one in row {row}{inside}. Fill it or drop the "
        "row",
        row=row,
    )
