"""Items of a Dataset: their fields, and whether every item matches the first one."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DecodeError, must_be
from seqdata.index import DEFAULT_AXIS
from seqdata.protocols import Field
from seqdata.storage.fields import field_width, infer_object, kind_of, make_unknown_name_error
from seqdata.storage.packing import FieldMismatch, as_array

_PART_NAMES = ("x", "y", "z")  # of a tuple, and field3, field4, … after them


def check_axes(axes: Any) -> None:
    """Raise if ``axes`` is not a mapping of fields.

    Raises:
        ConfigError: If ``axes`` is not a mapping.
    """
    if axes is not None and not isinstance(axes, Mapping):
        needed = "a dict of field and axis, as {'embedding': None}"
        raise ConfigError(must_be("`axes`", needed, repr(axes), "Pass a dict, or leave it out"))


def as_mapping(item: Any, names: Sequence[str] | None) -> Mapping[str, Any]:
    """Return an item as a dict: the parts of a tuple by name, any other value as one part.

    Args:
        item: A dict, which is returned as it is; a tuple; or a value.
        names: Names of the parts; None: ``x``, ``y``, ``z``, ``field3``, ….

    Raises:
        ConfigError: If there are not as many names as parts.
    """
    if isinstance(item, Mapping):
        return item
    values = item if isinstance(item, tuple) else (item,)
    if names is None:
        names = [
            _PART_NAMES[i] if i < len(_PART_NAMES) else f"field{i}" for i in range(len(values))
        ]
    if len(names) != len(values):
        raise ConfigError(
            f"dataset: an item must have one part for each of {', '.join(names)}, but has "
            f"{len(values)} parts. Pass one name for each part in `names`"
        )
    return dict(zip(names, values, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class DatasetItems:
    """The items of a Dataset as sequences to write; can be iterated repeatedly.

    Attributes:
        dataset: An object with a length and items by index.
    """

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self.rows_at(np.arange(len(self), dtype=np.int64))

    def rows_at(self, indices: NDArray[np.int64]) -> Iterator[Mapping[str, Any]]:
        """Yield items by index, in this order; see ``arrow.shuffled.RowsByIndex``."""
        for index in indices:
            yield as_mapping(self.dataset[int(index)], None)


ITEMS = "items"
"""The only column of items that are passed as they are."""


@dataclass(frozen=True, slots=True)
class OpaqueItem:
    """An item of a Dataset that is passed as it is.

    Attributes:
        value: The item that the Dataset returned.
    """

    value: Any


ValueForm = Literal["tensor", "array", "list", "number", "scalar", "text"]


@dataclass(frozen=True, slots=True)
class ItemForm:
    """Structure of the items of a Dataset, which its ``collate_fn`` receives in this structure.

    Attributes:
        item_type: ``dict``, ``tuple``, or ``value`` for an item that is neither.
        values: Field -> the type of its values, in the item's order.
        namedtuple_class: The class of a named tuple; None: a plain tuple.
    """

    item_type: Literal["dict", "tuple", "value"]
    values: Mapping[str, ValueForm]
    namedtuple_class: type | None = None

    @classmethod
    def from_item(cls, item: Any, names: Sequence[str] | None) -> ItemForm:
        """Return the form of an item."""
        values = {name: _detect_form(value) for name, value in as_mapping(item, names).items()}
        if isinstance(item, Mapping):
            return cls("dict", values)
        if not isinstance(item, tuple):
            return cls("value", values)
        return cls("tuple", values, type(item) if hasattr(item, "_fields") else None)

    def make_item(self, fields: Mapping[str, Any]) -> Any:
        """Return an item of this form with the given fields; a dict if the form lacks one."""
        if self.item_type == "dict" or not fields.keys() <= self.values.keys():
            return dict(fields)
        values = [fields[name] for name in self.values if name in fields]
        if self.item_type == "value":
            return values[0]
        if self.namedtuple_class is not None and len(values) == len(self.values):
            return self.namedtuple_class(*values)
        return tuple(values)


def _detect_form(value: Any) -> ValueForm:
    """Return the type of a value; tensors are recognized by their module: torch is not imported."""
    if isinstance(value, str | bytes):
        return "text"
    if isinstance(value, np.generic):
        return "scalar"
    if isinstance(value, numbers.Number):
        return "number"
    if isinstance(value, list | tuple):
        return "list"
    return "tensor" if type(value).__module__.split(".")[0] == "torch" else "array"


def infer_item_fields(
    item: Mapping[str, Any], length: int, axes: Mapping[str, str | None] | None
) -> dict[str, Field]:
    """Return the fields of the first item.

    Args:
        item: Field -> array, number, ``str`` or ``bytes``.
        length: Number of timesteps.
        axes: Field -> None: one value per item, whatever its shape; or ``time``.

    Raises:
        ConfigError: If no field is as long as the item, ``axes`` names an unknown one or another
            axis, or a field of ``time`` is not as long as the item.
        DecodeError: If a value is not an array, number, ``str`` or ``bytes``, or an array has no
            numbers per timestep.
    """
    check_axes(axes)
    axis_of = dict(axes or {})
    for name, axis in axis_of.items():
        if name not in item:
            raise make_unknown_name_error("dataset: `axes`", "field", name, map(str, item))
        if axis not in (None, DEFAULT_AXIS):
            needed = f"None or {DEFAULT_AXIS!r}, the one axis of a Dataset"
            raise ConfigError(must_be(f"dataset: `axes` of {name!r}", needed, repr(axis)))
    fields: dict[str, Field] = {}
    shapes = []
    for name, value in item.items():
        found = infer_object(value)
        if found is not None:
            fields[name] = found
            continue
        array = _to_array(0, name, value)
        ragged = array.ndim > 0 and len(array) == length and axis_of.get(name, "") is not None
        if not ragged and axis_of.get(name) is not None:
            raise ConfigError(
                f"dataset: item 0, field {name!r}: must have {length} timesteps, as `axes` and "
                f"`lengths` say, but has shape {array.shape}. Pass `axes={{{name!r}: None}}`, or "
                "the actual lengths"
            )
        axis = DEFAULT_AXIS if ragged else None
        fields[name] = Field(array.dtype.name, array.shape[1:] if ragged else array.shape, axis)
        shapes.append(f"{name} {array.shape}")
        if field_width(fields[name]) < 1:
            raise DecodeError.at(
                f"dataset: item 0, field {name!r}: must hold at least one number per timestep, "
                f"but has shape {array.shape}. Leave it out",
                sequence=0, field=name,
            )  # fmt: skip
    if not any(field.axis for field in fields.values()):
        raise ConfigError(
            f"dataset: item 0 must have an array with first dimension {length}, its length "
            f"according to `lengths`, but has {', '.join(shapes) or 'no array'}. Pass the number "
            "of timesteps of each item, or a function that returns it: "
            "lengths=lambda item: len(item[0])"
        )
    return fields


def check_value(index: int, name: str, value: Any, field: Field, length: int) -> Any:
    """Return an item's value as an array, ``str`` or ``bytes``, if it matches its field.

    Raises:
        DecodeError: If it does not match; the message names the item.
    """
    kind = kind_of(field)
    if not kind.is_array:
        if isinstance(value, kind.value_type):
            return value
        raise _make_mismatch_error(
            index, name, f"must be {field.dtype}, but is a {type(value).__name__}"
        )
    array = _to_array(index, name, value)
    if array.dtype.name != field.dtype:
        raise _make_mismatch_error(
            index, name, f"must have dtype {field.dtype}, but has {array.dtype.name}"
        )
    if field.axis is None:
        if array.shape != field.shape:
            raise _make_mismatch_error(
                index, name,
                f"must have shape {field.shape}, but has {array.shape} (for one value per "
                "timestep, the first dimension of the first item must be its length)",
            )  # fmt: skip
        return array
    if array.shape[1:] != field.shape or not array.ndim:
        shape = ", ".join(["T", *map(str, field.shape)])
        raise _make_mismatch_error(index, name, f"must have shape ({shape}), but has {array.shape}")
    if len(array) != length:
        raise DecodeError.at(
            f"dataset: item {index}, field {name!r}: must have {length} timesteps, as `lengths` "
            f"says, but has {len(array)}. Pass the actual lengths, or a function that counts "
            "them; if the field does not have one value per timestep, pass "
            f"`axes={{{name!r}: None}}`",
            sequence=index, field=name,
        )  # fmt: skip
    return array


def _to_array(index: int, name: str, value: Any) -> NDArray[Any]:
    try:
        return np.asarray(as_array(value))
    except FieldMismatch as mismatch:
        raise DecodeError.at(
            f"dataset: item {index}, field {name!r}: {mismatch}", sequence=index, field=name
        ) from mismatch


def _make_mismatch_error(index: int, name: str, found: str) -> DecodeError:
    return DecodeError.at(
        f"dataset: item {index}, field {name!r}: {found}; item 0 determines the fields. Make "
        "items alike",
        sequence=index, field=name,
    )  # fmt: skip
