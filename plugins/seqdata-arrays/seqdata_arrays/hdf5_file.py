"""One HDF5 file while it is indexed: its tree, where its arrays lie, and the index of both.

A file whose fields all lie in one piece, uncompressed, is indexed by sequence and read in place.
Any other is indexed by chunk: each sequence of the index is one stored chunk, and what the file
holds is kept in the index as JSON, in pieces. Reads: structure of files. Makes: an index.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from seqdata.backends import Extents, FileIndex, RandomAccessFile
from seqdata.errors import DecodeError
from seqdata_arrays.chunked_array import ChunkedArray, FileSequences, pack_array, unpack_array
from seqdata_arrays.filters import FilterPipeline
from seqdata_arrays.layout import (
    TEXT_BYTES,
    ArrayNode,
    ArrayOptions,
    LaidField,
    Layout,
    Tree,
    find_lacking,
    find_layout,
)

SUFFIXES = (".h5", ".hdf5", ".he5", ".nc", ".nc4")
CHUNK, ROW, MASK, NOTES = "__chunk__", "__row__", "__mask__", "__notes__"
TEXT = "__text__"
"""Beginning of the names of texts per sequence, in an index by sequence."""
NOTE_BYTES = 256
_NETCDF3 = (b"CDF\x01", b"CDF\x02", b"CDF\x05")
_PIECE_BYTES = 1 << 20  # of an array without chunks, in a file that is read by chunks
_MOST_CHUNKS = 50_000_000
_INLINE_BYTES = 1 << 16  # HDF5 keeps no larger arrays in its own headers
_NO_MASK, MISSING, _INLINE = 0, -1, -2


class _FileView(io.RawIOBase):
    """The bytes of a file as the file object that h5py reads from."""

    def __init__(self, file: RandomAccessFile) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(self._at, self._at + len(buffer))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


@dataclass(frozen=True)
class HDF5Format:
    """HDF5 files: a ``FileFormat``.

    Attributes:
        options: Options of what is read.
        is_chunked: Whether files are indexed by chunk where they could be read in place, too.
    """

    options: ArrayOptions
    is_chunked: bool = False
    suffixes = SUFFIXES
    version = 1

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return where the values of a file lie.

        Raises:
            DecodeError: If it does not hold what the options say.
            ValueError: If it is not an HDF5 file, or damaged.
        """
        magic = file.read(0, 4)
        if magic in _NETCDF3:
            raise DecodeError.at(
                f"{file.name}: must be HDF5 (NetCDF-4), but is NetCDF-3 (it begins with "
                f"CDF-{magic[3]}). Convert it with `nccopy -k nc4 in.nc out.nc`"
            )
        with h5py.File(_FileView(file), "r") as opened:
            layout = find_layout(_read_tree(opened), self.options)
            arrays = _list_arrays(layout)
            begins = {path: _find_begin(opened[path]) for path in arrays}
            if not self.is_chunked and all(begin is not None for begin in begins.values()):
                return _index_sequences(layout, begins)
            stored = {path: _StoredArray.of(opened[path], begins[path]) for path in arrays}
        return _index_chunks(file.name, layout, stored)


def find_lacking_in(path: Path, options: ArrayOptions, name: str) -> list[str]:
    """Return the ids of a file's recordings without an attribute that others of it have.

    Raises:
        OSError: If the file cannot be read.
        DecodeError: If it does not hold what the options say.
    """
    with h5py.File(path, "r") as opened:
        return find_lacking(_read_tree(opened), options, name)


def _read_tree(opened: h5py.File) -> Tree:
    """Return the arrays and groups of a file; links to other files are not followed."""
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
    is_number = not is_text and dtype.kind in "biuf"
    if is_number and h5py.h5t.py_create(dtype) != item.id.get_type():
        is_number = False  # of another precision or layout than NumPy's
    return ArrayNode(
        path, item.shape, dtype if is_number else None, "texts" if is_text else dtype.name,
        _read_attributes(item), lambda: item[()],
    )  # fmt: skip


def _read_attributes(item: Any) -> dict[str, Any]:
    """Return the attributes of which HDF5 gives values that NumPy knows."""
    found: dict[str, Any] = {}
    for name in item.attrs:
        try:
            found[name] = item.attrs[name]
        except (TypeError, OSError):  # a type that h5py does not have: of no field
            continue
    return found


def _list_arrays(layout: Layout) -> dict[str, ArrayNode]:
    """Return the arrays that fields lie in, each once."""
    return {node.path: node for laid in layout.fields.values() for node in laid.arrays}


