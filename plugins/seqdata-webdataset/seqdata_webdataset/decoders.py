"""Decoders of members that cannot be read in place.

JSON, NumPy's archives, FLAC, CSV, numbers written as text, and arrays in another byte order.
Decoded sizes are limited before memory is allocated, and the values must match the schema. To add
an encoding, add an entry to ``DECODERS``.
"""

from __future__ import annotations

import importlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata import DecodeError
from seqdata.backends import DataLocation, Field, WavHeader, check_size
from seqdata_webdataset.array_headers import (
    SOUND_DECODER,
    ArrayHeader,
    BadHeaderError,
    read_npy_header,
)
from seqdata_webdataset.tar_headers import last_part, raise_limit_error
from seqdata_webdataset.unsafe import read_unsafe

MAX_MEMBER_BYTES = 2 << 30
"""Maximum size in bytes of a member that is read whole."""
_JSON_BYTES_RATIO = 16
"""Maximum bytes in memory per byte of JSON."""
_CSV_BYTES_RATIO = 80
"""Maximum bytes in memory per byte of CSV; each line becomes a list, even with one digit."""
TEXT_EXTENSIONS = ("txt", "text", "transcript")
SOUND_EXTENSIONS = (
    "mp3", "mp2", "ogg", "oga", "opus", "aiff", "aif", "aifc", "au", "snd", "caf", "w64", "wave",
    "bwf", "rf64", "nist", "sph",
)  # fmt: skip
"""Extensions of audio that the plugin for audio files decodes if the schema has its dtype."""
SOUND_DTYPES = ("int16", "int32", "float32", "float64")
"""Dtypes that audio is decoded to."""
MULTI_VALUE_EXTENSIONS = ("json", "jsn", "npz")
"""Extensions whose members hold several values by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """A field, and the way in which it is read.

    Attributes:
        name: Name of the field.
        extension: Extension of its members.
        field: Dtype, shape and axis of the field.
        access: ``place``: in place; ``number``: from the index; ``text``: the whole member, as a
            string or bytes; ``decode``: the whole member, decoded; ``unsafe``: the whole member,
            decoded by running code from the data.
        part: The name of its value in a member with several values; None: the member is the value.
        is_chosen: Whether its axis was given by the user or recorded by the writer of seqdata.
    """

    name: str
    extension: str
    field: Field
    access: str
    part: str | None = None
    is_chosen: bool = False


def decode_member(
    spec: FieldSpec, raw: NDArray[np.uint8], header: ArrayHeader | None, location: DataLocation
) -> NDArray[Any]:
    """Return the value of a field, (timesteps, *shape), or (1, *shape) if it has no axis.

    Args:
        spec: The field.
        raw: The bytes of the member's values, uint8.
        header: The header of the member, if it has one.
        location: The location of the member, for errors.

    Raises:
        DecodeError: If the bytes do not match the field.
        LimitError: If the value would take too much memory.
    """
    if len(raw) > MAX_MEMBER_BYTES:
        raise_limit_error(
            location,
            f"has {len(raw)} bytes",
            f"have at most {MAX_MEMBER_BYTES} bytes",
            len(raw),
            MAX_MEMBER_BYTES,
        )
    encoding = last_part(spec.extension)
    found: Any
    if spec.access == "unsafe":
        found = _get_part(read_unsafe(raw.tobytes(), encoding, location), spec.part, location)
    elif header is not None and header.kind == "flac":
        found = _decode_flac(raw, spec.field, location)
    elif header is not None and header.kind == "sound":
        found = _decode_sound(raw, spec, location)
    elif header is not None:
        found = _decode_array(raw, header)
    else:
        found = DECODERS[encoding](raw, spec, location)
    return _to_field(found, spec.field, location)


def _decode_array(raw: NDArray[np.uint8], header: ArrayHeader) -> NDArray[Any]:
    """Return an array in native byte order and C order, (timesteps, *shape), or () if scalar."""
    if header.descr in ("<i3", ">i3"):
        return WavHeader.extend_24_bit(raw, header.descr).reshape(-1, *header.shape)
    steps = len(raw) // header.width
    shape = () if header.scalar else (steps, *header.shape)
    values = np.frombuffer(raw.tobytes(), header.descr)
    values = values.reshape(shape[::-1]).T if header.fortran else values.reshape(shape)
    return np.array(values, dtype=values.dtype.newbyteorder("="), order="C")


def _decode_flac(raw: NDArray[np.uint8], field: Field, location: DataLocation) -> NDArray[Any]:
    try:
        soundfile = importlib.import_module("soundfile")
    except ImportError as error:
        raise location.make_error(
            DecodeError,
            "is FLAC, which needs the package soundfile, which is not installed. Run `pip install "
            "'seqdata-webdataset[flac]'`",
        ) from error
    try:
        with soundfile.SoundFile(io.BytesIO(raw.tobytes())) as sound:
            bits = sound.subtype.removeprefix("PCM_")
            values: NDArray[Any] = sound.read(sound.frames, dtype=field.dtype)
    except RuntimeError as error:  # of libsndfile
        raise _make_decode_error(location, f"cannot be decoded as FLAC ({error})") from error
    if field.dtype == "int16" and bits == "24":
        raise _make_decode_error(location, "holds samples of 24 bits, which int16 cannot hold")
    return values


def _decode_sound(raw: NDArray[np.uint8], spec: FieldSpec, location: DataLocation) -> Any:
    """Return the samples of a member, decoded by the plugin for audio files."""
    try:
        sound_file = importlib.import_module(SOUND_DECODER)
    except ImportError as error:
        raise location.make_error(
            DecodeError,
            "is audio, which needs the package seqdata-audio, which is not installed. Run `pip "
            "install seqdata-audio`",
        ) from error
    file = sound_file.Content(raw.tobytes(), f"member.{last_part(spec.extension)}")
    try:
        sound_file.read_info(file)  # what is not whole is refused
        return sound_file.read_samples(file.content, spec.field.dtype)
    except ValueError as error:
        raise _make_decode_error(location, str(error)) from error


def _decode_npz(raw: NDArray[np.uint8], spec: FieldSpec, location: DataLocation) -> NDArray[Any]:
    name = spec.part or ""
    try:
        with zipfile.ZipFile(io.BytesIO(raw.tobytes())) as archive:
            entry = archive.getinfo(f"{name}.npy")
            check_size(location, entry.compress_size, entry.file_size)
            content = archive.read(entry)
    except KeyError as error:
        raise _make_decode_error(location, f"has no array {name!r}") from error
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, OSError, EOFError,
            ValueError) as error:  # fmt: skip
        raise _make_decode_error(location, f"cannot be read as .npz ({error})") from error
    try:
        head, begin, size, _ = read_npy_header(content)
    except BadHeaderError as error:
        raise _make_decode_error(location, f"array {name!r} {error}") from error
    return _decode_array(np.frombuffer(content, np.uint8)[begin : begin + size], head)


def _decode_json(raw: NDArray[np.uint8], spec: FieldSpec, location: DataLocation) -> Any:
    check_size(location, len(raw), _JSON_BYTES_RATIO * len(raw))
    try:
        found = json.loads(raw.tobytes())
    except (ValueError, RecursionError) as error:
        raise _make_decode_error(location, f"cannot be read as JSON ({error})") from error
    return _get_part(found, spec.part, location)


def _get_part(found: Any, part: str | None, location: DataLocation) -> Any:
    if part is None:
        return found
    if not isinstance(found, Mapping) or part not in found:
        raise _make_decode_error(location, f"has no value {part!r}")
    return found[part]


def _decode_csv(raw: NDArray[np.uint8], spec: FieldSpec, location: DataLocation) -> Any:
    """Return the numbers of a table without a header, in which each line is a timestep."""
    check_size(location, len(raw), _CSV_BYTES_RATIO * len(raw))
    field = spec.field
    try:
        lines = raw.tobytes().decode().strip().splitlines()
        rows: list[Any] = [
            [_parse_number(word, field) for word in line.split(",")] for line in lines
        ]
    except ValueError as error:  # of UTF-8, too
        raise _make_decode_error(location, f"cannot be read as CSV ({error})") from error
    if not field.shape:
        rows = [row[0] if len(row) == 1 else row for row in rows]
    return rows[0] if field.axis is None and len(rows) == 1 else rows


def _decode_number_text(raw: NDArray[np.uint8], spec: FieldSpec, location: DataLocation) -> Any:
    field = spec.field
    try:
        text = raw.tobytes().decode().strip()
        if field.shape or field.axis is not None:
            return [_parse_number(word, field) for word in text.split()]
        return _parse_number(text, field)
    except ValueError as error:  # of UTF-8, too
        kind = "number" if field.dtype.startswith("float") else "integer"
        what = f"list of {kind}s" if field.shape or field.axis is not None else kind
        problem = f"cannot be read as text of one {what} ({raw[:40].tobytes()!r})"
        raise _make_decode_error(location, problem) from error


def _parse_number(text: str, field: Field) -> int | float:
    return float(text) if field.dtype.startswith("float") else int(text)


def _to_field(found: Any, field: Field, location: DataLocation) -> NDArray[Any]:
    """Convert a value to (timesteps, *shape) in the dtype of a field.

    Raises:
        DecodeError: If the value does not match the field.
    """
    try:
        array = np.asarray(found)
    except ValueError as error:  # lists of different lengths
        raise _make_decode_error(location, "holds lists of different lengths") from error
    dtype = np.dtype(field.dtype)
    if isinstance(found, list) and not found:
        array = np.empty((0, *field.shape), dtype=dtype)
    if array.dtype != dtype:
        array = _cast(array, dtype, location)
    if field.axis is None:
        array = array.reshape(1, *array.shape)
    if array.ndim != 1 + len(field.shape) or array.shape[1:] != field.shape:
        expected = [*(["T"] if field.axis else []), *map(str, field.shape)]
        shape = array.shape if field.axis else array.shape[1:]
        raise _make_decode_error(location, f"has shape {list(shape)}, not [{', '.join(expected)}]")
    return np.ascontiguousarray(array)


def _cast(array: NDArray[Any], dtype: np.dtype[Any], location: DataLocation) -> NDArray[Any]:
    """Convert numbers to another dtype.

    Raises:
        DecodeError: If the dtype cannot represent all of them.
    """
    numbers = array.dtype.kind in "biuf"
    fits = numbers and (dtype.kind == "f" or array.dtype.kind != "f")
    if fits and dtype.kind in "biu" and array.size:
        with np.errstate(over="ignore"):
            converted = array.astype(dtype)
        fits = bool((converted == array).all())
    if not fits:
        raise _make_decode_error(
            location, f"holds {array.dtype} values that {dtype} cannot represent"
        )
    return array.astype(dtype)


def _make_decode_error(location: DataLocation, problem: str) -> DecodeError:
    return location.make_error(
        DecodeError,
        f"must match `schema`, but {problem}. Restore the shard, or correct `schema`",
    )


Decoder = Callable[[NDArray[np.uint8], FieldSpec, DataLocation], Any]
"""``decoder(raw, spec, location)`` returns the value in the bytes of a member."""
DECODERS: Mapping[str, Decoder] = {
    "npz": _decode_npz,
    "json": _decode_json,
    "jsn": _decode_json,
    "csv": _decode_csv,
    **dict.fromkeys((*TEXT_EXTENSIONS, "cls"), _decode_number_text),
    **dict.fromkeys(SOUND_EXTENSIONS, _decode_sound),
}
"""Extension -> decoder of its members; members of other extensions are read in place."""
