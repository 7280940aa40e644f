"""The index of one file of arrays, by sequence or by chunk.

If all fields are contiguous, uncompressed and in the byte order of this machine, the file is
indexed by sequence and read in place. Otherwise it is indexed by chunk: each sequence of the index
is one stored chunk, and a description of the arrays and sequences is stored in the index ("notes",
JSON in pieces). Reads: positions of arrays. Makes: an index.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import Extents, FileIndex
from seqdata.errors import DecodeError
from seqdata_arrays.chunked_array import (
    ChunkedArray,
    Codec,
    FileSequences,
    pack_array,
    unpack_array,
)
from seqdata_arrays.filters import FilterPipeline
from seqdata_arrays.layout import (
    TEXT_BYTES,
    ArrayNode,
    ArrayOptions,
    LaidField,
    Layout,
    Tree,
    find_layout,
)

CHUNK, ROW, MASK, NOTES = "__chunk__", "__row__", "__mask__", "__notes__"
TEXT = "__text__"
"""Prefix of the names of strings per sequence, in an index by sequence."""
NOTE_BYTES = 256
NO_MASK, MISSING, INLINE = 0, -1, -2
"""Filter masks: no filter is skipped; the chunk was never written; its bytes are in the notes."""
_PIECE_BYTES = 1 << 20  # of an array without chunks, in a file that is read by chunks
_MOST_CHUNKS = 50_000_000


@dataclass(frozen=True, slots=True, eq=False)
class StoredArray:
    """The positions of the chunks of an array.

    Attributes:
        facts: Path, dtype, shape, chunks and filters of the array, for JSON.
        begins: int64 (chunks,), the first byte of each chunk.
        sizes: int64 (chunks,), the size of each chunk in bytes.
        masks: int64 (chunks,), a set bit for each filter that a chunk skips; ``MISSING``: never
            written; ``INLINE``: its bytes are in ``facts``.
    """

    facts: dict[str, Any]
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    masks: NDArray[np.int64]


def split_rows(
    path: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    begin: int | None,
    *,
    step: int | None = None,
    fill: bytes | None = None,
) -> StoredArray:
    """Divide an array without chunks into pieces, which become its chunks.

    A piece has at most a mebibyte, or one row.

    Args:
        path: Its path in the file.
        dtype: Dtype as stored.
        shape: Its shape.
        begin: Its first byte; None: it was never written.
        step: Bytes from the beginning of a row to the next; None: rows are contiguous.
        fill: One element as stored, the value of an array that was never written; None: zero.

    Raises:
        DecodeError: If there are too many pieces.
    """
    width = math.prod(shape[1:]) * dtype.itemsize
    step = width if step is None else step
    rows = max(1, _PIECE_BYTES // max(1, step))
    count = -(-shape[0] // rows) if width else 0
    check_chunks(path, count)
    firsts = np.arange(count, dtype=np.int64) * rows
    sizes = (np.minimum(firsts + rows, shape[0]) - firsts - 1) * step + width
    facts: dict[str, Any] = {
        "path": path, "dtype": dtype.str, "shape": list(shape),
        "chunks": [rows, *(max(1, size) for size in shape[1:])], "filters": [],
        "fill": base64.b64encode(fill or bytes(dtype.itemsize)).decode(), "padded": False,
    }  # fmt: skip
    if step != width:
        facts["rows"] = [step, width]
    if begin is None:
        nowhere = np.zeros(count, np.int64)
        return StoredArray(facts, nowhere, nowhere, np.full(count, MISSING, np.int64))
    return StoredArray(facts, begin + firsts * step, sizes, np.full(count, NO_MASK, np.int64))


def check_chunks(path: str, count: int) -> None:
    """Raise if an array has too many chunks for an index.

    Raises:
        DecodeError: If it has too many chunks.
    """
    if count > _MOST_CHUNKS:
        raise DecodeError.at(
            f"array {path!r} must have at most {_MOST_CHUNKS} chunks, but has {count}. "
            "Write it again in larger chunks"
        )


def index_arrays(
    name: str,
    tree: Tree,
    options: ArrayOptions,
    *,
    find_begin: Callable[[str], int | None],
    describe: Callable[[str], StoredArray],
    is_chunked: bool,
    default_id: str | None = None,
) -> FileIndex:
    """Return the index of a file.

    Args:
        name: Its name.
        tree: Its arrays.
        options: Options of reading.
        find_begin: ``find_begin(path)`` returns the first byte of a contiguous array, None for
            others.
        describe: ``describe(path)`` returns the positions of the chunks of an array.
        is_chunked: Whether to index by chunk even if the file can be read in place.
        default_id: Id of the sequence if the file is one sequence; None: the name of the file.

    Raises:
        DecodeError: If the arrays do not match the options, or a string or an array is too large.
    """
    layout = find_layout(tree, options)
    if layout.ids is None and default_id is not None:
        layout = replace(layout, ids=[default_id])
    arrays = {node.path: node for laid in layout.fields.values() for node in laid.arrays}
    begins = {path: _find_native(node, find_begin) for path, node in arrays.items()}
    if not is_chunked and all(begin is not None for begin in begins.values()):
        return _index_sequences(layout, begins)
    return _index_chunks(name, layout, {path: describe(path) for path in arrays})


def _find_native(node: ArrayNode, find_begin: Callable[[str], int | None]) -> int | None:
    """Return the first byte of an array that is read in place; None for any other.

    Numbers of another byte order are not read in place, because each read would convert a whole
    sequence.
    """
    return find_begin(node.path) if node.dtype is not None and node.dtype.isnative else None


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
                    f"string {name!r} must have at most {TEXT_BYTES} bytes, but has {len(raw)}. "
                    "Leave it out with `fields`"
                )
            row[: len(raw)] = np.frombuffer(raw, np.uint8)
        fields[TEXT + name] = Extents(nowhere, nowhere, "|u1", (TEXT_BYTES,), None, values=packed)
    return FileIndex(fields, layout.ids, layout.missing)


def _index_chunks(name: str, layout: Layout, stored: Mapping[str, StoredArray]) -> FileIndex:
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
        "missing": layout.missing,
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
    """Bytes of a small array that are stored in the index. Implements ``Codec``."""

    content: bytes

    def __call__(self, stored: Any, mask: int, size: int) -> bytes:
        del stored, mask, size
        return self.content


@dataclass(frozen=True)
class _Rows:
    """Rows at equal distances, with bytes of other arrays between them. Implements ``Codec``.

    Attributes:
        step: Bytes from the beginning of a row to the next.
        width: Bytes of a row.
    """

    step: int
    width: int

    def __call__(self, stored: Any, mask: int, size: int) -> Any:
        del mask
        count = size // self.width
        due = (count - 1) * self.step + self.width
        if len(stored) != due:
            raise ValueError(f"its rows span {len(stored)} bytes, not {due}")
        rows: Any = np.ndarray((count,), f"V{self.width}", stored, strides=(self.step,))
        return np.ascontiguousarray(rows).view(np.uint8)


def parse_notes(name: str, pieces: NDArray[np.uint8]) -> FileSequences:
    """Return the sequences of a file that was indexed by chunk.

    Args:
        name: Name of the file.
        pieces: uint8 (rows, NOTE_BYTES), the notes in its index.
    """
    notes = json.loads(pieces.tobytes().rstrip(b"\0"))
    return FileSequences(
        name, [_parse_array(facts) for facts in notes["arrays"]], notes["ids"], notes["axes"],
        {field: unpack_array(packed) for field, packed in notes["spans"].items()},
        {field: unpack_array(packed) for field, packed in notes["values"].items()}, notes["texts"],
        notes.get("missing", {}),
    )  # fmt: skip


def _parse_array(facts: Mapping[str, Any]) -> ChunkedArray:
    return ChunkedArray(
        facts["path"], np.dtype(facts["dtype"]), tuple(facts["shape"]), tuple(facts["chunks"]),
        base64.b64decode(facts["fill"]), _make_codec(facts), facts.get("order", "C"),
        facts["padded"],
    )  # fmt: skip


def _make_codec(facts: Mapping[str, Any]) -> Codec:
    if "inline" in facts:
        return _Inline(base64.b64decode(facts["inline"]))
    if "rows" in facts:
        return _Rows(*facts["rows"])
    filters = tuple((code, flags, tuple(values)) for code, flags, values in facts["filters"])
    return FilterPipeline(filters, facts["dtype"], tuple(facts["chunks"]))
