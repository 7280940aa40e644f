"""Sequences, one after the other, into one buffer per field.

A value is copied when it is given, so that a generator may reuse its arrays, and costs no Python
object afterwards. Place in the flow: the writer and the memory store share it. Reads: sequences.
Makes: values and offsets.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError
from seqdata.kernel.dispatch import Kernel
from seqdata.kernel.pack_rows import MOST_KEY, Kind, Loan
from seqdata.protocols import Field
from seqdata.storage.fields import TEXTS, Deviation, as_array, field_width
from seqdata.storage.hashing import hash_texts
from seqdata.storage.unique_ids import check_ids

_LENT = 1 << 17  # bytes of text that the kernel packs at once
_SMALLEST = 1 << 16  # bytes that a buffer has room for at first
MAX_KEY = MOST_KEY  # bytes of an id
Packed = Mapping[str, tuple[NDArray[Any], NDArray[np.int64] | None]]
"""Field -> what its packer gave: values, and offsets where it has any."""


class Packer(Protocol):
    """Collects one field."""

    def add(self, value: Any) -> int:
        """Copy the value of one more sequence; gives the bytes that it takes."""
        ...

    def take(self) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
        """Give (values, offsets or None) of what was added, and start anew."""
        ...

    def lend(self, name: str, most: int) -> Loan:
        """Give room for values of up to ``most`` sequences, for the kernel to copy into."""
        ...

    def keep(self, count: int, used: int) -> None:
        """Keep what the kernel copied: the values of ``count`` sequences, ``used`` bytes in all."""
        ...


class RaggedPacker:
    """Collects arrays (length, *shape) of a field that runs along an axis."""

    __slots__ = ("_buffer", "_dimensions", "_dtype", "_ends", "_lent", "_shape", "_used", "_width")

    def __init__(self, field: Field) -> None:
        self._dtype = np.dtype(field.dtype)
        self._shape = field.shape
        self._dimensions = 1 + len(field.shape)
        self._width = field_width(field)
        self._restart(max(1, _SMALLEST // self._width))

    def _restart(self, rows: int) -> None:
        self._buffer = np.empty((rows, *self._shape), dtype=self._dtype)
        self._ends = array("q", [0])
        self._used = 0

    def add(self, value: Any) -> int:
        """Copy the value of one more sequence; gives the bytes that it takes."""
        if (
            type(value) is not np.ndarray
            or value.dtype is not self._dtype
            or value.ndim != self._dimensions
            or (self._shape and value.shape[1:] != self._shape)
        ):
            value = self._accept(value)
        first = self._used
        stop = first + len(value)
        if stop > len(self._buffer):
            self._grow(stop)
        self._buffer[first:stop] = value
        self._used = stop
        self._ends.append(stop)
        return (stop - first) * self._width + 8

    def _grow(self, needed: int) -> None:
        """Move to a larger buffer, of which only what is written to takes memory."""
        rows = max(needed, 2 * len(self._buffer))
        larger = np.empty((rows, *self._shape), dtype=self._dtype)
        larger[: self._used] = self._buffer[: self._used]
        self._buffer = larger

    def _accept(self, value: Any) -> NDArray[Any]:
        if isinstance(value, bytes | bytearray) and self._dtype == np.uint8 and not self._shape:
            return np.frombuffer(value, dtype=np.uint8)
        if isinstance(value, list | tuple) and not len(value):
            return np.empty((0, *self._shape), dtype=self._dtype)
        array = as_array(value)
        if array.dtype != self._dtype:
            raise Deviation(_wrong_dtype(array, self._dtype))
        if array.ndim == 0 or array.shape[1:] != self._shape:
            must = ", ".join(["T", *map(str, self._shape)])
            raise Deviation(
                f"has shape {array.shape}, must be ({must}) as in sequence 0; reshape it, or name "
                "its axis in `axes`"
            )
        return array

    def take(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Give (values, offsets) of what was added, and start anew."""
        values = self._buffer[: self._used]
        offsets = np.array(self._ends, dtype=np.int64)
        self._restart(len(self._buffer))  # the next shard is about as large
        return values, offsets

    def lend(self, name: str, most: int) -> Loan:
        """Give room for values of up to ``most`` sequences, for the kernel to copy into."""
        self._lent = np.empty(most, dtype=np.int64)
        return Loan(
            name, Kind.RAGGED, None, self._dtype, self._shape, self._width, self._buffer,
            self._used * self._width, self._lent,
        )  # fmt: skip

    def keep(self, count: int, used: int) -> None:
        """Keep what the kernel copied: the values of ``count`` sequences, ``used`` bytes in all."""
        self._ends.frombytes(self._lent[:count].tobytes())
        self._used = used // self._width