def _find_begin(item: h5py.Dataset) -> int | None:
    """Return the first byte of an array that lies in one piece in this file; None if none does."""
    properties = item.id.get_create_plist()
    if properties.get_layout() != h5py.h5d.CONTIGUOUS or properties.get_external_count():
        return None
    if not item.size:
        return 0
    begin: int | None = item.id.get_offset()
    return begin


def _index_sequences(layout: Layout, begins: Mapping[str, int | None]) -> FileIndex:
    """Return the index of a file that is read in place."""
    fields: dict[str, Extents] = {}
    for name, laid in layout.fields.items():
        bases = np.array([begins[node.path] or 0 for node in laid.arrays], dtype=np.int64)
        width = math.prod(laid.shape) * laid.dtype.itemsize
        base = bases[laid.which]
        fields[name] = Extents(
            base + laid.firsts * width, base + laid.stops * width, laid.dtype.str, laid.shape,
            laid.axis,
        )  # fmt: skip
    count = len(next(iter(layout.fields.values())).which)
    nowhere = np.full(count, -1)
    for name, values in layout.values.items():
        fields[name] = Extents(
            nowhere, nowhere, values.dtype.newbyteorder("=").str, values.shape[1:], None,
            values=values,
        )  # fmt: skip
    for name, texts in layout.texts.items():
        packed = np.zeros((count, TEXT_BYTES), dtype=np.uint8)
        for row, text in zip(packed, texts, strict=True):
            raw = text.encode()
            if len(raw) > TEXT_BYTES:
                raise DecodeError.at(
                    f"text {name!r} must have at most {TEXT_BYTES} bytes, but has {len(raw)}. "
                    "Leave it out"
                )
            row[: len(raw)] = np.frombuffer(raw, np.uint8)
        fields[TEXT + name] = Extents(nowhere, nowhere, "|u1", (TEXT_BYTES,), None, values=packed)
    return FileIndex(fields, layout.ids)


