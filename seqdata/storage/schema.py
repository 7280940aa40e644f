"""The schema of a dataset by its first sequence, and checks of all sequences against it.

Writers and the memory store use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DecodeError
from seqdata.protocols import Field
from seqdata.storage.fields import KINDS, find_key, kind_of, list_axes, make_unknown_name_error
from seqdata.storage.hashing import check_unique_ids, hash_texts
from seqdata.storage.packing import FieldMismatch

_AXIS_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

PackedFields = Mapping[str, tuple[NDArray[Any], NDArray[np.int64] | None]]
"""Field -> the result of its packer: values, and offsets if it has any."""


def infer_fields(
    sequence: Mapping[str, Any], axes: Mapping[str, str | None] | None
) -> dict[str, Field]:
    """Return the fields of the first sequence.

    Args:
        sequence: Field -> array, scalar, ``str`` or ``bytes``.
        axes: Field -> axis; None: one vector per sequence. Other arrays run along ``time``.

    Raises:
        ConfigError: If ``axes`` does not fit the sequence, or no field runs along an axis.
        DecodeError: If a value cannot be stored.
    """
    wanted_axes = {} if axes is None else dict(axes)
    check_axis_names(sequence, wanted_axes)
    fields = {name: infer_field(name, value, wanted_axes) for name, value in sequence.items()}
    if not list_axes(fields):
        raise ConfigError(
            "schema: no field runs along an axis: at least one must be an array with an entry per "
            f"timestep, but there are {_format_fields(fields)}. Encode text as numbers, e.g. "
            "np.frombuffer(text.encode(), np.uint8); for bytes pass `axes={'name': 'time'}`"
        )
    return fields


def check_axis_names(names: Iterable[Any], axes: Mapping[str, str | None]) -> None:
    """Raise if axes are of fields that do not exist, or not names.

    Raises:
        UnknownNameError: If there is no such field.
        ConfigError: If an axis is not a name.
    """
    names = list(names)
    for name, axis in axes.items():
        if name not in names:
            raise make_unknown_name_error("`axes`", "field", name, map(str, names))
        if axis is not None and not (isinstance(axis, str) and _AXIS_NAME.fullmatch(axis)):
            raise ConfigError(
                f"`axes`: axis of field {name!r} must be a name of letters, digits, '_' and '-', "
                f"or None, but is {axis!r}. Rename it"
            )


def infer_field(name: Any, value: Any, axes: Mapping[str, str | None]) -> Field:
    """Return the field of a value of the first sequence.

    Args:
        name: Name of the field.
        value: An array, scalar, ``str`` or ``bytes``.
        axes: Field -> axis; None: one vector per sequence. Other arrays run along ``time``.

    Raises:
        ConfigError: If ``axes`` does not fit the value.
        DecodeError: If it cannot be stored.
    """
    if not isinstance(name, str) or not name:
        raise DecodeError.at(
            f"sequence 0: names of fields must be non-empty strings, but one is {name!r}. "
            "Rename it",
            sequence=0,
        )
    try:
        found = (kind.infer(name, value, axes) for kind in KINDS)
        return next(field for field in found if field is not None)
    except FieldMismatch as mismatch:
        raise DecodeError.at(
            f"sequence 0, field {name!r}: {mismatch}", sequence=0, field=name
        ) from mismatch


def _format_fields(fields: Mapping[str, Field]) -> str:
    each = (f"{name!r} ({field.dtype}, one per sequence)" for name, field in fields.items())
    return ", ".join(each) or "no fields"


def check_axis_lengths(
    fields: Mapping[str, Field],
    packed: PackedFields,
    first: int,
    key: str,
) -> dict[str, NDArray[np.int64]]:
    """Return axis -> lengths, int64 (sequences,), which all fields of an axis must share.

    Args:
        fields: Name -> field.
        packed: Name -> the result of its packer.
        first: Index of the first sequence.
        key: The field of ids.

    Raises:
        DecodeError: If they do not; the message names the first sequence and both fields.
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
                f"{name!r}: fields on axis {field.axis!r} must have equal lengths, but it has "
                f"{lengths[at]} timesteps and field {first_name!r} has {first_lengths[at]}. Cut "
                "them alike, or give them different `axes`",
                sequence=first + at, field=name,
            )  # fmt: skip
    return {axis: lengths for axis, (_, lengths) in found.items()}


def check_packed_ids(
    fields: Mapping[str, Field], packed: PackedFields, key: str, first: int
) -> None:
    """Raise if an id occurs twice among packed sequences.

    Args:
        fields: Name -> field.
        packed: Field -> values and offsets.
        key: The field of ids, if there is one of that name.
        first: Index of the first sequence.

    Raises:
        DecodeError: If one does; the message names both sequences.
    """
    if find_key(fields, key) is None:
        return
    values, offsets = packed[key]
    id_offsets = np.asarray(offsets)
    check_unique_ids(
        hash_texts(values, id_offsets),
        lambda i: values[id_offsets[i] : id_offsets[i + 1]].tobytes().decode(),
        first,
    )


def _format_id(packed: Any, field: Field | None, at: int) -> str:
    if packed is None or field is None or not kind_of(field).is_id:
        return ""
    values, offsets = packed
    return f" ({values[offsets[at] : offsets[at + 1]].tobytes().decode()!r})"
