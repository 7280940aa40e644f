"""The fields of a dataset, from the user's schema and the headers of members.

The schema, or a fixed rule for each extension, determines how members are read, never their
content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqdata import ConfigError, DecodeError, UnsafeContentError
from seqdata.backends import NUMBER_DTYPES, DataLocation, Field, make_unknown_name_error, quote
from seqdata_webdataset.array_headers import ArrayHeader
from seqdata_webdataset.decoders import (
    DECODERS,
    MULTI_VALUE_EXTENSIONS,
    SOUND_DTYPES,
    SOUND_EXTENSIONS,
    TEXT_EXTENSIONS,
    FieldSpec,
)
from seqdata_webdataset.tar_headers import last_part
from seqdata_webdataset.unsafe import is_allowed, is_unsafe

Schema = Mapping[str, Any]
"""Extension -> its type; see ``open_webdataset``."""

_TYPE_DTYPES = {int: "int64", float: "float64", bool: "bool", str: "str", bytes: "bytes"}


@dataclass(frozen=True, slots=True)
class Extension:
    """The members of one extension, over all shards.

    Attributes:
        name: The extension.
        headers: The headers of its members.
        has_integers: Whether all members are integers that are stored in the index.
        place: Location of the first member, or of the first with a bad header, for errors.
        recorded_field: Name and field, as recorded by the writer of seqdata; None: not recorded.
    """

    name: str
    headers: tuple[ArrayHeader, ...]
    has_integers: bool
    place: DataLocation
    recorded_field: tuple[str, Field] | None = None


def infer_specs(
    extensions: Sequence[Extension],
    schema: Schema | None,
    dataset: str,
    unsafe: frozenset[str] = frozenset(),
) -> list[FieldSpec]:
    """Return the fields of a dataset, in the order of its extensions.

    Args:
        extensions: The extensions of the dataset.
        schema: The user's schema.
        dataset: The dataset, for messages.
        unsafe: Extensions that may be decoded although this runs code.

    Raises:
        ConfigError: If the schema does not match the members.
        DecodeError: If members of one extension have different types.
        UnsafeContentError: If decoding the members of an extension would run code.
    """
    given_types = {} if schema is None else dict(schema)
    for name in given_types:
        if name not in {extension.name for extension in extensions}:
            raise make_unknown_name_error(
                f"{dataset}: `schema`",
                "extension",
                name,
                (extension.name for extension in extensions),
            )
    specs = [
        spec
        for extension in extensions
        if given_types.get(extension.name, ...) is not None
        for spec in _iter_specs(extension, given_types.get(extension.name, ...), dataset, unsafe)
    ]
    if not any(extension.field.axis for extension in specs):
        have = ", ".join(f"{extension.name} ({extension.field.dtype})" for extension in specs)
        found = f"none of {have} does" if have else "`schema` leaves out every extension"
        raise ConfigError(
            f"{dataset}: at least one field must run along an axis, but {found}. Name one in "
            "`schema`, e.g. {'bin': 'uint16'}"
        )
    return specs


def _iter_specs(
    extension: Extension, given_type: Any, dataset: str, unsafe: frozenset[str]
) -> Iterator[FieldSpec]:
    encoding, method = last_part(extension.name), "decode"
    if is_unsafe(extension.name):
        _check_allowed(extension, given_type, dataset, unsafe)
        method = "unsafe"
    if isinstance(given_type, Mapping):
        if encoding not in MULTI_VALUE_EXTENSIONS and method != "unsafe":
            raise ConfigError(
                f"{dataset}: `schema` of {extension.name!r} must be one type, but is a dict of "
                f"parts, which only {', '.join(MULTI_VALUE_EXTENSIONS)} have. Pass one type"
            )
        for part, type_ in given_type.items():
            field = _parse_type(type_, f"{dataset}: `schema` of {extension.name!r}, part {part!r}")
            name = f"{extension.name}.{part}"
            yield FieldSpec(
                name=name, extension=extension.name, field=field, access=method, part=str(part),
                is_chosen=isinstance(type_, Field),
            )  # fmt: skip
        return
    if method == "unsafe":
        yield replace(_make_given_spec(extension, given_type, encoding, dataset), access=method)
    elif encoding in ("npy", "wav", "flac") and not (given_type is ... and encoding == "flac"):
        yield _make_array_spec(extension, given_type, dataset)
    elif given_type is not ...:
        yield _make_given_spec(extension, given_type, encoding, dataset)
    elif extension.recorded_field is not None:
        name, field = extension.recorded_field
        method = (
            "text"
            if field.dtype not in NUMBER_DTYPES
            else "decode"
            if extension.has_integers
            else "place"
        )
        yield FieldSpec(
            name=name, extension=extension.name, field=field, is_chosen=True,
            access="number" if extension.has_integers and field.axis is None else method,
        )  # fmt: skip
    elif encoding == "cls":
        yield _make_number_spec(extension)
    else:
        dtype = "str" if encoding in TEXT_EXTENSIONS else "bytes"
        yield FieldSpec(
            name=extension.name,
            extension=extension.name,
            field=Field(dtype, (), None),
            access="text",
        )


def _check_allowed(
    extension: Extension, given_type: Any, dataset: str, unsafe: frozenset[str]
) -> None:
    """Raise if decoding members would run code that the user has not allowed.

    Raises:
        UnsafeContentError: If the user has not allowed the extension.
        ConfigError: If the schema has neither a dtype nor a dict of parts for it.
    """
    if not is_allowed(extension.name, unsafe):
        raise extension.place.make_error(
            UnsafeContentError,
            f"members of extension {quote(extension.name)} must be plain data, but are Python "
            "objects: reading them runs code from the data. Leave them out with "
            f"`schema={{{extension.name!r}: None}}`, or write them again as .npy or .json",
        )
    field = (
        None
        if given_type is ... or isinstance(given_type, Mapping)
        else _parse_type(given_type, f"{dataset}: `schema` of {extension.name!r}")
    )
    if given_type is ... or (field is not None and field.dtype not in NUMBER_DTYPES):
        raise ConfigError(
            f"{dataset}: `schema` of {extension.name!r} must be the dtype of its members, which is "
            f"not stored elsewhere, but is {'missing' if given_type is ... else repr(given_type)}. "
            "Pass for example "
            f"{{{extension.name!r}: 'float32'}}"
        )


def _make_number_spec(extension: Extension) -> FieldSpec:
    if not extension.has_integers:
        raise extension.place.make_error(
            DecodeError,
            f"members of extension {quote(extension.name)} must be integers, but are not. Read "
            f"them as strings with `schema={{{extension.name!r}: str}}`, or leave them out with "
            "None",
        )
    return FieldSpec(
        name=extension.name,
        extension=extension.name,
        field=Field("int64", (), None),
        access="number",
    )


def _make_given_spec(
    extension: Extension, given_type: Any, encoding: str, dataset: str
) -> FieldSpec:
    """Return the field of members without a header, from the user's schema."""
    field = _parse_type(given_type, f"{dataset}: `schema` of {extension.name!r}")
    method = "decode"
    if field.dtype not in NUMBER_DTYPES:
        method = "text"
    elif (
        field.dtype == "int64" and not field.shape and field.axis is None and extension.has_integers
    ):
        method = "number"
    elif encoding == "npz":
        raise ConfigError(
            f"{dataset}: `schema` of {extension.name!r} must name arrays of the archive, but is "
            f"{given_type!r}. Pass for example {{{extension.name!r}: {{'x': 'float32'}}}}"
        )
    elif encoding not in DECODERS or (
        encoding in SOUND_EXTENSIONS and field.dtype not in SOUND_DTYPES
    ):
        method = "place"
    return FieldSpec(
        name=extension.name,
        extension=extension.name,
        field=field,
        access=method,
        is_chosen=isinstance(given_type, Field),
    )


