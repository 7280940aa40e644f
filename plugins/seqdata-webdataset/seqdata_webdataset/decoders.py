"""Whole members turned into values: what cannot be used as it lies.

JSON, NumPy's archives, FLAC, numbers written as text, and arrays in another order of bytes. What
they become is capped before it is made, and must be what the schema says. Place in the flow:
sources of decoded fields ask here. Reads: the bytes of a member. Makes: arrays.
"""

from __future__ import annotations

import importlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import Place, check_size
from seqdata.backends import refuse_size as refuse
from seqdata.errors import DecodeError
from seqdata.protocols import Field
from seqdata_webdataset.array_headers import Head, NoHeadError, read_npy
from seqdata_webdataset.member_names import last_part
from seqdata_webdataset.schema import Wanted
from seqdata_webdataset.unsafe import read_unsafe

MAX_MEMBER = 2 << 30
"""Bytes of a member that is read as a whole."""
_IN_MEMORY = 16
"""Bytes in memory of one byte of JSON, at most."""


def decode(wanted: Wanted, raw: NDArray[np.uint8], head: Head | None, place: Place) -> NDArray[Any]:
    """Give the value of a field, (timesteps, *shape) or (1, *shape) where it has no axis.

    Args:
        wanted: The field.
        raw: The member's values, uint8.
        head: What they are, where that is known.
        place: The member's, for errors.

    Raises:
        DecodeError: If they are not what the field must hold.
        LimitError: If they would take very much memory.
    """
    if len(raw) > MAX_MEMBER:
        refuse(place, f"has {len(raw)} bytes", f"have at most {MAX_MEMBER}", len(raw), MAX_MEMBER)
    kind = last_part(wanted.extension)
    found: Any
    if wanted.how == "unsafe":
        found = _part_of(read_unsafe(raw.tobytes(), kind, place), wanted.part, place)
    elif head is not None and head.kind == "flac":
        found = _flac(raw, wanted.field, place)
    elif head is not None:
        found = _stored(raw, head)
    elif kind == "npz":
        found = _archived(raw, wanted.part or "", place)
    elif kind in ("json", "jsn"):
        found = _json(raw, wanted.part, place)
    else:
        found = _plain_text(raw, wanted.field, place)
    return _as_field(found, wanted.field, place)


def _stored(raw: NDArray[np.uint8], head: Head) -> NDArray[Any]:
    """Give an array that lies in another order than ours."""
    if head.descr == "<i3":
        wide = np.zeros((len(raw) // 3, 4), dtype=np.uint8)
        wide[:, 1:] = raw.reshape(-1, 3)
        return (wide.view("<i4").reshape(-1) >> 8).reshape(-1, *head.shape)
    steps = len(raw) // head.width
    shape = () if head.scalar else (steps, *head.shape)
    values = np.frombuffer(raw.tobytes(), head.descr)
    values = values.reshape(shape[::-1]).T if head.fortran else values.reshape(shape)
    return np.array(values, dtype=values.dtype.newbyteorder("="), order="C")


def _flac(raw: NDArray[np.uint8], field: Field, place: Place) -> NDArray[Any]:
    try:
        soundfile = importlib.import_module("soundfile")
    except ImportError as error:
        raise place.error(
            DecodeError,
            "is FLAC, which needs the package soundfile, which is not installed; pip install "
            "seqdata-webdataset[flac]",
        ) from error
    try:
        values: NDArray[Any] = soundfile.read(io.BytesIO(raw.tobytes()), dtype=field.dtype)[0]
    except RuntimeError as error:  # of libsndfile
        raise _no(place, f"cannot be decoded as FLAC ({error})") from error
    return values


def _archived(raw: NDArray[np.uint8], part: str, place: Place) -> NDArray[Any]:
    try:
        with zipfile.ZipFile(io.BytesIO(raw.tobytes())) as archive:
            about = archive.getinfo(f"{part}.npy")
            check_size(place, about.compress_size, about.file_size)
            content = archive.read(about)
    except KeyError as error:
        raise _no(place, f"has no array {part!r} in it") from error
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError, EOFError,
            ValueError) as error:  # fmt: skip
        raise _no(place, f"cannot be read as .npz ({error})") from error
    try:
        head, begin, size, _ = read_npy(content[: 1 << 16], len(content))
    except NoHeadError as error:
        raise _no(place, f"array {part!r} {error}") from error
    return _stored(np.frombuffer(content, np.uint8)[begin : begin + size], head)


def _json(raw: NDArray[np.uint8], part: str | None, place: Place) -> Any:
    check_size(place, len(raw), _IN_MEMORY * len(raw))
    try:
        found = json.loads(raw.tobytes())
    except (ValueError, RecursionError) as error:
        raise _no(place, f"cannot be read as JSON ({error})") from error
    return _part_of(found, part, place)


def _part_of(found: Any, part: str | None, place: Place) -> Any:
    if part is None:
        return found
    if not isinstance(found, Mapping) or part not in found:
        raise _no(place, f"has no value {part!r} in it")
    return found[part]


def _plain_text(raw: NDArray[np.uint8], field: Field, place: Place) -> Any:
    try:
        text = raw.tobytes().decode().strip()
        if field.shape or field.axis is not None:
            return [_number(one, field) for one in text.split()]
        return _number(text, field)
    except ValueError as error:  # of UTF-8, too
        raise _no(place, f"{raw[:40].tobytes()!r} is no number") from error


def _number(text: str, field: Field) -> int | float:
    return float(text) if field.dtype.startswith("float") else int(text)


def _as_field(found: Any, field: Field, place: Place) -> NDArray[Any]:
    """Give a value as what its field must hold, if it is that."""
    try:
        array = np.asarray(found)
    except ValueError as error:  # lists of different lengths
        raise _no(place, "holds lists of different lengths") from error
    dtype = np.dtype(field.dtype)
    if array.dtype != dtype:
        if not array.size and isinstance(found, list):
            array = np.empty((0, *field.shape), dtype=dtype)
        array = _cast(array, dtype, place)
    if field.axis is None:
        array = array.reshape(1, *array.shape)
    if array.ndim != 1 + len(field.shape) or array.shape[1:] != field.shape:
        must = [*(["T"] if field.axis else []), *map(str, field.shape)]
        shape = array.shape if field.axis else array.shape[1:]
        raise _no(place, f"has shape {list(shape)}, not [{', '.join(must)}]")
    return np.ascontiguousarray(array)


def _cast(array: NDArray[Any], dtype: np.dtype[Any], place: Place) -> NDArray[Any]:
    """Give numbers as another dtype that holds each of them."""
    numbers = array.dtype.kind in "biuf"
    fits = numbers and (dtype.kind == "f" or array.dtype.kind != "f")
    if fits and dtype.kind in "biu" and array.size:
        with np.errstate(over="ignore"):
            made = array.astype(dtype)
        fits = bool((made == array).all())
    if not fits:
        raise _no(place, f"holds {array.dtype} that is no {dtype}")
    return array.astype(dtype)


def _no(place: Place, what: str) -> DecodeError:
    return place.error(
        DecodeError,
        f"{what}, must be as `schema` says; restore the shard, or say what it holds",
    )
