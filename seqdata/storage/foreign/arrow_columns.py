"""Columns of other people's Arrow data: what field each is, and its numbers as NumPy arrays.

Nothing is copied where Arrow's buffers are already what NumPy wants. Place in the flow: foreign
files are surveyed and read through it. Reads: one column of one record batch. Makes: values and
offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, DecodeError
from seqdata.storage.data_location import Place
from seqdata.storage.limits import check_size

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Kind:
    """What a column holds, as far as its type says.

    Attributes:
        dtype: NumPy name of one element, or ``str`` or ``bytes``.
        shape: Of one timestep, or of the whole value.
        ragged: Whether a cell is a list of timesteps.
        nested: Whether timesteps are lists themselves, whose width only the data tells.
        plain: Whether the buffers can be used as they are.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    ragged: bool = False
    nested: bool = False
    plain: bool = True

    @property
    def is_text(self) -> bool:
        """Whether a cell is one ``str`` or ``bytes``."""
        return self.dtype in ("str", "bytes")

    def alike(self, other: Kind | None) -> bool:
        """Tell whether both are the same field, however they are stored."""
        return other is not None and replace(self, plain=True) == replace(other, plain=True)


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """One column of one record batch or row group.

    Attributes:
        values: (timesteps, *shape), or bytes of text, uint8.
        offsets: int64 (rows+1,), row -> values; None: one value each.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.values.nbytes + (0 if self.offsets is None else self.offsets.nbytes)


def kind_of(type_: pa.DataType) -> Kind | None:
    """Give what a column of a type holds; None where it cannot be a field."""
    from pyarrow import BaseExtensionType, types

    if isinstance(type_, BaseExtensionType):
        stored = kind_of(type_.storage_type)
        return None if stored is None else replace(stored, plain=False)
    if types.is_dictionary(type_):
        stored = kind_of(type_.value_type)
        return None if stored is None or stored.ragged else replace(stored, plain=False)
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return Kind("str", plain=not types.is_string_view(type_))
    if types.is_binary(type_) or types.is_large_binary(type_):
        return Kind("bytes")
    if types.is_binary_view(type_) or types.is_fixed_size_binary(type_):
        return Kind("bytes", plain=False)
    if types.is_list(type_) or types.is_large_list(type_):
        inner = type_.value_type
        nested = types.is_list(inner) or types.is_large_list(inner)
        cell = _numbers_of(inner.value_type if nested else inner)
        return None if cell is None else replace(cell, ragged=True, nested=nested)
    return _numbers_of(type_)


def _numbers_of(type_: pa.DataType) -> Kind | None:
    from pyarrow import types

    if types.is_fixed_size_list(type_):
        inner = _numbers_of(type_.value_type)
        if inner is None or type_.list_size < 1:
            return None
        return replace(inner, shape=(type_.list_size, *inner.shape))
    if types.is_boolean(type_):
        return Kind("bool", plain=False)  # bits
    if types.is_integer(type_) or types.is_floating(type_):
        return Kind(np.dtype(type_.to_pandas_dtype()).name)
    return None


def depth_of(type_: pa.DataType) -> int:
    """Give how many types lie inside of one another."""
    from pyarrow import BaseExtensionType, types

    if isinstance(type_, BaseExtensionType):
        return 1 + depth_of(type_.storage_type)
    lists = types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    return 1 + depth_of(type_.value_type) if lists or types.is_dictionary(type_) else 1


def decode(where: Place, array: pa.Array, kind: Kind, width: int | None = None) -> Decoded:
    """Give a column's values and offsets.

    Args:
        where: Unit and column, for messages.
        array: One record batch's or row group's.
        kind: What it holds.
        width: Of the timesteps of a nested column.

    Raises:
        DecodeError: If a value is missing; naming column and row.
        CorruptShardError: If the offsets cannot be true.
    """
    array = _unwrapped(where, array)
    _refuse_nulls(where, array, None)
    if kind.is_text:
        return _text(where, array)
    if not kind.ragged:
        return Decoded(_numbers(where, array, None), None)
    offsets = list_offsets(where, array)
    first, stop = int(offsets[0]), int(offsets[-1])
    inner = array.values.slice(first, stop - first)
    offsets = offsets - first if first else offsets
    if kind.nested:
        _refuse_nulls(where, inner, offsets)
        edges = list_offsets(where, inner)
        flat = _numbers(where, inner.values.slice(int(edges[0]), int(edges[-1] - edges[0])), None)
        size = int(edges[-1] - edges[0]) // max(1, len(inner)) if width is None else width
        if (np.diff(edges) != size).any():
            raise _corrupt(where, f"timesteps of other than {size} numbers")
        return Decoded(flat.reshape(-1, size, *flat.shape[1:]), offsets)
    return Decoded(_numbers(where, inner, offsets), offsets)


def list_offsets(where: Place, array: pa.Array) -> NDArray[np.int64]:
    """Give where each list or text begins and ends, int64 (rows+1,), within the column's values.

    Raises:
        CorruptShardError: If they do not rise.
    """
    from pyarrow import types

    type_ = array.type
    wide = (
        types.is_large_list(type_) or types.is_large_string(type_) or types.is_large_binary(type_)
    )
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(len(array) + 1, dtype=np.int64)
    dtype = np.dtype(np.int64 if wide else np.int32)
    raw = np.frombuffer(buffer, dtype, buffer.size // dtype.itemsize)
    found = raw[array.offset : array.offset + len(array) + 1].astype(np.int64, copy=False)
    if len(found) <= len(array) or found[0] < 0 or (found[1:] < found[:-1]).any():
        raise _corrupt(where, "offsets that do not rise")
    return found


def row_lengths(
    where: Place, array: pa.Array, kind: Kind
) -> tuple[NDArray[np.int64], tuple[int, int] | None]:
    """Give the timesteps of each row, int64 (rows,), and the narrowest and widest timestep.

    The latter is None where the type says it, or there is no timestep.

    Raises:
        DecodeError: If a row is missing.
        CorruptShardError: If the offsets cannot be true.
    """
    array = _unwrapped(where, array)
    _refuse_nulls(where, array, None)
    offsets = list_offsets(where, array)
    if not kind.nested:
        return np.diff(offsets), None
    inner = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    widths = np.diff(list_offsets(where, inner))
    seen = (int(widths.min()), int(widths.max())) if len(widths) else None
    return np.diff(offsets), seen


def has_nulls(array: pa.Array) -> bool:
    """Tell whether a value is missing, at any depth."""
    from pyarrow import types

    if array.null_count:
        return True
    type_ = array.type
    lists = types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    return lists and has_nulls(array.values)


def _unwrapped(where: Place, array: pa.Array) -> pa.Array:
    """Give a column as plain numbers, lists or text.

    pyarrow follows indices and views of bytes without a look, so all of them are checked before.
    """
    from pyarrow import BaseExtensionType, large_binary, large_string, types

    while isinstance(array.type, BaseExtensionType):
        array = array.storage
    if types.is_dictionary(array.type):
        return _looked_up(where, array)
    if types.is_string_view(array.type) or types.is_binary_view(array.type):
        array.validate(full=True)
        stored = sum(buffer.size for buffer in array.buffers() if buffer is not None)
        check_size(where, stored, int(_view_sizes(array).sum()))
        return array.cast(
            large_string() if types.is_string_view(array.type) else large_binary(), safe=True
        )
    return array.cast(large_binary()) if types.is_fixed_size_binary(array.type) else array


def _looked_up(where: Place, array: pa.DictionaryArray) -> pa.Array:
    """Give the values that the codes of a dictionary stand for."""
    from pyarrow import DictionaryArray

    array.validate(full=True)
    _refuse_nulls(where, array, None)
    values, used = _unwrapped(where, array.dictionary), array.indices
    if kind_of(values.type) in (Kind("str"), Kind("bytes")):
        sizes = np.diff(list_offsets(where, values))
        needed = int(sizes[used.to_numpy(zero_copy_only=False)].sum())
    else:
        needed = len(used) * -(-int(values.nbytes) // max(1, len(values)))  # all are of one size
    check_size(where, used.nbytes + values.nbytes, needed)
    if values.type != array.dictionary.type:  # what was views, say, cannot be looked up as it is
        array = DictionaryArray.from_arrays(used, values)
    return array.dictionary_decode()


def _view_sizes(array: pa.Array) -> NDArray[np.int64]:
    """Give the bytes that each view of a column asks for, int64 (rows,)."""
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(len(array), dtype=np.int64)
    words = np.frombuffer(buffer, dtype=np.int32, count=4 * (array.offset + len(array)))
    return words[4 * array.offset :: 4].astype(np.int64)


def _text(where: Place, array: pa.Array) -> Decoded:
    offsets = list_offsets(where, array)
    raw = array.buffers()[2]
    values = np.empty(0, np.uint8) if raw is None else np.frombuffer(raw, dtype=np.uint8)
    return Decoded(values, offsets)


def _numbers(where: Place, array: pa.Array, offsets: NDArray[np.int64] | None) -> NDArray[Any]:
    from pyarrow import types

    _refuse_nulls(where, array, offsets)
    if types.is_fixed_size_list(array.type):
        size = array.type.list_size
        inner = array.values.slice(array.offset * size, len(array) * size)
        flat = _numbers(where, inner, None if offsets is None else offsets * size)
        return flat.reshape(len(array), size, *flat.shape[1:])
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def _refuse_nulls(where: Place, array: pa.Array, offsets: NDArray[np.int64] | None) -> None:
    if not array.null_count:
        return
    missing = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
    if not len(missing):
        raise _corrupt(where, "a count of nulls that are not there")
    place = int(missing[0])
    row = place if offsets is None else int(np.searchsorted(offsets, place, side="right")) - 1
    inside = "" if offsets is None else " inside its list"
    raise where.error(
        DecodeError,
        f"holds a null in row {row}{inside}, must hold none; fill it or drop the row, and write "
        "the file again",
        row=row,
    )


def _corrupt(where: Place, what: str) -> CorruptShardError:
    text = f"has {what}, must be as it was written; restore the file"
    return where.error(CorruptShardError, text)
