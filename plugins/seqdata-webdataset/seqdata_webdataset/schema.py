"""Which fields a data set has: the user's schema over what the members' heads say.

The user says how members are read, or a fixed rule by extension does; what a member holds never
chooses. Place in the flow: opening asks once. Reads: a schema, heads. Makes: fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqdata.backends import NUMBERS, Place, no_such, quoted
from seqdata.errors import ConfigError, DecodeError, UnsafeContentError
from seqdata.index import DEFAULT_AXIS
from seqdata.protocols import Field
from seqdata_webdataset.array_headers import Head
from seqdata_webdataset.member_names import is_unsafe, last_part
from seqdata_webdataset.unsafe import is_allowed

Schema = Mapping[str, Any]
"""Extension -> what it holds; see ``open_webdataset``."""

TEXTS = ("txt", "text", "transcript")
PARTED = ("json", "jsn", "npz")
"""Extensions whose members hold several values by name."""
_SOUND = ("int16", "int32", "float32", "float64")  # that FLAC is decoded to
_PLAIN = {int: "int64", float: "float64", bool: "bool", str: "str", bytes: "bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One field, and how it comes about.

    Attributes:
        name: Of the field.
        extension: Of its members.
        field: What it holds; of a ragged field without an axis of its own ``time``.
        how: ``place``: the bytes as they lie; ``number``: from the index; ``text``: whole, as it
            is; ``decode``: whole, decoded; ``unsafe``: whole, and what it says is run.
        part: The name of its value inside of a member that has several.
        chosen: Whether the user or our writer said its axis.
    """

    name: str
    extension: str
    field: Field
    how: str
    part: str | None = None
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Extension:
    """What is known of the members of one extension, over all shards.

    Attributes:
        name: The extension.
        heads: What its members hold.
        numbers: Whether all of them are whole numbers, and the index has them.
        place: Of the first one, for errors.
        told: The field as our writer told it.
    """

    name: str
    heads: tuple[Head, ...]
    numbers: bool
    place: Place
    told: tuple[str, Field] | None = None


def fields_of(
    extensions: Sequence[Extension],
    schema: Schema | None,
    where: str,
    unsafe: frozenset[str] = frozenset(),
) -> list[Wanted]:
    """Give the fields of a data set, in the order of its extensions.

    Args:
        extensions: What there is.
        schema: What the user says.
        where: The data set, for messages.
        unsafe: Kinds of members that may run code; see ``unsafe.allowed``.

    Raises:
        ConfigError: If the schema does not fit what is there.
        DecodeError: If members of one extension hold different things.
        UnsafeContentError: If an extension stands for code.
    """
    told = {} if schema is None else dict(schema)
    for name in told:
        if name not in {one.name for one in extensions}:
            raise no_such(f"{where}: `schema`", "extension", name, (one.name for one in extensions))
    made = [
        wanted
        for one in extensions
        if told.get(one.name, ...) is not None
        for wanted in _fields(one, told.get(one.name, ...), where, unsafe)
    ]
    if not any(one.field.axis for one in made):
        have = ", ".join(f"{one.name} ({one.field.dtype})" for one in made)
        raise ConfigError(
            f"{where}: no field of {have or 'none'} runs along an axis, one must; say in `schema` "
            "what holds timesteps, e.g. {'bin': 'uint16'}"
        )
    return made


def _fields(one: Extension, said: Any, where: str, unsafe: frozenset[str]) -> Iterator[Wanted]:
    kind, how = last_part(one.name), "decode"
    if is_unsafe(one.name):
        _check_allowed(one, said, where, unsafe)
        how = "unsafe"
    if isinstance(said, Mapping):
        if kind not in PARTED and how != "unsafe":
            raise ConfigError(
                f"{where}: `schema` gives parts of {one.name!r}, must be one type: only "
                f"{', '.join(PARTED)} have parts"
            )
        for part, type_ in said.items():
            field = _field_of(type_, f"{where}: `schema` of {one.name!r}, part {part!r}")
            name = f"{one.name}.{part}"
            yield Wanted(
                name=name, extension=one.name, field=field, how=how, part=str(part),
                chosen=isinstance(type_, Field),
            )  # fmt: skip
        return
    if how == "unsafe":
        yield replace(_as_said(one, said, kind, where), how=how)
    elif kind in ("npy", "wav", "flac") and not (said is ... and kind == "flac"):
        yield _array(one, said, where)
    elif said is not ...:
        yield _as_said(one, said, kind, where)
    elif one.told is not None:
        name, field = one.told
        how = "text" if field.dtype in ("str", "bytes") else "decode" if one.numbers else "place"
        yield Wanted(
            name=name, extension=one.name, field=field, chosen=True,
            how="number" if one.numbers and field.axis is None else how,
        )  # fmt: skip
    elif kind == "cls":
        yield _number(one)
    else:
        dtype = "str" if kind in TEXTS else "bytes"
        yield Wanted(name=one.name, extension=one.name, field=Field(dtype, (), None), how="text")


