"""Indexing of one HDF5 file: its tree, and the positions of its arrays.

Reads: structure of files, classic NetCDF among them. Makes: an index.
"""

from __future__ import annotations

import base64
import errno
import io
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from seqdata.backends import FileIndex, RandomAccessFile
from seqdata.errors import DecodeError
from seqdata_arrays.array_index import (
    INLINE,
    MISSING,
    StoredArray,
    check_chunks,
    index_arrays,
    split_rows,
)
from seqdata_arrays.chunked_array import REMEDY_FOR_FIELDS
from seqdata_arrays.layout import ArrayNode, ArrayOptions, Tree
from seqdata_arrays.netcdf3_file import is_classic, read_classic

SUFFIXES = (".h5", ".hdf5", ".he5", ".nc", ".nc4", ".nc3", ".cdf")
_INLINE_BYTES = 1 << 16  # HDF5 keeps no larger arrays in its own headers
_SINGLE = (
    str,
    bytes,
    np.number,
    np.bool_,
)  # types of a value that NetCDF-4 keeps as an array of one


class FileView(io.RawIOBase):
    """File object over a ``RandomAccessFile``."""

    def __init__(self, file: RandomAccessFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position in bytes, and return it."""
        position = offset + (0, self._at, self._file.size)[whence]
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = position
        return position

    def readinto(self, buffer: Any) -> int:
        """Copy the next bytes into a buffer; return their number."""
        content = self._file.read(self._at, self._at + len(buffer))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


@dataclass(frozen=True)
class HDF5Format:
    """Format of HDF5 and NetCDF files. Implements ``FileFormat``.

    Attributes:
        options: Options of reading.
        is_chunked: Whether to index files by chunk even if they can be read in place.
    """

    options: ArrayOptions
    is_chunked: bool = False
    suffixes = SUFFIXES
    version = 2
    reads_only_headers = True
    remedy_for_fields = remedy_for_dtypes = REMEDY_FOR_FIELDS

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return the index of a file.

        Raises:
            DecodeError: If the file does not match the options.
            LimitError: If the header of a classic NetCDF file is too large.
            OSError: If the file is neither HDF5 nor classic NetCDF, or is damaged HDF5.
            ValueError: If it is damaged classic NetCDF.
        """
        if is_classic(file):
            classic = read_classic(file)
            return index_arrays(
                file.name, classic.tree, self.options, find_begin=classic.find_begin,
                describe=classic.describe, is_chunked=self.is_chunked,
            )  # fmt: skip
        with h5py.File(FileView(file), "r") as opened:
            return index_arrays(
                file.name, _read_tree(opened), self.options,
                find_begin=lambda path: _find_begin(opened[path]),
                describe=lambda path: _describe_array(opened[path]), is_chunked=self.is_chunked,
            )  # fmt: skip


def _read_tree(opened: h5py.File) -> Tree:
    """Return the arrays and groups of a file; soft and external links are not followed."""
    arrays: dict[str, ArrayNode] = {}
    groups: dict[str, Mapping[str, Any]] = {"": _read_attributes(opened)}

    def visit(path: str, item: Any) -> None:
        if isinstance(item, h5py.Group):
            groups[path] = _read_attributes(item)
        elif isinstance(item, h5py.Dataset) and item.shape is not None:
            arrays[path] = _make_node(path, item)

    opened.visititems(visit)
    return Tree(arrays, groups)


def _make_node(path: str, item: h5py.Dataset) -> ArrayNode:
    dtype, is_text = item.dtype, h5py.check_string_dtype(item.dtype) is not None
    is_number = not is_text and dtype.kind in "biuf" and 0 not in item.shape[1:]
    kind = "strings" if is_text else dtype.name
    if is_number and h5py.h5t.py_create(dtype) != item.id.get_type():
        is_number, kind = False, "numbers of a precision or layout that NumPy does not have"
    return ArrayNode(
        path, item.shape, dtype if is_number else None, kind, _read_attributes(item),
        lambda: item[()],
    )  # fmt: skip


def _read_attributes(item: Any) -> dict[str, Any]:
    """Return name -> value of the attributes; those of types that h5py lacks are omitted.

    An array of shape (1,) is one number or string.
    """
    found: dict[str, Any] = {}
    for name in item.attrs:
        try:
            value = item.attrs[name]
        except (TypeError, OSError):  # of a type that h5py does not have: not a field
            continue
        is_one = isinstance(value, np.ndarray) and value.shape == (1,)  # NetCDF-4 has no scalars
        found[name] = value[0] if is_one and isinstance(value[0], _SINGLE) else value
    return found


def _find_begin(item: h5py.Dataset) -> int | None:
    """Return the first byte of an array that is contiguous in this file and was written, or None.

    For an array without elements, it is 0.
    """
    properties = item.id.get_create_plist()
    if properties.get_layout() != h5py.h5d.CONTIGUOUS or properties.get_external_count():
        return None
    if not item.size:
        return 0
    begin: int | None = item.id.get_offset()
    return begin


def _describe_array(item: h5py.Dataset) -> StoredArray:
    """Return the positions of the chunks of an array.

    Raises:
        DecodeError: If the array is stored in other files, or has too many chunks.
    """
    properties = item.id.get_create_plist()
    kind, path, fill = properties.get_layout(), item.name.strip("/"), _read_fill(item)
    if item.is_virtual or properties.get_external_count():
        raise DecodeError.at(
            f"array {item.name!r} must be stored in this file, but is stored in others (virtual or "
            "external). Copy it into one file with `h5repack -l CONTI IN OUT`"
        )
    chunks = item.chunks
    if kind != h5py.h5d.CHUNKED or chunks is None:
        stored = split_rows(path, item.dtype, item.shape, _find_begin(item), fill=fill)
        if kind == h5py.h5d.COMPACT and item.nbytes <= _INLINE_BYTES and item.size:
            stored.facts["inline"] = base64.b64encode(item[()].tobytes()).decode()
            stored.masks[:] = INLINE
        return stored
    filters: list[Any] = []
    for at in range(properties.get_nfilters()):
        code, flags, parameters, _ = properties.get_filter(at)
        filters.append([code, flags, list(parameters)])
    facts: dict[str, Any] = {
        "path": path, "dtype": item.dtype.str, "shape": list(item.shape), "chunks": list(chunks),
        "filters": filters, "fill": base64.b64encode(fill).decode(), "padded": True,
    }  # fmt: skip
    grid = [-(-size // chunk) for size, chunk in zip(item.shape, chunks, strict=True)]
    count = math.prod(grid)
    check_chunks(item.name, count)
    begins, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
    masks = np.full(count, MISSING, np.int64)
    for number, info in _iter_chunks(item, chunks, grid):
        begins[number], sizes[number] = info.byte_offset, info.size
        masks[number] = info.filter_mask
    return StoredArray(facts, begins, sizes, masks)


def _iter_chunks(
    item: h5py.Dataset, chunks: tuple[int, ...], grid: list[int]
) -> Iterator[tuple[int, Any]]:
    """Yield the index in C order of each written chunk, and its ``h5py.h5d.StoreInfo``."""
    found: list[Any] = []
    item.id.chunk_iter(found.append)
    for info in found:
        where = [at // size for at, size in zip(info.chunk_offset, chunks, strict=True)]
        if all(at < size for at, size in zip(where, grid, strict=True)):
            yield int(np.ravel_multi_index(where, grid)), info


def _read_fill(item: h5py.Dataset) -> bytes:
    return np.asarray(item.fillvalue).astype(item.dtype).tobytes()