class FixedPacker:
    """Collects one number, or one array of a fixed shape, per sequence."""

    __slots__ = ("_buffer", "_dtype", "_kind", "_shape", "_used", "_width")

    def __init__(self, field: Field) -> None:
        self._dtype = np.dtype(field.dtype)
        self._shape = field.shape
        self._width = field_width(field)
        plain = {"int64": int, "float64": float, "bool": bool}
        self._kind = plain.get(field.dtype, self._dtype.type) if not field.shape else None
        self._restart()

    def _restart(self) -> None:
        rows = max(1, _SMALLEST // self._width)
        self._buffer = np.empty((rows, *self._shape), dtype=self._dtype)
        self._used = 0

    def add(self, value: Any) -> int:
        """Copy the value of one more sequence; gives the bytes that it takes."""
        if type(value) is not self._kind:
            value = self._accept(value)
        if self._used == len(self._buffer):
            self._buffer.resize((2 * self._used, *self._shape), refcheck=False)
        try:
            self._buffer[self._used] = value
        except OverflowError as error:
            raise Deviation(f"is {value!r}, must fit {self._dtype.name}; convert it") from error
        self._used += 1
        return self._width

    def _accept(self, value: Any) -> NDArray[Any]:
        array = as_array(value)
        if array.dtype != self._dtype:
            raise Deviation(_wrong_dtype(array, self._dtype))
        if array.shape != self._shape:
            raise Deviation(
                f"has shape {array.shape}, must be {self._shape} as in sequence 0; reshape it, or "
                "name its axis in `axes`"
            )
        return array

    def take(self) -> tuple[NDArray[Any], None]:
        """Give (values, None) of what was added, and start anew."""
        self._buffer.resize((self._used, *self._shape), refcheck=False)
        values = self._buffer
        self._restart()
        return values, None

    def lend(self, name: str, most: int) -> Loan:
        """Give room for values of up to ``most`` sequences, for the kernel to copy into."""
        del most
        kind = Kind.FIXED if self._shape else Kind.NUMBER
        dtype = self._dtype if self._shape else self._dtype.type
        return Loan(
            name, kind, self._kind, dtype, self._shape, self._width, self._buffer,
            self._used * self._width, None,
        )  # fmt: skip

    def keep(self, count: int, used: int) -> None:
        """Keep what the kernel copied: the values of ``count`` sequences, ``used`` bytes in all."""
        del count
        self._used = used // self._width


class TextPacker:
    """Collects one ``str`` or ``bytes`` per sequence; ids are short and have no NUL."""

    __slots__ = ("_buffer", "_ends", "_is_key", "_is_text", "_lent")

    def __init__(self, field: Field, *, is_key: bool = False) -> None:
        self._is_text = field.dtype == "str"
        self._is_key = is_key and self._is_text
        self._restart()

    def _restart(self) -> None:
        self._buffer = bytearray()
        self._ends = array("q", [0])

    def add(self, value: Any) -> int:
        """Copy the value of one more sequence; gives the bytes that it takes."""
        if self._is_text:
            if not isinstance(value, str):
                raise Deviation(_wrong_type(value, "str"))
            try:
                value = value.encode()
            except UnicodeEncodeError as error:
                raise Deviation(f"is {value!r}, must be valid Unicode; clean it") from error
        elif not isinstance(value, bytes | bytearray):
            raise Deviation(_wrong_type(value, "bytes"))
        if self._is_key and (len(value) > MAX_KEY or b"\0" in value):
            raise Deviation(
                f"is an id of {len(value)} bytes that begins {value[:40]!r}, must have at most "
                f"{MAX_KEY} and no NUL; shorten it"
            )
        self._buffer += value
        self._ends.append(len(self._buffer))
        return len(value) + 8

    def take(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Give (bytes, offsets) of what was added, and start anew."""
        values = np.frombuffer(self._buffer, dtype=np.uint8)
        offsets = np.array(self._ends, dtype=np.int64)
        self._restart()
        return values, offsets

    def lend(self, name: str, most: int) -> Loan:
        """Give room for values of up to ``most`` sequences, for the kernel to copy into."""
        self._lent = np.empty(_LENT, dtype=np.uint8), np.empty(most, dtype=np.int64)
        text = Kind.KEY if self._is_key else Kind.TEXT
        return Loan(
            name, text if self._is_text else Kind.BYTES, None, None, (), 1, self._lent[0], 0,
            self._lent[1],
        )  # fmt: skip

    def keep(self, count: int, used: int) -> None:
        """Keep what the kernel copied: the values of ``count`` sequences, ``used`` bytes in all."""
        values, ends = self._lent
        before = len(self._buffer)
        self._buffer += values[:used].data
        self._ends.frombytes((ends[:count] + before).tobytes())


def _wrong_dtype(array: NDArray[Any], dtype: np.dtype[Any]) -> str:
    return f"has dtype {array.dtype.name}, must be {dtype.name} as in sequence 0; convert it"


def _wrong_type(value: Any, must: str) -> str:
    return f"is a {type(value).__name__}, must be {must} as in sequence 0; convert it"


def make_packer(field: Field, *, is_key: bool = False) -> Packer:
    """Give the packer of a field."""
    if field.dtype in TEXTS:
        return TextPacker(field, is_key=is_key)
    return FixedPacker(field) if field.axis is None else RaggedPacker(field)


def name_sequence(number: int, sequence: Any, key: str) -> str:
    """Name a sequence in a message: its number, and its id where it has one."""
    name = sequence.get(key) if isinstance(sequence, Mapping) else None
    return f"sequence {number} ({name!r})" if isinstance(name, str) else f"sequence {number}"


def pack_one(packers: Mapping[str, Packer], sequence: Any, number: int, key: str) -> int:
    """Give one more sequence to the packers; gives the bytes that it takes.

    Raises:
        DecodeError: If it is not what sequence 0 was, naming the place and what must be.
    """
    is_mapping = type(sequence) is dict or isinstance(sequence, Mapping)
    if not is_mapping or len(sequence) != len(packers):
        raise _wrong_fields(packers, sequence, number, key)
    size = 0
    name = ""
    try:
        for name, packer in packers.items():
            size += packer.add(sequence[name])
    except Deviation as deviation:
        raise DecodeError.at(
            f"{name_sequence(number, sequence, key)}, field {name!r}: {deviation}",
            sequence=number, field=name,
        ) from deviation  # fmt: skip
    except KeyError as error:
        raise _wrong_fields(packers, sequence, number, key) from error
    return size


def pack_many(
    engine: Kernel, packers: Mapping[str, Packer], rows: Iterator[Any], most: int, stop: int
) -> tuple[int, int, tuple[Any, ...] | None]:
    """Give sequences to the packers while they are plain, up to ``most`` or ``stop`` bytes.

    Returns:
        How many; the bytes that they take; and what comes next: the sequence that is not plain, in
        a tuple; an empty one; None where there are no more.
    """
    loans = tuple(packer.lend(name, most) for name, packer in packers.items())
    count, size, used, left = engine.pack(rows, loans, np.ndarray, most, stop)
    for packer, bytes_ in zip(packers.values(), used, strict=True):
        packer.keep(count, bytes_)
    return count, size, left


def _wrong_fields(
    packers: Mapping[str, Packer], sequence: Any, number: int, key: str
) -> DecodeError:
    where = name_sequence(number, sequence, key)
    if not isinstance(sequence, Mapping):
        return DecodeError.at(
            f"{where}: is a {type(sequence).__name__}, must be a dict of fields as sequence 0; "
            "give dicts throughout",
            sequence=number,
        )
    missing = [name for name in packers if name not in sequence]
    extra = [str(name) for name in sequence if name not in packers]
    return DecodeError.at(
        f"{where}: lacks fields {missing} and has fields {extra} too many, must have those of "
        f"sequence 0 ({', '.join(packers)}); give every sequence the same fields",
        sequence=number,
    )


def check_axes(
    fields: Mapping[str, Field],
    packed: Packed,
    first: int,
    key: str,
) -> dict[str, NDArray[np.int64]]:
    """Give axis -> lengths, int64 (sequences,), where all fields of an axis agree on them.

    Args:
        fields: Name -> field.
        packed: Name -> what its packer gave.
        first: Number of the first sequence.
        key: The field of ids.

    Raises:
        DecodeError: If they do not, naming the first sequence and both fields.
    """
    found: dict[str, tuple[str, NDArray[np.int64]]] = {}
    for name, field in fields.items():
        offsets = packed[name][1]
        if field.axis is None or offsets is None:
            continue
        lengths = np.diff(offsets)
        other, others = found.setdefault(field.axis, (name, lengths))
        if (lengths != others).any():
            at = int(np.flatnonzero(lengths != others)[0])
            raise DecodeError.at(
                f"sequence {first + at}{_id_of(packed.get(key), fields.get(key), at)}, field "
                f"{name!r}: has {lengths[at]} timesteps but field {other!r} has {others[at]}, must "
                f"be equal on axis {field.axis!r}; cut them alike, or give them different `axes`",
                sequence=first + at, field=name,
            )  # fmt: skip
    return {axis: lengths for axis, (_, lengths) in found.items()}


def check_keys(fields: Mapping[str, Field], packed: Packed, key: str, first: int) -> None:
    """Refuse one id twice among packed sequences.

    Args:
        fields: Name -> field.
        packed: Field -> values and offsets.
        key: The field of ids, if there is one of that name.
        first: Number of the first sequence.

    Raises:
        DecodeError: If there is one, naming both sequences.
    """
    if key not in fields or fields[key].dtype != "str":
        return
    values, offsets = packed[key]
    edges = np.asarray(offsets)
    check_ids(
        hash_texts(values, edges),
        lambda i: values[edges[i] : edges[i + 1]].tobytes().decode(),
        first,
    )


def _id_of(packed: Any, field: Field | None, at: int) -> str:
    if packed is None or field is None or field.dtype != "str":
        return ""
    values, offsets = packed
    return f" ({values[offsets[at] : offsets[at + 1]].tobytes().decode()!r})"
