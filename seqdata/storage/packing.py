"""Packing of sequences into one buffer per field.

Values are copied when they are added, so that a generator may reuse its arrays, and no Python
object remains per value.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError
from seqdata.kernel.dispatch import Kernel
from seqdata.kernel.pack_rows import FieldBuffer, FieldKind
from seqdata.protocols import Field

NUMBER_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
)  # fmt: skip
_ALL_WHOLE = 1 << 53  # float64 holds every integer up to it
_TEXT_BUFFER_BYTES = 1 << 17  # bytes of text that the kernel packs at once
_INITIAL_BYTES = 1 << 16  # initial size of a buffer in bytes


class FieldMismatch(Exception):
    """A value is not what its field must hold; becomes a DecodeError that names its location."""


def as_array(value: Any) -> NDArray[Any]:
    """Return numbers as an array of native byte order.

    Raises:
        FieldMismatch: If they are not numbers of one kind that can be stored.
    """
    if value is None:
        raise FieldMismatch("is None, which cannot be stored; fill it, or leave the sequence out")
    if isinstance(value, list | tuple) and not len(value):
        raise FieldMismatch("is an empty list, whose dtype is unknown; give np.empty(0, dtype)")
    if isinstance(value, np.ma.MaskedArray):
        raise FieldMismatch("is a masked array, whose mask would be lost; give plain numbers")
    if type(value) is not np.ndarray and (missing := _count_missing(value)):
        raise FieldMismatch(
            f"has {missing} missing values, which cannot be stored; fill them, or leave them out"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors with a graph
        is_list = isinstance(value, list | tuple) and isinstance(value[0], np.ndarray)
        raise FieldMismatch(
            f"is a {type(value).__name__} that NumPy cannot convert to an array ({error}); give "
            f"one array of numbers{', and zip a list of values and a list of labels' * is_list}"
        ) from error
    if array.dtype.name not in NUMBER_DTYPES:
        raise FieldMismatch(
            f"must have a dtype of {', '.join(NUMBER_DTYPES)}, but has {array.dtype.name}. "
            "Convert it"
        )
    if isinstance(value, list | tuple):
        _refuse_other_values(value, array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _refuse_other_values(value: Sequence[Any], array: NDArray[Any]) -> None:
    """Raise if a conversion changed numbers: True to 1, or a large integer to float64.

    Raises:
        FieldMismatch: If a number was changed.
    """
    if array.dtype == np.bool_:
        return
    items = value
    while items and isinstance(items[0], list | tuple):
        items = list(itertools.chain.from_iterable(items))
    types = set(map(type, items))
    if np.ndarray in types:
        types |= {item.dtype.type for item in items if isinstance(item, np.ndarray)}
    if not types.isdisjoint((bool, np.bool_)):
        raise FieldMismatch("is a list of booleans and numbers; give one of them")
    if array.dtype.kind != "f" or not (np.abs(array) >= _ALL_WHOLE).any():
        return
    for item in items:
        if isinstance(item, int | np.integer) and int(float(item)) != item:
            raise FieldMismatch(
                f"is a list whose integer {item} would be rounded to a float; give numbers that "
                "float64 holds, or integers only"
            )


def _count_missing(value: Any) -> int:
    """Return the nulls of an Arrow array, a Polars series or a nullable pandas one; not its NaN."""
    if hasattr(getattr(value, "dtype", None), "na_value"):
        return int(value.isna().sum())
    count = getattr(value, "null_count", 0)
    return int(count() if callable(count) else count)


class Packer(Protocol):
    """Collects one field."""

    def add(self, value: Any) -> int:
        """Append the value of one sequence; return its size in bytes."""
        ...

    def take(self) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
        """Return (values, offsets or None) of the added sequences, and reset."""
        ...

    def reserve(self, name: str, max_sequences: int) -> FieldBuffer:
        """Return space for values of ``max_sequences`` sequences that the kernel copies."""
        ...

    def commit(self, count: int, used: int) -> None:
        """Append the values that the kernel copied: ``count`` sequences, ``used`` bytes in all."""
        ...


class RaggedPacker:
    """Collects arrays (length, *shape) of a field that runs along an axis."""

    __slots__ = (
        "_buffer",
        "_dimensions",
        "_dtype",
        "_offsets",
        "_reserved",
        "_shape",
        "_used",
        "_width",
    )

    def __init__(self, field: Field, width: int) -> None:
        self._dtype = np.dtype(field.dtype)
        self._shape = field.shape
        self._dimensions = 1 + len(field.shape)
        self._width = width
        self._reset(max(1, _INITIAL_BYTES // self._width))

    def _reset(self, rows: int) -> None:
        self._buffer = np.empty((rows, *self._shape), dtype=self._dtype)
        self._offsets = array("q", [0])
        self._used = 0

    def add(self, value: Any) -> int:
        """Append the value of one sequence; return its size in bytes."""
        if (
            type(value) is not np.ndarray
            or value.dtype is not self._dtype
            or value.ndim != self._dimensions
            or (self._shape and value.shape[1:] != self._shape)
        ):
            value = self._convert(value)
        first = self._used
        stop = first + len(value)
        if stop > len(self._buffer):
            self._grow(stop)
        self._buffer[first:stop] = value
        self._used = stop
        self._offsets.append(stop)
        return (stop - first) * self._width + 8

    def _grow(self, needed: int) -> None:
        """Move to a larger buffer; its pages are allocated when they are written to."""
        rows = max(needed, 2 * len(self._buffer))
        larger = np.empty((rows, *self._shape), dtype=self._dtype)
        larger[: self._used] = self._buffer[: self._used]
        self._buffer = larger

    def _convert(self, value: Any) -> NDArray[Any]:
        if isinstance(value, bytes | bytearray) and self._dtype == np.uint8 and not self._shape:
            return np.frombuffer(value, dtype=np.uint8)
        if isinstance(value, list | tuple) and not len(value):
            return np.empty((0, *self._shape), dtype=self._dtype)
        array = as_array(value)
        if array.dtype != self._dtype:
            raise FieldMismatch(_describe_wrong_dtype(array, self._dtype))
        if array.ndim == 0 or array.shape[1:] != self._shape:
            expected = ", ".join(["T", *map(str, self._shape)])
            raise FieldMismatch(
                f"must have shape ({expected}) as in sequence 0, but has {array.shape}. Reshape "
                "it, or name its axis in `axes`"
            )
        return array

    def take(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return (values, offsets) of the added sequences, and reset."""
        values = self._buffer[: self._used]
        offsets = np.array(self._offsets, dtype=np.int64)
        self._reset(len(self._buffer))  # the next shard has about the same size
        return values, offsets

    def reserve(self, name: str, max_sequences: int) -> FieldBuffer:
        """Return space for values of ``max_sequences`` sequences that the kernel copies."""
        self._reserved = np.empty(max_sequences, dtype=np.int64)
        return FieldBuffer(
            name,
            FieldKind.RAGGED,
            None,
            self._dtype,
            self._shape,
            self._width,
            self._buffer,
            self._used * self._width,
            self._reserved,
        )

    def commit(self, count: int, used: int) -> None:
        """Append the values that the kernel copied: ``count`` sequences, ``used`` bytes in all."""
        self._offsets.frombytes(self._reserved[:count].tobytes())
        self._used = used // self._width


