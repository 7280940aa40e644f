"""Fields and their kinds: numbers, text and bytes.

Everything particular to a kind is here: its values, the packer that collects them, the unit that
extents count, what is stored, and the result of a read. Another kind is another entry of ``KINDS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, UnknownNameError, describe_unknown_name
from seqdata.index import DEFAULT_AXIS
from seqdata.kernel.pack_rows import MAX_KEY_BYTES, FieldKind
from seqdata.protocols import Field
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.logical_values import LogicalPacker, encode_values
from seqdata.storage.packing import (
    NUMBER_DTYPES,
    BytesPacker,
    FieldMismatch,
    FixedPacker,
    Packer,
    RaggedPacker,
    as_array,
)

ID_FIELD = "id"  # names sequences, unless another field is said to
MAX_WIDTH = 1 << 31  # bytes per timestep


class ValueKind(Protocol):
    """A kind of field: its values, packing and reading."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Values of ``Field.dtype`` that are of this kind."""
        ...

    @property
    def value_type(self) -> type:
        """The type of one value."""
        ...

    @property
    def is_array(self) -> bool:
        """Whether values are arrays, which are read as a ``Column``; else as a list of objects."""
        ...

    @property
    def is_id(self) -> bool:
        """Whether a value can be the id of a sequence."""
        ...

    @property
    def empty(self) -> Any:
        """The empty value of this kind; None for arrays, whose empty value has no timesteps."""
        ...

    @property
    def arrow_type(self) -> str | None:
        """The function of pyarrow that returns the type of a column; None: by the dtype."""
        ...

    def infer(self, name: str, value: Any, axes: Mapping[str, str | None]) -> Field | None:
        """Return the field of a value; None if it is not of this kind.

        Raises:
            ConfigError: If ``axes`` gives it an axis that it cannot have.
            FieldMismatch: If it cannot be stored.
        """
        ...

    def make_packer(self, field: Field, *, is_key: bool) -> Packer:
        """Return the packer of values; with ``is_key`` they must be valid ids."""
        ...

    def width(self, field: Field) -> int:
        """Return the unit of extents in bytes: the size of a timestep or of a value, or 1."""
        ...

    @property
    def decode(self) -> Callable[[bytes], Any]:
        """Function from bytes to a value; it may raise ``UnicodeDecodeError``."""
        ...

    def stored_dtype(self, field: Field) -> np.dtype[Any]:
        """Return the dtype of an element as it is stored: uint8 where a value is an object."""
        ...

    def gather(self, field: Field, values: list[Any]) -> ArrayColumn | list[Any]:
        """Return the column of values in memory: arrays (length, *shape), or objects."""
        ...


@dataclass(frozen=True, slots=True)
class NumberKind:
    """Fields of numbers: an array along an axis, or one array or number per sequence."""

    dtypes = NUMBER_DTYPES
    value_type = np.ndarray
    is_array = True
    is_id = False
    empty = None
    arrow_type = None
    decode = staticmethod(bytes)

    def infer(self, name: str, value: Any, axes: Mapping[str, str | None]) -> Field | None:
        """Return the field of a value; see ``ValueKind``."""
        encoded = encode_values(value)
        array = as_array(value) if encoded is None else encoded.values
        logical = None if encoded is None else encoded.logical
        if array.ndim == 0:
            if axes.get(name) is not None:
                raise ConfigError(
                    f"`axes`: field {name!r} must not have an axis, since it is one number per "
                    "sequence; leave it out"
                )
            return Field(array.dtype.name, (), None, logical)
        axis = axes.get(name, DEFAULT_AXIS)
        shape = array.shape[1:] if axis is not None else array.shape
        field = Field(array.dtype.name, shape, axis, logical)
        per = "sequence" if axis is None else "timestep"
        if not self.width(field):
            raise FieldMismatch(
                f"must have at least one number per {per}, but has shape {array.shape}. Leave it "
                "out"
            )
        if self.width(field) >= MAX_WIDTH:
            raise FieldMismatch(
                f"must have less than {MAX_WIDTH} bytes per {per}, but has {self.width(field)}. "
                "Split it into several fields"
            )
        return field

    def make_packer(self, field: Field, *, is_key: bool) -> Packer:
        """Return the packer of values; see ``ValueKind``."""
        del is_key
        width = self.width(field)
        packer = FixedPacker(field, width) if field.axis is None else RaggedPacker(field, width)
        return packer if field.logical is None else LogicalPacker(packer, field.logical)

    def width(self, field: Field) -> int:
        """Return the bytes of a timestep, or of a whole value if there is no axis."""
        width = np.dtype(field.dtype).itemsize
        for size in field.shape:
            width *= size
        return width

    def stored_dtype(self, field: Field) -> np.dtype[Any]:
        """Return the dtype of the field."""
        return np.dtype(field.dtype)

    def gather(self, field: Field, values: list[Any]) -> ArrayColumn:
        """Return the column of arrays in memory."""
        return ArrayColumn(np.dtype(field.dtype), field.shape, values)


class _StoredAsBytes:
    """Values of any number of bytes, one per sequence: the part that text and bytes share."""

    __slots__ = ()

    def width(self, field: Field) -> int:
        """Return 1: extents count bytes."""
        del field
        return 1

    def stored_dtype(self, field: Field) -> np.dtype[Any]:
        """Return uint8: bytes."""
        del field
        return np.dtype(np.uint8)

    def gather(self, field: Field, values: list[Any]) -> list[Any]:
        """Return the values."""
        del field
        return values