@dataclass(frozen=True, slots=True, eq=False)
class _StoredArray:
    """The positions of the chunks of an array.

    Attributes:
        facts: What is kept as JSON.
        begins: int64 (chunks,), the first byte of each.
        sizes: int64 (chunks,), bytes.
        masks: int64 (chunks,), the filters that it skips; or that it was never written.
    """

    facts: dict[str, Any]
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    masks: NDArray[np.int64]

    @classmethod
    def of(cls, item: h5py.Dataset, begin: int | None) -> _StoredArray:
        properties = item.id.get_create_plist()
        kind, itemsize = properties.get_layout(), item.dtype.itemsize
        if item.is_virtual or properties.get_external_count():
            raise DecodeError.at(
                f"array {item.name!r} must lie in its own file, but lies in others (virtual or "
                "external). Copy it into one file with `h5repack`"
            )
        filters: list[Any] = []
        chunks = item.chunks
        if kind == h5py.h5d.CHUNKED and chunks is not None:
            for at in range(properties.get_nfilters()):
                code, flags, parameters, _ = properties.get_filter(at)
                filters.append([code, flags, list(parameters)])
        else:
            row = max(1, math.prod(item.shape[1:]) * itemsize)
            pieces = item.shape[0] if kind == h5py.h5d.COMPACT else max(1, _PIECE_BYTES // row)
            chunks = (max(1, pieces), *(max(1, size) for size in item.shape[1:]))
        facts: dict[str, Any] = {
            "path": item.name.strip("/"), "dtype": item.dtype.str, "shape": list(item.shape),
            "chunks": list(chunks), "filters": filters,
            "fill": base64.b64encode(_read_fill(item)).decode(),
            "padded": kind == h5py.h5d.CHUNKED,
        }  # fmt: skip
        grid = [-(-size // chunk) for size, chunk in zip(item.shape, chunks, strict=True)]
        count = math.prod(grid)
        if count > _MOST_CHUNKS:
            raise DecodeError.at(
                f"array {item.name!r} must have at most {_MOST_CHUNKS} chunks, but has {count}. "
                "Write it again in larger chunks"
            )
        begins, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64)
        masks = np.full(count, MISSING, np.int64)
        if kind == h5py.h5d.CHUNKED:
            for number, info in _iter_chunks(item, chunks, grid):
                begins[number], sizes[number] = info.byte_offset, info.size
                masks[number] = info.filter_mask
        elif kind == h5py.h5d.COMPACT and item.nbytes <= _INLINE_BYTES and count:
            facts["inline"] = base64.b64encode(item[()].tobytes()).decode()
            masks[:] = _INLINE
        elif begin is not None and count:
            row = math.prod(item.shape[1:]) * itemsize
            firsts = np.arange(count, dtype=np.int64) * chunks[0]
            begins[:] = begin + firsts * row
            sizes[:] = (np.minimum(firsts + chunks[0], item.shape[0]) - firsts) * row
            masks[:] = _NO_MASK
        return cls(facts, begins, sizes, masks)


def _iter_chunks(
    item: h5py.Dataset, chunks: tuple[int, ...], grid: list[int]
) -> Iterator[tuple[int, Any]]:
    """Yield the number in C order of each written chunk, and where it lies."""
    found: list[Any] = []
    item.id.chunk_iter(found.append)
    for info in found:
        where = [at // size for at, size in zip(info.chunk_offset, chunks, strict=True)]
        if all(at < size for at, size in zip(where, grid, strict=True)):
            yield int(np.ravel_multi_index(where, grid)), info


def _read_fill(item: h5py.Dataset) -> bytes:
    return np.asarray(item.fillvalue).astype(item.dtype).tobytes()


def _index_chunks(name: str, layout: Layout, stored: Mapping[str, _StoredArray]) -> FileIndex:
    """Return the index of a file by chunk."""
    numbers = {path: number for number, path in enumerate(stored)}
    notes = {
        "arrays": [array.facts for array in stored.values()],
        "ids": None if layout.ids is None else list(layout.ids),
        "axes": {field: laid.axis for field, laid in layout.fields.items()},
        "spans": {
            field: pack_array(_make_spans(laid, numbers)) for field, laid in layout.fields.items()
        },
        "values": {
            field: pack_array(values.astype(values.dtype.newbyteorder("<")))
            for field, values in layout.values.items()
        },
        "texts": {field: list(texts) for field, texts in layout.texts.items()},
    }
    content = json.dumps(notes).encode()
    chunks = sum(len(array.begins) for array in stored.values())
    rows = max(chunks, -(-len(content) // NOTE_BYTES))
    begins, sizes, masks = (np.zeros(rows, dtype=np.int64) for _ in range(3))
    ids = [
        f"{name}/{path}#{at}" for path, array in stored.items() for at in range(len(array.begins))
    ]
    ids += [f"{name}#notes{at}" for at in range(rows - chunks)]
    for field, target in (("begins", begins), ("sizes", sizes), ("masks", masks)):
        parts = [getattr(array, field) for array in stored.values()]
        target[:chunks] = np.concatenate(parts)
    pieces = np.zeros((rows, NOTE_BYTES), dtype=np.uint8)
    pieces.reshape(-1)[: len(content)] = np.frombuffer(content, np.uint8)
    nowhere = np.full(rows, -1)
    return FileIndex(
        {
            CHUNK: Extents(begins, begins + sizes, "|u1"),
            ROW: Extents(nowhere, nowhere, "int64", (), None, values=np.arange(rows)),
            MASK: Extents(nowhere, nowhere, "int64", (), None, values=masks),
            NOTES: Extents(nowhere, nowhere, "|u1", (NOTE_BYTES,), None, values=pieces),
        },
        ids,
    )


def _make_spans(laid: LaidField, numbers: Mapping[str, int]) -> NDArray[np.int64]:
    of = np.array([numbers[node.path] for node in laid.arrays], dtype=np.int64)
    return np.stack([of[laid.which], laid.firsts, laid.stops], axis=1)


@dataclass(frozen=True)
class _Inline:
    """The bytes of an array that the index holds: a ``Codec``."""

    content: bytes

    def __call__(self, stored: Any, mask: int, size: int) -> bytes:
        del stored, mask, size
        return self.content


def parse_notes(name: str, pieces: NDArray[np.uint8]) -> FileSequences:
    """Return the sequences of a file that was indexed by chunk.

    Args:
        name: Its name.
        pieces: uint8 (rows, NOTE_BYTES), from its index.
    """
    notes = json.loads(pieces.tobytes().rstrip(b"\0"))
    return FileSequences(
        name, [_parse_array(facts) for facts in notes["arrays"]], notes["ids"], notes["axes"],
        {field: unpack_array(packed) for field, packed in notes["spans"].items()},
        {field: unpack_array(packed) for field, packed in notes["values"].items()}, notes["texts"],
    )  # fmt: skip


def _parse_array(facts: Mapping[str, Any]) -> ChunkedArray:
    chunks = tuple(facts["chunks"])
    filters = tuple((code, flags, tuple(values)) for code, flags, values in facts["filters"])
    inline = facts.get("inline")
    return ChunkedArray(
        facts["path"], np.dtype(facts["dtype"]), tuple(facts["shape"]), chunks,
        base64.b64decode(facts["fill"]),
        FilterPipeline(filters, facts["dtype"], chunks)
        if inline is None
        else _Inline(base64.b64decode(inline)),
        is_padded=facts["padded"],
    )  # fmt: skip
