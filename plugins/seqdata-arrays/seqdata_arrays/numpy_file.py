"""Indexing of one file of NumPy: an array (``.npy``), or an archive of arrays (``.npz``).

Reads: headers, and all of an archive once, to compare its checksums. Makes: an index.
"""

from __future__ import annotations

import base64
import io
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import FileIndex, RandomAccessFile
from seqdata.errors import DecodeError
from seqdata_arrays.array_index import NO_MASK, StoredArray, index_arrays, split_rows
from seqdata_arrays.filters import ZIP
from seqdata_arrays.hdf5_file import FileView
from seqdata_arrays.layout import ArrayNode, ArrayOptions, Tree

SUFFIXES = (".npy", ".npz")
_FIELD = "x"
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_USUAL_HEADER = re.compile(
    rb"\{'descr': '([^'\\]+)', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d+, ?)*\d*)\), \}[ \n]*"
)
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a member: sizes of its name and extra field
_MAX_HEADER = 1 << 17  # bytes
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Array:
    """An array of a file.

    Attributes:
        dtype: Dtype as stored.
        shape: Its shape.
        begin: First byte of its values, or of its compressed bytes.
        size: Size in bytes of its values as they are stored.
        is_fortran: Whether the first index changes fastest.
        compressed_header: Bytes of its header that are compressed with the values; None: the values
            are not compressed.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    size: int
    is_fortran: bool
    compressed_header: int | None = None

    @property
    def is_contiguous(self) -> bool:
        """Whether its values are stored in C order and not compressed."""
        return self.compressed_header is None and not self.is_fortran


@dataclass(frozen=True)
class NumPyFormat:
    """Format of the files of ``numpy.save`` and ``numpy.savez``. Implements ``FileFormat``.

    Attributes:
        options: Options of reading.
        is_chunked: Whether to index files by chunk even if they can be read in place.

    Sources:
        numpy.lib.format; PKWARE, APPNOTE 6.3.10, 4.3.7 (header of a member).
    """

    options: ArrayOptions
    is_chunked: bool = False
    suffixes = SUFFIXES
    version = 1

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return the index of a file.

        Raises:
            DecodeError: If the arrays do not match the options, or an archive holds other members.
            ValueError: If it is not a file of NumPy, or is damaged.
        """
        is_archive = file.read(0, 2) == b"PK"
        arrays = _read_archive(file) if is_archive else {_FIELD: _read_array(file)}
        nodes = {name: _make_node(name, array, file) for name, array in arrays.items()}
        return index_arrays(
            file.name, Tree(nodes, {}), self.options,
            find_begin=lambda name: arrays[name].begin if arrays[name].is_contiguous else None,
            describe=lambda name: _describe_array(name, arrays[name]), is_chunked=self.is_chunked,
            default_id=file.name.rpartition(".")[0],
        )  # fmt: skip


def _read_array(file: RandomAccessFile) -> _Array:
    """Return the array of a ``.npy`` file.

    Raises:
        ValueError: If the file is damaged, or has more or fewer bytes than its header declares.
    """
    with FileView(file) as opened:
        dtype, shape, is_fortran = _read_header(opened)
        begin = opened.tell()
    size = _count_bytes(dtype, shape)
    if not dtype.hasobject and begin + size != file.size:
        raise ValueError(
            f"its header declares {shape} {dtype.name}, which are {size} bytes, but "
            f"{file.size - begin} bytes follow it"
        )
    return _Array(dtype, shape, begin, size, is_fortran)


def _read_archive(file: RandomAccessFile) -> dict[str, _Array]:
    """Return name -> array of a ``.npz`` file, all of which is read once.

    Raises:
        DecodeError: If a member is not an array, is there twice, is encrypted, or is compressed in
            another way than NumPy does.
        ValueError: If the file is damaged.
    """
    arrays: dict[str, _Array] = {}
    try:
        with FileView(file) as opened, zipfile.ZipFile(opened) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name == member.filename:
                    _refuse_member(member, "must be an array, name.npy, but is not")
                if name in arrays:
                    _refuse_member(member, "must be there once, but is there twice")
                if member.flag_bits & 1:
                    _refuse_member(member, "must not be encrypted, but is")
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    _refuse_member(member, "must be stored or deflated, as by NumPy, but is not")
                with archive.open(member) as content:
                    arrays[name] = _read_member(file, member, content)
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error) as error:
        raise ValueError(f"it is a damaged archive: {error}") from error
    return arrays


def _refuse_member(member: zipfile.ZipInfo, problem: str) -> None:
    raise DecodeError.at(f"member {member.filename!r} {problem}. Save the arrays with numpy.savez")