@dataclass(frozen=True, slots=True)
class TextKind(_StoredAsBytes):
    """Fields of strings, one per sequence, stored as UTF-8; one of them may hold the ids."""

    dtypes = ("str",)
    value_type = str
    is_array = False
    is_id = True
    empty = ""
    arrow_type = "large_utf8"
    decode = staticmethod(bytes.decode)

    def infer(self, name: str, value: Any, axes: Mapping[str, str | None]) -> Field | None:
        """Return the field of a value; see ``ValueKind``."""
        if not isinstance(value, str):
            return None
        if axes.get(name) is not None:
            raise ConfigError(
                f"`axes`: field {name!r} must not have an axis, since it is text; encode it to "
                "bytes"
            )
        return TEXT

    def make_packer(self, field: Field, *, is_key: bool) -> Packer:
        """Return the packer of values; see ``ValueKind``."""
        del field
        encode, packed_as = (
            (_encode_id, FieldKind.KEY) if is_key else (_encode_text, FieldKind.TEXT)
        )
        return BytesPacker(encode, packed_as)


@dataclass(frozen=True, slots=True)
class BytesKind(_StoredAsBytes):
    """Fields of ``bytes``, one per sequence; where ``axes`` names an axis, of numbers instead."""

    dtypes = ("bytes",)
    value_type = bytes
    is_array = False
    is_id = False
    empty = b""
    arrow_type = "large_binary"
    decode = staticmethod(bytes)

    def infer(self, name: str, value: Any, axes: Mapping[str, str | None]) -> Field | None:
        """Return the field of a value; see ``ValueKind``."""
        if not isinstance(value, bytes | bytearray):
            return None
        axis = axes.get(name)
        return RAW if axis is None else Field("uint8", (), axis)

    def make_packer(self, field: Field, *, is_key: bool) -> Packer:
        """Return the packer of values; see ``ValueKind``."""
        del field, is_key
        return BytesPacker(_encode_bytes, FieldKind.BYTES)


TEXT = Field("str", (), None)
RAW = Field("bytes", (), None)
KINDS: tuple[ValueKind, ...] = (TextKind(), BytesKind(), NumberKind())  # tried in this order
FIELD_DTYPES = tuple(dtype for kind in (KINDS[-1], *KINDS[:-1]) for dtype in kind.dtypes)
_KIND_OF = {dtype: kind for kind in KINDS for dtype in kind.dtypes}


def kind_of(field: Field) -> ValueKind:
    """Return the kind of a field; a dtype that no kind names is NumPy's."""
    return _KIND_OF.get(field.dtype, KINDS[-1])


def make_packer(field: Field, *, is_key: bool = False) -> Packer:
    """Return the packer of a field."""
    return kind_of(field).make_packer(field, is_key=is_key)


def field_width(field: Field) -> int:
    """Return the unit of a field's extents in bytes; see ``ValueKind.width``."""
    return kind_of(field).width(field)


def infer_object(value: Any) -> Field | None:
    """Return the field of a value that is not an array; None if it may be one."""
    for kind in KINDS:
        if not kind.is_array and isinstance(value, kind.value_type):
            return Field(kind.dtypes[0], (), None)
    return None


def find_key(fields: Mapping[str, Field], key: str) -> str | None:
    """Return the field of ids, if there is one of this name, else None."""
    return key if key in fields and kind_of(fields[key]).is_id else None


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise FieldMismatch(_describe_wrong_type(value, "str"))
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise FieldMismatch(f"must be valid Unicode, but is {value!r}. Clean it") from error


def _encode_id(value: Any) -> bytes:
    encoded = _encode_text(value)
    if len(encoded) > MAX_KEY_BYTES or b"\0" in encoded:
        raise FieldMismatch(
            f"must be an id of at most {MAX_KEY_BYTES} bytes without NUL, but has {len(encoded)} "
            f"bytes and begins with {encoded[:40]!r}. Shorten it"
        )
    return encoded


def _encode_bytes(value: Any) -> bytes | bytearray:
    if not isinstance(value, bytes | bytearray):
        raise FieldMismatch(_describe_wrong_type(value, "bytes"))
    return value


def _describe_wrong_type(value: Any, expected: str) -> str:
    return f"must be {expected} as in sequence 0, but is a {type(value).__name__}. Convert it"


def is_text(field: Field) -> bool:
    """Return whether the values of a field are text."""
    return kind_of(field).is_id


def has_numbers(field: Field, kinds: str) -> bool:
    """Return whether the values of a field are numbers of these kinds of NumPy, such as ``iu``."""
    return kind_of(field).is_array and np.dtype(field.dtype).kind in kinds


def make_unknown_name_error(
    context: str, kind: str, name: object, known: Iterable[str]
) -> UnknownNameError:
    """Return the error about an unknown name, with the most similar and all known names."""
    return UnknownNameError(f"{context}: {describe_unknown_name(kind, name, sorted(known))}")


def default_axis(axes: Iterable[str]) -> str:
    """Return ``time``, or the first axis where there is no ``time``."""
    names = list(axes)
    return DEFAULT_AXIS if DEFAULT_AXIS in names else names[0]


def list_axes(fields: Mapping[str, Field]) -> list[str]:
    """Return the axes of ragged fields, in the order of the fields."""
    return list(dict.fromkeys(field.axis for field in fields.values() if field.axis is not None))


ShardExtents = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Begins and ends of the values of one shard's sequences, int64 (sequences,) each."""


def extents_of(offsets: Iterable[NDArray[np.int64]]) -> tuple[ShardExtents, ...]:
    """Return the extents of contiguous values; nothing is copied.

    Args:
        offsets: Per shard, int64 (sequences+1,).

    Examples:
        >>> extents_of([np.array([0, 2, 5])])
        ((array([0, 2]), array([2, 5])),)
    """
    return tuple((each[:-1], each[1:]) for each in offsets)
