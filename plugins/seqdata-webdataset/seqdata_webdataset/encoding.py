"""Encoding of sequences as members of tar shards that the webdataset library reads."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqdata import ConfigError, DecodeError
from seqdata.backends import NUMBER_DTYPES, Field
from seqdata_webdataset.decoders import MULTI_VALUE_EXTENSIONS, TEXT_EXTENSIONS
from seqdata_webdataset.tar_headers import TAR_BLOCK, last_part, split_name
from seqdata_webdataset.unsafe import is_unsafe

_EXTENSIONS: Mapping[str, tuple[str, ...]] = {
    "str": (*TEXT_EXTENSIONS, "json", "jsn"),
    "bytes": ("bin", "jpg", "jpeg", "png", "mp3", "mp4", "ogg", "xml", *MULTI_VALUE_EXTENSIONS),
}
"""Dtype of strings or bytes -> extensions that the name of a field may have, the default first."""
_NPY = ("npy",)
_NPY_HEADER_BYTES = 128  # bytes of its header


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """Encoder of sequences to members of tar files. Implements ``ShardEncoder``.

    Attributes:
        fields: Name -> field, of all sequences.
        extensions: Name of a field -> extension of its members.
    """

    fields: Mapping[str, Field]
    extensions: Mapping[str, str]

    @classmethod
    def from_fields(cls, fields: Mapping[str, Field]) -> Encoder:
        """Choose the extension of each field.

        Raises:
            ConfigError: If a field's name cannot be an extension.
        """
        extensions = {name: choose_extension(name, field) for name, field in fields.items()}
        for name, extension in extensions.items():
            clashing = [clash for clash, ending in extensions.items() if ending == extension]
            if len(clashing) > 1:
                raise ConfigError(
                    "webdataset: fields must have different extensions, but "
                    f"{' and '.join(map(repr, clashing))} would both be {extension!r}. Rename one"
                )
            if split_name(f"x.{extension}") != ("x", extension) or is_unsafe(extension):
                raise ConfigError(
                    "webdataset: the extension of a field must be a plain extension, and not one "
                    f"of pickled data, but field {name!r} would get {extension!r}. Rename it"
                )
        return cls(fields, extensions)

    @property
    def declared(self) -> dict[str, tuple[str, str, tuple[int, ...], str | None]]:
        """Extension -> name, dtype, shape and axis of its field, which the index records."""
        return {
            extension: (name, field.dtype, field.shape, field.axis)
            for name, extension in self.extensions.items()
            for field in (self.fields[name],)
        }

    @property
    def end(self) -> bytes:
        """Bytes at the end of a tar file."""
        return bytes(2 * TAR_BLOCK)

    def encode(self, number: int, key: str, values: Mapping[str, Any]) -> list[bytes]:
        """Return the members of a sequence, each with header, content and padding.

        Args:
            number: Its index in the dataset.
            key: Its key.
            values: Field -> value.

        Raises:
            DecodeError: If the id cannot be a key.
        """
        if not key or split_name(f"{key}.x") != (key, "x"):
            raise DecodeError.at(
                f"sequence {number}: the id must be a valid key of a tar shard, not empty, without "
                f"a dot after its last slash or a first folder like '__x__', but is {key[:80]!r}. "
                "Change it, or pass `key=''` to number the samples and keep ids as a field",
                sequence=number,
            )
        return [
            _make_member(
                f"{key}.{extension}", _encode_value(extension, self.fields[name], values[name])
            )
            for name, extension in sorted(self.extensions.items(), key=lambda both: both[1])
        ]


def choose_extension(name: str, field: Field) -> str:
    """Return the extension of a field.

    Examples:
        >>> choose_extension("mel", Field("float32")), choose_extension("n", Field("str"))
        ('mel.npy', 'n.txt')
    """
    small, last = name.lower(), last_part(name.lower())
    if _is_integer(field) and last != "npy":
        return small if last == "cls" else f"{small}.cls"
    extensions = _EXTENSIONS.get(field.dtype, _NPY)
    return small if last in extensions else f"{small}.{extensions[0]}"


def _is_integer(field: Field) -> bool:
    """Return whether a field is one integer per sequence that fits int64."""
    plain = field.axis is None and not field.shape and field.dtype != "uint64"
    return plain and field.dtype.startswith(("int", "uint", "bool"))


def _encode_value(extension: str, field: Field, values: Any) -> bytes:
    if field.dtype not in NUMBER_DTYPES:
        return bytes(values.tobytes())
    if field.axis is not None:
        return _encode_npy(values)
    if extension.endswith("cls"):
        return str(int(values[0])).encode()
    return _encode_npy(np.asarray(values[0]))


def _encode_npy(array: Any) -> bytes:
    """Return the bytes of an array as a .npy file; faster than NumPy's writer for common arrays."""
    shape = ", ".join(map(str, array.shape)) + ("," if array.ndim == 1 else "")
    header = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': ({shape}), }}"
    if len(header) + 11 > _NPY_HEADER_BYTES:
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        return content.getvalue()
    length = _NPY_HEADER_BYTES - 10
    text = header.ljust(length - 1).encode() + b"\n"
    values: bytes = array.tobytes()
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text + values


def _make_member(name: str, content: bytes) -> bytes:
    """Return a member of a tar file: header, content, and padding to a complete block."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o444
    info.uname = info.gname = "seqdata"
    return info.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % TAR_BLOCK)
