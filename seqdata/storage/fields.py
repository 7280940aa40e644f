"""What the first sequence says about a data set: its fields, and what a value must be.

The first sequence fixes the schema; whatever differs later is an error that names the place. Place
in the flow: the writer and the memory store share it. Reads: one sequence. Makes: fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DecodeError, UnknownNameError, did_you_mean
from seqdata.index import DEFAULT_AXIS
from seqdata.protocols import Field
from seqdata.storage.hashing import check_unique_ids, hash_texts

NUMBER_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
)  # fmt: skip
TEXT_DTYPES = ("str", "bytes")
MAX_WIDTH = 1 << 31  # bytes per timestep
_AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

PackedFields = Mapping[str, tuple[NDArray[Any], NDArray[np.int64] | None]]
"""Field -> what its packer gave: values, and offsets where it has any."""


class FieldMismatch(Exception):
    """A value is not what its field must hold; becomes a DecodeError where the place is known."""


def make_unknown_name_error(
    context: str, kind: str, name: object, known: Iterable[str]
) -> UnknownNameError:
    """Make the error for a name that is not there, with the nearest one that is."""
    names = sorted(known)
    hint = did_you_mean(name, names) or f"choose one of them as `{kind}`"
    return UnknownNameError(
        f"{context}: no {kind} {name!r}, must be one of {', '.join(names)}; {hint}"
    )


def default_axis(axes: Iterable[str]) -> str:
    """Return ``time``, or the first axis where there is no ``time``."""
    names = list(axes)
    return DEFAULT_AXIS if DEFAULT_AXIS in names else names[0]


def list_axes(fields: Mapping[str, Field]) -> list[str]:
    """Return the axes of ragged fields, in the order of the fields."""
    return list(dict.fromkeys(field.axis for field in fields.values() if field.axis is not None))


def field_width(field: Field) -> int:
    """Return the bytes of one timestep, or of the whole value where there is no axis."""
    width = np.dtype(field.dtype).itemsize
    for size in field.shape:
        width *= size
    return width


def as_array(value: Any) -> NDArray[Any]:
    """Return numbers as an array of native byte order.

    Raises:
        Deviation: If they are not numbers of one kind that can be stored.
    """
    if value is None:
        raise FieldMismatch("is None, which cannot be stored; fill it, or leave the sequence out")
    if isinstance(value, list | tuple) and not len(value):
        raise FieldMismatch("is an empty list, whose dtype nobody knows; give np.empty(0, dtype)")
    if isinstance(value, np.ma.MaskedArray):
        raise FieldMismatch("is a masked array, whose mask would be lost; give plain numbers")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors with a graph
        raise FieldMismatch(
            f"is a {type(value).__name__} that is no array ({error}); give one array of numbers"
        ) from error
    if array.dtype.name not in NUMBER_DTYPES:
        raise FieldMismatch(
            f"has dtype {array.dtype.name}, must be one of {', '.join(NUMBER_DTYPES)}; convert it"
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def infer_fields(
    sequence: Mapping[str, Any], axes: Mapping[str, str | None] | None
) -> dict[str, Field]:
    """Return the fields that the first sequence shows.

    Args:
        sequence: Field -> array, scalar, ``str`` or ``bytes``.
        axes: Field -> axis; None: a vector per sequence. Arrays that are not named run on ``time``.

    Raises:
        ConfigError: If ``axes`` does not fit the sequence, or no field runs along an axis.
        DecodeError: If a value cannot be stored.
    """
    wanted_axes = {} if axes is None else dict(axes)
    for name, axis in wanted_axes.items():
        if name not in sequence:
            raise make_unknown_name_error("`axes`", "field", name, map(str, sequence))
        if axis is not None and not (isinstance(axis, str) and _AXIS_NAME.fullmatch(axis)):
            raise ConfigError(
                f"`axes`: axis of field {name!r} is {axis!r}, must be a name of letters, digits, "
                "'_' and '-', or None; rename it"
            )
    fields: dict[str, Field] = {}
    for name, value in sequence.items():
        if not isinstance(name, str) or not name:
            raise DecodeError.at(
                f"sequence 0: has a field named {name!r}, must be non-empty text; rename it",
                sequence=0,
            )
        try:
            fields[name] = _infer_field(name, value, wanted_axes)
        except FieldMismatch as deviation:
            raise DecodeError.at(
                f"sequence 0, field {name!r}: {deviation}", sequence=0, field=name
            ) from deviation
    if not list_axes(fields):
        raise ConfigError(
            "schema: no field runs along an axis: at least one must be an array with an entry per "
            f"timestep, but there are {_format_fields(fields)}. Encode text as numbers, e.g. "
            "np.frombuffer(text.encode(), np.uint8); for bytes pass `axes`={'name': 'time'}"
        )
    return fields


def _format_fields(fields: Mapping[str, Field]) -> str:
    each = (f"{name!r} ({field.dtype}, one per sequence)" for name, field in fields.items())
    return ", ".join(each) or "no fields"


def _infer_field(name: str, value: Any, axes: Mapping[str, str | None]) -> Field:
    if isinstance(value, str):
        if axes.get(name) is not None:
            raise ConfigError(
                f"`axes`: field {name!r} is text, which has no axis; encode it to bytes"
            )
        return Field("str", (), None)
    if isinstance(value, bytes | bytearray):
        axis = axes.get(name)
        return Field("bytes", (), None) if axis is None else Field("uint8", (), axis)
    array = as_array(value)
    if array.ndim == 0:
        if axes.get(name) is not None:
            raise ConfigError(
                f"`axes`: field {name!r} is one number per sequence, which has no axis; leave it "
                "out"
            )
        return Field(array.dtype.name, (), None)
    axis = axes.get(name, DEFAULT_AXIS)
    field = Field(array.dtype.name, array.shape[1:] if axis is not None else array.shape, axis)
    if not 0 < field_width(field) < MAX_WIDTH:
        raise FieldMismatch(f"has shape {array.shape}, must hold at least one number per timestep")
    return field


def check_axis_lengths(
    fields: Mapping[str, Field],
    packed: PackedFields,
    first: int,
    key: str,
) -> dict[str, NDArray[np.int64]]:
    """Return axis -> lengths, int64 (sequences,), where all fields of an axis agree on them.

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
        first_name, first_lengths = found.setdefault(field.axis, (name, lengths))
        if (lengths != first_lengths).any():
            at = int(np.flatnonzero(lengths != first_lengths)[0])
            raise DecodeError.at(
                f"sequence {first + at}{_format_id(packed.get(key), fields.get(key), at)}, field "
                f"{name!r}: has {lengths[at]} timesteps but field {first_name!r} has "
                f"{first_lengths[at]}, must "
                f"be equal on axis {field.axis!r}; cut them alike, or give them different `axes`",
                sequence=first + at, field=name,
            )  # fmt: skip
    return {axis: lengths for axis, (_, lengths) in found.items()}


def check_packed_ids(
    fields: Mapping[str, Field], packed: PackedFields, key: str, first: int
) -> None:
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
    id_offsets = np.asarray(offsets)
    check_unique_ids(
        hash_texts(values, id_offsets),
        lambda i: values[id_offsets[i] : id_offsets[i + 1]].tobytes().decode(),
        first,
    )


def _format_id(packed: Any, field: Field | None, at: int) -> str:
    if packed is None or field is None or field.dtype != "str":
        return ""
    values, offsets = packed
    return f" ({values[offsets[at] : offsets[at + 1]].tobytes().decode()!r})"
