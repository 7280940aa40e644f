"""Encoding of sequences as members of tar shards that the webdataset library reads."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqdata import ConfigError, DecodeError
from seqdata.backends import (
    Field,
    Packer,
    check_axis_lengths,
    find_key,
    kind_of,
    make_packer,
    pack_sequence,
)
from seqdata_webdataset.decoders import MULTI_VALUE_EXTENSIONS, TEXT_EXTENSIONS
from seqdata_webdataset.member_names import is_unsafe, last_part, split_name
from seqdata_webdataset.tar_headers import TAR_BLOCK

_EXTENSIONS: Mapping[type, tuple[str, ...]] = {
    str: (*TEXT_EXTENSIONS, "json", "jsn"),
    bytes: ("bin", "jpg", "jpeg", "png", "mp3", "mp4", "ogg", "xml", *MULTI_VALUE_EXTENSIONS),
    np.ndarray: ("npy",),
}
"""Type of a value -> the extensions that its field's name may end with, the usual one first."""
_NPY_HEADER_BYTES = 128  # bytes of its header


@dataclass(frozen=True, slots=True, eq=False)
class Encoder:
    """Turns sequences into members. Created by ``of``.

    Attributes:
        fields: Name -> field, of all sequences.
        extensions: Name -> extension, without the key.
        key: The field of ids; None: samples are numbered.
        packers: The packers that check and convert values, as for any store.
    """

    fields: Mapping[str, Field]
    extensions: Mapping[str, str]
    key: str | None
    packers: Mapping[str, Packer]

    @classmethod
    def of(cls, fields: Mapping[str, Field], key: str) -> Encoder:
        """Choose the extension of each field.

        Raises:
            ConfigError: If a field's name cannot be an extension.
        """
        found = find_key(fields, key)
        extensions = {
            name: choose_extension(name, field) for name, field in fields.items() if name != found
        }
        for name, extension in extensions.items():
            clashing = [clash for clash, ending in extensions.items() if ending == extension]
            if len(clashing) > 1:
                raise ConfigError(
                    "webdataset: fields must have different extensions, but "
                    f"{' and '.join(map(repr, clashing))} would both be {extension!r}. Rename one"
                )
            if split_name(f"x.{extension}") != ("x", extension) or is_unsafe(extension):
                raise ConfigError(
                    "webdataset: the extension of a field must be plain letters, and not that of "
                    f"pickled data, but field {name!r} would be {extension!r}. Rename it"
                )
        packers = {name: make_packer(field, is_key=name == key) for name, field in fields.items()}
        return cls(fields, extensions, found, packers)

    @property
    def fields_of_extensions(self) -> dict[str, tuple[str, str, tuple[int, ...], str | None]]:
        """Extension -> the field as which it is read again."""
        return {
            extension: (name, field.dtype, field.shape, field.axis)
            for name, extension in self.extensions.items()
            for field in (self.fields[name],)
        }

    def encode(self, sequence: Any, number: int) -> tuple[str, list[tuple[str, bytes]]]:
        """Return the key of a sequence, and (extension, bytes) of its members.

        Args:
            sequence: Field -> value.
            number: Its number in the data set.

        Raises:
            DecodeError: If it does not match the first one, or its id cannot be a key.
        """
        pack_sequence(self.packers, sequence, number, self.key or "")
        packed = {name: packer.take() for name, packer in self.packers.items()}
        check_axis_lengths(self.fields, packed, number, self.key or "")
        key = number_key(number)
        if self.key is not None:
            key = packed[self.key][0].tobytes().decode()
            if not key or split_name(f"{key}.x") != (key, "x"):
                raise DecodeError.at(
                    f"sequence {number}: the id must be a valid key of a tar shard, without a dot "
                    f"after its last slash and not beginning with '__', but is {key[:80]!r}. "
                    "Change it, or number the samples and keep ids as a field: pass `key`=''",
                    sequence=number,
                )
        return key, [
            (extension, _encode_value(extension, self.fields[name], packed[name][0]))
            for name, extension in sorted(self.extensions.items(), key=lambda both: both[1])
        ]


def number_key(number: int) -> str:
    """Return the key of a sample that is only numbered."""
    return f"{number:09d}"


def choose_extension(name: str, field: Field) -> str:
    """Return the extension of a field.

    Examples:
        >>> choose_extension("mel", Field("float32")), choose_extension("y", Field("int64", (),
        None)) ('mel.npy', 'y.cls')
    """
    small, last = name.lower(), last_part(name.lower())
    if _is_whole_number(field) and last != "npy":
        return small if last == "cls" else f"{small}.cls"
    extensions = _EXTENSIONS[kind_of(field).value_type]
    return small if last in extensions else f"{small}.{extensions[0]}"


def _is_whole_number(field: Field) -> bool:
    """Return whether a field is one integer per sequence that fits int64."""
    plain = field.axis is None and not field.shape and field.dtype != "uint64"
    return plain and field.dtype.startswith(("int", "uint", "bool"))


def _encode_value(extension: str, field: Field, values: Any) -> bytes:
    if not kind_of(field).is_array:
        return bytes(values.tobytes())
    if field.axis is not None:
        return _encode_npy(values)
    if extension.endswith("cls"):
        return str(int(values[0])).encode()
    return _encode_npy(np.asarray(values[0]))


def _encode_npy(array: Any) -> bytes:
    """Return an array as a .npy file; without NumPy's slower writer for common kinds."""
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


def make_member(name: str, content: bytes) -> bytes:
    """Return a member of a tar file: header, bytes, and padding to a whole block."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o444
    info.uname = info.gname = "seqdata"
    return info.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % TAR_BLOCK)


END_OF_ARCHIVE = bytes(2 * TAR_BLOCK)
"""The end of a tar file."""