def _make_array_spec(extension: Extension, given_type: Any, dataset: str) -> FieldSpec:
    """Return the field of arrays and audio, from their headers.

    Raises:
        ConfigError: If the schema does not match the headers.
        DecodeError: If members have no header, a bad one, or different types.
        UnsafeContentError: If members hold Python objects.
    """
    if not extension.headers:
        raise extension.place.make_error(
            DecodeError,
            f"members of extension {quote(extension.name)} must have headers in the index, but "
            "have none: another release made the index. Rebuild it with `seqdata index --rebuild`",
        )
    for header in extension.headers:
        if header.kind == "bad":
            error_type = UnsafeContentError if "Python objects" in header.descr else DecodeError
            raise extension.place.make_error(
                error_type,
                f"members of extension {quote(extension.name)} must be arrays of numbers, but one "
                f"{header.descr}. Write it again, or leave the extension out with "
                f"`schema={{{extension.name!r}: None}}`",
            )
    name, recorded = (
        (extension.name, None) if extension.recorded_field is None else extension.recorded_field
    )
    first = extension.headers[0]
    field = Field(first.dtype, first.shape)
    if first.scalar:
        field = replace(field, axis=None)
    for header in extension.headers:
        if (header.dtype, header.shape, header.scalar) != (first.dtype, first.shape, first.scalar):
            raise extension.place.make_error(
                DecodeError,
                f"members of extension {quote(extension.name)} must hold timesteps of one dtype "
                f"and shape, but hold {_describe(first)} and {_describe(header)}. Write them "
                f"again, or leave them out with `schema={{{extension.name!r}: None}}`",
            )
    is_chosen = False
    if given_type is not ...:
        recorded = _parse_type(given_type, f"{dataset}: `schema` of {extension.name!r}")
        is_chosen = isinstance(given_type, Field)
        if not is_chosen and recorded.axis is not None:
            recorded = replace(recorded, shape=field.shape)
    elif recorded is not None:
        is_chosen = True
    if recorded is not None:
        shape = recorded.shape[1:] if recorded.axis is None and not first.scalar else recorded.shape
        sound = first.kind == "flac" and recorded.dtype in SOUND_DTYPES
        alike = (recorded.dtype == field.dtype or sound) and shape == field.shape
        if not alike or (first.scalar and recorded.axis is not None):
            raise ConfigError(
                f"{dataset}: `schema` of {extension.name!r} must be {field.dtype} "
                f"{list(field.shape)} per {'sequence' if first.scalar else 'timestep'}, like its "
                f"members, but is {recorded.dtype} {list(recorded.shape)} per "
                f"{'timestep' if recorded.axis else 'sequence'}. Leave it out, "
                "or convert with a transform"
            )
        field = recorded
    method = "place" if all(header.is_in_place for header in extension.headers) else "decode"
    return FieldSpec(
        name=name, extension=extension.name, field=field, access=method, is_chosen=is_chosen
    )


def _describe(header: ArrayHeader) -> str:
    """Return the dtype and shape of members, for messages."""
    return f"{header.dtype} {'numbers' if header.scalar else list(header.shape)}"


def _parse_type(given_type: Any, context: str) -> Field:
    """Return the field of a type in a schema.

    Raises:
        ConfigError: If the type is invalid.
    """
    if isinstance(given_type, Field):
        if given_type.dtype not in (*NUMBER_DTYPES, "str", "bytes"):
            raise ConfigError(
                f"{context} must have one of the dtypes {', '.join(NUMBER_DTYPES)}, str, bytes, "
                f"but has {given_type.dtype!r}. Pass one of these"
            )
        return given_type
    plain = _TYPE_DTYPES.get(given_type) if isinstance(given_type, type) else None
    if plain is not None:
        return Field(plain, (), None)
    try:
        name = np.dtype(given_type).name
    except TypeError:
        name = ""
    if name not in NUMBER_DTYPES:
        raise ConfigError(
            f"{context} must be a dtype, int, float, bool, str, bytes, a Field, or None to leave "
            f"it out, but is {given_type!r}. Pass one of these"
        )
    return Field(name)