class FixedPacker:
    """Collects one number, or one array of a fixed shape, per sequence."""

    __slots__ = ("_buffer", "_dtype", "_scalar_type", "_shape", "_used", "_width")

    def __init__(self, field: Field, width: int) -> None:
        self._dtype = np.dtype(field.dtype)
        self._shape = field.shape
        self._width = width
        python_types = {"int64": int, "float64": float, "bool": bool}
        self._scalar_type = (
            python_types.get(field.dtype, self._dtype.type) if not field.shape else None
        )
        self._reset()

    def _reset(self) -> None:
        rows = max(1, _INITIAL_BYTES // self._width)
        self._buffer = np.empty((rows, *self._shape), dtype=self._dtype)
        self._used = 0

    def add(self, value: Any) -> int:
        """Append the value of one sequence; return its size in bytes."""
        if type(value) is not self._scalar_type:
            value = self._convert(value)
        if self._used == len(self._buffer):
            self._buffer.resize((2 * self._used, *self._shape), refcheck=False)
        try:
            self._buffer[self._used] = value
        except OverflowError as error:
            raise FieldMismatch(
                f"must fit {self._dtype.name}, but is {value!r}. Convert it"
            ) from error
        self._used += 1
        return self._width

    def _convert(self, value: Any) -> NDArray[Any]:
        array = as_array(value)
        if array.dtype != self._dtype:
            raise FieldMismatch(_describe_wrong_dtype(array, self._dtype))
        if array.shape != self._shape:
            raise FieldMismatch(
                f"must have shape {self._shape} as in sequence 0, but has {array.shape}. Reshape "
                "it, or name its axis in `axes`"
            )
        return array

    def take(self) -> tuple[NDArray[Any], None]:
        """Return (values, None) of the added sequences, and reset."""
        self._buffer.resize((self._used, *self._shape), refcheck=False)
        values = self._buffer
        self._reset()
        return values, None

    def reserve(self, name: str, max_sequences: int) -> FieldBuffer:
        """Return space for values of ``max_sequences`` sequences that the kernel copies."""
        del max_sequences
        kind = FieldKind.FIXED if self._shape else FieldKind.NUMBER
        dtype = self._dtype if self._shape else self._dtype.type
        return FieldBuffer(
            name,
            kind,
            self._scalar_type,
            dtype,
            self._shape,
            self._width,
            self._buffer,
            self._used * self._width,
            None,
        )

    def commit(self, count: int, used: int) -> None:
        """Append the values that the kernel copied: ``count`` sequences, ``used`` bytes in all."""
        del count
        self._used = used // self._width


class BytesPacker:
    """Collects the bytes of one object per sequence.

    Args:
        encode: Returns the bytes of a value, or raises ``FieldMismatch``.
        kind: The kind of such a value for the kernel.
    """

    __slots__ = ("_buffer", "_encode", "_kind", "_offsets", "_reserved")

    def __init__(self, encode: Callable[[Any], bytes | bytearray], kind: FieldKind) -> None:
        self._encode = encode
        self._kind = kind
        self._reset()

    def _reset(self) -> None:
        self._buffer = bytearray()
        self._offsets = array("q", [0])

    def add(self, value: Any) -> int:
        """Append the value of one sequence; return its size in bytes."""
        encoded = self._encode(value)
        self._buffer += encoded
        self._offsets.append(len(self._buffer))
        return len(encoded) + 8

    def take(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return (bytes, offsets) of the added sequences, and reset."""
        values = np.frombuffer(self._buffer, dtype=np.uint8)
        offsets = np.array(self._offsets, dtype=np.int64)
        self._reset()
        return values, offsets

    def reserve(self, name: str, max_sequences: int) -> FieldBuffer:
        """Return space for values of ``max_sequences`` sequences that the kernel copies."""
        self._reserved = (
            np.empty(_TEXT_BUFFER_BYTES, dtype=np.uint8),
            np.empty(max_sequences, dtype=np.int64),
        )
        values, ends = self._reserved
        return FieldBuffer(name, self._kind, None, None, (), 1, values, 0, ends)

    def commit(self, count: int, used: int) -> None:
        """Append the values that the kernel copied: ``count`` sequences, ``used`` bytes in all."""
        values, ends = self._reserved
        before = len(self._buffer)
        self._buffer += values[:used].data
        self._offsets.frombytes((ends[:count] + before).tobytes())


def _describe_wrong_dtype(array: NDArray[Any], dtype: np.dtype[Any]) -> str:
    return f"must have dtype {dtype.name} as in sequence 0, but has {array.dtype.name}. Convert it"


def describe_sequence(number: int, sequence: Any, key: str) -> str:
    """Return the name of a sequence for messages: its index, and its id if it has one."""
    name = sequence.get(key) if isinstance(sequence, Mapping) else None
    return f"sequence {number} ({name!r})" if isinstance(name, str) else f"sequence {number}"


def pack_sequence(packers: Mapping[str, Packer], sequence: Any, number: int, key: str) -> int:
    """Add one sequence to the packers; return its size in bytes.

    Raises:
        DecodeError: If it does not match sequence 0; the message names the field and the expected
            value.
    """
    is_mapping = type(sequence) is dict or isinstance(sequence, Mapping)
    if not is_mapping or len(sequence) != len(packers):
        raise _make_fields_error(packers, sequence, number, key)
    size = 0
    name = ""
    try:
        for name, packer in packers.items():
            size += packer.add(sequence[name])
    except FieldMismatch as mismatch:
        raise DecodeError.at(
            f"{describe_sequence(number, sequence, key)}, field {name!r}: {mismatch}",
            sequence=number, field=name,
        ) from mismatch  # fmt: skip
    except KeyError as error:
        raise _make_fields_error(packers, sequence, number, key) from error
    return size


def pack_sequences(
    engine: Kernel,
    packers: Mapping[str, Packer],
    rows: Iterator[Any],
    max_sequences: int,
    max_bytes: int,
) -> tuple[int, int, tuple[Any, ...] | None]:
    """Add sequences to the packers while the kernel can copy them, up to two bounds.

    Returns:
        Their number; their size in bytes; and the rest: a tuple with the sequence that is not
        plain, or an empty tuple; None if there are no more.
    """
    loans = tuple(packer.reserve(name, max_sequences) for name, packer in packers.items())
    count, size, used, unpacked = engine.pack(rows, loans, np.ndarray, max_sequences, max_bytes)
    for packer, bytes_ in zip(packers.values(), used, strict=True):
        packer.commit(count, bytes_)
    return count, size, unpacked


def _make_fields_error(
    packers: Mapping[str, Packer], sequence: Any, number: int, key: str
) -> DecodeError:
    label = describe_sequence(number, sequence, key)
    if not isinstance(sequence, Mapping):
        return DecodeError.at(
            f"{label}: must be a dict of fields like sequence 0, but is a "
            f"{type(sequence).__name__}. Pass dicts throughout",
            sequence=number,
        )
    missing = [name for name in packers if name not in sequence]
    extra = [str(name) for name in sequence if name not in packers]
    return DecodeError.at(
        f"{label}: must have the fields of sequence 0 ({', '.join(packers)}), but lacks {missing} "
        f"and has {extra} in addition. Give every sequence the same fields",
        sequence=number,
    )