def _read_member(file: RandomAccessFile, member: zipfile.ZipInfo, content: IO[bytes]) -> _Array:
    """Return the array of a member, whose checksum is compared.

    Raises:
        ValueError: If it is damaged, or has more or fewer bytes than its header declares.
    """
    dtype, shape, is_fortran = _read_header(content)
    header = content.tell()
    size = member.file_size - header
    if not dtype.hasobject and size != _count_bytes(dtype, shape):
        raise ValueError(
            f"the header of {member.filename!r} declares {shape} {dtype.name}, but {size} bytes "
            "follow it"
        )
    while content.read(_PIECE_BYTES):  # raises at the end if the checksum is wrong
        pass
    offset = member.header_offset
    local = file.read(offset, offset + _LOCAL_HEADER.size)
    begin = offset + _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(local))
    if member.compress_type == zipfile.ZIP_DEFLATED:
        return _Array(dtype, shape, begin, member.compress_size, is_fortran, header)
    return _Array(dtype, shape, begin + header, size, is_fortran)


def _read_header(content: IO[bytes] | FileView) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Read a header: return dtype, shape, and whether the array is in Fortran order.

    The usual header is parsed here and not by NumPy, whose ``ast.literal_eval`` can fail with a
    ``SystemError`` in Python 3.11 if several threads index files.

    Raises:
        ValueError: If the header is damaged, or is not one of NumPy.
    """
    version = np.lib.format.read_magic(content)
    if version not in _HEADER_READERS:
        raise ValueError(
            f"it has a header of version {version[0]}.{version[1]}, but only 1.0 and 2.0 are read "
            "(3.0 is for named fields that are not Latin-1)"
        )
    size = _read(content, 2 * version[0])
    text = _read(content, int.from_bytes(size, "little"))
    if usual := _USUAL_HEADER.fullmatch(text):
        descr, order, sizes = (part.decode() for part in usual.groups())
        shape = tuple(int(part) for part in sizes.split(",") if part.strip())
        dtype, is_fortran = _parse_dtype(descr), order == "True"
    else:
        try:
            shape, is_fortran, dtype = _HEADER_READERS[version](
                io.BytesIO(size + text), max_header_size=_MAX_HEADER
            )
        except (SyntaxError, TokenError, TypeError, MemoryError, RecursionError) as error:
            raise ValueError(f"its header cannot be parsed: {error}") from error
    if not all(count >= 0 for count in shape):
        raise ValueError(f"its header declares the shape {shape}, with a negative size")
    return dtype, shape, is_fortran and len(shape) > 1


def _read(content: IO[bytes] | FileView, size: int) -> bytes:
    """Return the next bytes of a header.

    Raises:
        ValueError: If the file is cut off, or the header is too long.
    """
    found = content.read(size) if size <= _MAX_HEADER else b""
    if found is None or len(found) < size:
        raise ValueError(
            f"its header must have {size} bytes, at most {_MAX_HEADER}, but is cut off"
        )
    return found


def _parse_dtype(descr: str) -> np.dtype[Any]:
    """Return the dtype of a header.

    Raises:
        ValueError: If it is not one of NumPy.
    """
    try:
        return np.dtype(descr)
    except TypeError as error:
        raise ValueError(f"its header declares the dtype {descr!r}, which NumPy lacks") from error


def _count_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size  # integers of Python cannot overflow
    return count * dtype.itemsize


def _make_node(name: str, array: _Array, file: RandomAccessFile) -> ArrayNode:
    dtype = array.dtype
    is_text, is_number = dtype.kind in "SU", dtype.kind in "biuf" and 0 not in array.shape[1:]
    return ArrayNode(
        name, array.shape, dtype if is_number else None,
        "strings" if is_text else dtype.name, {}, lambda: _load(array, file),
    )  # fmt: skip


def _load(array: _Array, file: RandomAccessFile) -> NDArray[Any]:
    """Return the values of a small array."""
    content = file.read(array.begin, array.begin + array.size)
    if array.compressed_header is not None:
        content = zlib.decompress(content, -zlib.MAX_WBITS)[array.compressed_header :]
    values = np.frombuffer(content, array.dtype)
    return values.reshape(array.shape, order="F" if array.is_fortran else "C")


def _describe_array(name: str, array: _Array) -> StoredArray:
    """Return the positions of the chunks of an array.

    An array that is compressed, or in Fortran order, is one chunk.
    """
    if array.is_contiguous:
        return split_rows(name, array.dtype, array.shape, array.begin)
    header = array.compressed_header
    facts: dict[str, Any] = {
        "path": name, "dtype": array.dtype.str, "shape": list(array.shape),
        "chunks": [max(1, size) for size in array.shape],
        "filters": [] if header is None else [[ZIP, 0, [header]]],
        "fill": base64.b64encode(bytes(array.dtype.itemsize)).decode(), "padded": False,
        "order": "F" if array.is_fortran else "C",
    }  # fmt: skip
    count = int(_count_bytes(array.dtype, array.shape) > 0)
    begins, sizes = np.full(count, array.begin), np.full(count, array.size)
    return StoredArray(facts, begins, sizes, np.full(count, NO_MASK, np.int64))