def _check_allowed(one: Extension, said: Any, where: str, unsafe: frozenset[str]) -> None:
    """Refuse members that run code, unless the user named their kind and says what they hold."""
    if not is_allowed(one.name, unsafe):
        raise one.place.error(
            UnsafeContentError,
            f"members of extension {quoted(one.name)} are Python objects, whose reading runs code "
            "that they bring, must be plain data; leave them out with "
            f"`schema`={{{one.name!r}: None}}, or write them again as .npy or .json",
        )
    field = None if said is ... or isinstance(said, Mapping) else _field_of(said, where)
    if said is ... or (field is not None and field.dtype in ("str", "bytes")):
        raise ConfigError(
            f"{where}: `schema` of {one.name!r} is {said!r}, must say what numbers its members "
            f"hold, since nothing else does; e.g. {{{one.name!r}: 'float32'}}"
        )


def _number(one: Extension) -> Wanted:
    if not one.numbers:
        raise one.place.error(
            DecodeError,
            f"members of extension {quoted(one.name)} are no whole numbers, must be; read them as "
            f"text with `schema`={{{one.name!r}: str}}, or leave them out with None",
        )
    return Wanted(name=one.name, extension=one.name, field=Field("int64", (), None), how="number")


def _as_said(one: Extension, said: Any, kind: str, where: str) -> Wanted:
    """Give the field of members without a head, as the user says."""
    field = _field_of(said, f"{where}: `schema` of {one.name!r}")
    how = "decode"
    if field.dtype in ("str", "bytes"):
        how = "text"
    elif field.dtype == "int64" and not field.shape and field.axis is None and one.numbers:
        how = "number"
    elif kind == "npz":
        raise ConfigError(
            f"{where}: `schema` of {one.name!r} is {said!r}, must name arrays in it; e.g. "
            f"{{{one.name!r}: {{'x': 'float32'}}}}"
        )
    elif kind not in (*PARTED, *TEXTS, "cls"):
        how = "place"
    return Wanted(
        name=one.name, extension=one.name, field=field, how=how, chosen=isinstance(said, Field)
    )


def _array(one: Extension, said: Any, where: str) -> Wanted:
    """Give the field of arrays and sound, whose heads say what they hold."""
    for head in one.heads:
        if head.kind == "bad":
            kind = UnsafeContentError if "Python objects" in head.descr else DecodeError
            raise one.place.error(
                kind,
                f"a member of extension {quoted(one.name)} {head.descr}, must be an array of "
                "numbers; write it again, or leave the extension out with "
                f"`schema`={{{one.name!r}: None}}",
            )
    name, told = (one.name, None) if one.told is None else one.told
    first = one.heads[0]
    field = Field(first.dtype, first.shape, None if first.scalar else DEFAULT_AXIS)
    for head in one.heads:
        if (head.dtype, head.shape, head.scalar) != (first.dtype, first.shape, first.scalar):
            raise one.place.error(
                DecodeError,
                f"members of extension {quoted(one.name)} hold timesteps of {first.dtype} "
                f"{list(first.shape)} and of {head.dtype} {list(head.shape)}, must be alike; write "
                f"them again, or leave them out with `schema`={{{one.name!r}: None}}",
            )
    chosen = False
    if said is not ...:
        told = _field_of(said, f"{where}: `schema` of {one.name!r}")
        chosen = isinstance(said, Field)
        if not chosen and told.axis is not None:
            told = replace(told, shape=field.shape)
    elif told is not None:
        chosen = True
    if told is not None:
        shape = told.shape[1:] if told.axis is None and not first.scalar else told.shape
        sound = first.kind == "flac" and told.dtype in _SOUND
        alike = (told.dtype == field.dtype or sound) and shape == field.shape
        if not alike or (first.scalar and told.axis is not None):
            raise ConfigError(
                f"{where}: `schema` of {one.name!r} is {told.dtype} {list(told.shape)}"
                f"{'' if told.axis else ' per sequence'}, its members hold timesteps of "
                f"{field.dtype} {list(field.shape)}, must be the same; leave it out, or convert "
                "with a transform"
            )
        field = told
    how = "place" if all(head.in_place for head in one.heads) else "decode"
    return Wanted(name=name, extension=one.name, field=field, how=how, chosen=chosen)


def _field_of(said: Any, where: str) -> Field:
    """Give the field that a user means."""
    if isinstance(said, Field):
        if said.dtype not in (*NUMBERS, "str", "bytes"):
            raise ConfigError(
                f"{where} has dtype {said.dtype!r}, must be one of {', '.join(NUMBERS)}"
            )
        return said
    plain = _PLAIN.get(said) if isinstance(said, type) else None
    if plain is not None:
        return Field(plain, (), None)
    try:
        name = np.dtype(said).name
    except TypeError:
        name = ""
    if name not in NUMBERS:
        raise ConfigError(
            f"{where} is {said!r}, must be a dtype, int, float, bool, str, bytes, a Field, or None "
            "to leave it out"
        )
    return Field(name)
