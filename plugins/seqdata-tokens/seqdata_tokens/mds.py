"""Shards of MosaicML Streaming (``.mds``): one column of tokens, read in place.

A shard holds the number of samples, their offsets, a description of its columns as JSON, and the
samples: the sizes of the columns of variable size, then the values of all columns. ``index.json``
lists the shards of a folder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import RandomAccessFile
from seqdata_tokens.listed_files import TokenExtents, check_neighbor, read_list

SUFFIX = ".mds"
PACKED = tuple(f"{SUFFIX}.{end}" for end in ("zstd", "gz", "br", "bz2", "snappy"))
"""Suffixes of compressed shards."""
_NDARRAY, _BYTES = "ndarray", "bytes"
_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32",
    34: "float32", 64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
_NAMES = frozenset(_DTYPES.values())
_ONE_DIMENSION = 1 << 2  # in the first byte of a shape, beside the log2 of the bytes of a size


def index_mds(file: RandomAccessFile, column: str | None, dtype: str | None) -> TokenExtents:
    """Return the extents of a column of a shard.

    Args:
        file: The shard.
        column: Name of the column; None: the only column.
        dtype: Dtype of the tokens in a column of ``bytes``; None: not known.

    Raises:
        ValueError: If the shard is damaged, differs from ``index.json``, or does not have the
            column; if the column is not of tokens; or if it is of ``bytes`` and ``dtype`` is None.
    """
    content = np.frombuffer(file.read(0, file.size), np.uint8)
    offsets = _read_offsets(content)
    columns = _read_columns(content[4 + 4 * len(offsets) : offsets[0]].tobytes())
    _check_listed(file, len(offsets) - 1)
    chosen = _choose(columns, column)
    begins, ends = _find_values(content, offsets, columns, chosen)
    encoding = columns[chosen].encoding
    if encoding == _BYTES:
        if dtype is None:
            raise ValueError(
                f"has a column {columns[chosen].name!r} of bytes, whose dtype must be given. Open "
                "it in Python, with open_store(path, backend=Tokens(dtype=...)) and the dtype "
                "that was written ('int64' by llm-foundry)"
            )
        return TokenExtents(begins, ends, dtype)
    return _skip_heads(content, begins, ends, encoding)


def make_packed_error(file: RandomAccessFile) -> ValueError:
    """Return the error about a compressed shard."""
    ending = file.name.rpartition(".")[2]
    return ValueError(
        f"is compressed ({ending}), and parts of it cannot be read in place. Unpack it and move it "
        "out of the folder, or write it with MDSWriter(compression=None)"
    )


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    encoding: str
    size: int | None  # bytes of each value; None: each has its own


def _read_offsets(content: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the offsets of samples, int64 (samples+1,)."""
    count = int(content[:4].view("<u4")[0]) if len(content) >= 4 else 0
    head = 4 + 4 * (count + 1)
    if len(content) < head:
        raise ValueError(
            f"has {len(content)} bytes, but must have at least {head} for the offsets of {count} "
            "samples"
        )
    offsets = content[4:head].view("<u4").astype(np.int64)
    if offsets[0] < head or (np.diff(offsets) < 0).any() or offsets[-1] != len(content):
        raise ValueError(
            f"must have ascending offsets from {head} or later to {len(content)}, its size, but "
            f"has {offsets[0]} to {offsets[-1]}: it was cut off, or another writer made it"
        )
    return offsets


def _read_columns(head: bytes) -> list[_Column]:
    try:
        found: Any = json.loads(head)
        names, encodings = found["column_names"], found["column_encodings"]
        zipped = zip(names, encodings, found["column_sizes"], strict=True)
        return [
            _Column(str(name), str(encoding), None if size is None else int(size))
            for name, encoding, size in zipped
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"does not describe its columns ({error}): it is damaged") from error


def _check_listed(file: RandomAccessFile, count: int) -> None:
    """Raise a ValueError if a shard differs from ``index.json``; do nothing if there is none."""
    listed = read_list(file, "shards")
    if listed is None:
        return
    names = [shard["raw_data"]["basename"] for shard in listed]
    at = check_neighbor(file, names)
    size, samples = listed[at]["raw_data"]["bytes"], listed[at]["samples"]
    if (size, samples) != (file.size, count):
        raise ValueError(
            f"has {file.size} bytes and {count} samples, but index.json says {size} and {samples}"
        )


def _choose(columns: list[_Column], name: str | None) -> int:
    said = ", ".join(f"{column.name} ({column.encoding})" for column in columns)
    names = [column.name for column in columns]
    if name is None and len(columns) != 1:
        raise ValueError(
            f"has the columns {said}; one must be chosen. Open it in Python, with "
            "open_store(path, backend=Tokens(column=...))"
        )
    if name is not None and name not in names:
        raise ValueError(f"must have the column {name!r}, but has {said}. Pass another `column`")
    at = 0 if name is None else names.index(name)
    if columns[at].encoding.partition(":")[0] not in (_NDARRAY, _BYTES):
        raise ValueError(
            f"has a column {columns[at].name!r} of {columns[at].encoding}, but tokens must be "
            "ndarray or bytes. Pass another `column`"
        )
    return at


def _find_values(
    content: NDArray[np.uint8], offsets: NDArray[np.int64], columns: list[_Column], chosen: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return begin and end of the values of a column, int64 (samples,) each."""
    begins, stops = offsets[:-1], offsets[1:]
    loose = [column for column in columns if column.size is None]
    head = 4 * len(loose)
    if (stops - begins < head).any():
        raise ValueError("has samples that are shorter than the sizes of their columns")
    raw = content[begins[:, None] + np.arange(head)]
    sizes = np.ascontiguousarray(raw).view("<u4").astype(np.int64).reshape(len(begins), -1)
    each = np.empty((len(begins), len(columns)), np.int64)
    each[:, [column.size is None for column in columns]] = sizes
    for at, column in enumerate(columns):
        if column.size is not None:
            each[:, at] = column.size
    ends = begins[:, None] + head + np.cumsum(each, axis=1)
    if (ends[:, -1] != stops).any():
        raise ValueError("has samples whose columns do not fill them: it is damaged")
    return ends[:, chosen] - each[:, chosen], ends[:, chosen]


def _skip_heads(
    content: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64], encoding: str
) -> TokenExtents:
    """Return the extents of the numbers of arrays, after the dtypes and shapes stored with them."""
    _, dtype, shape = (*encoding.split(":"), "", "")[:3]
    if "," in shape or (dtype and dtype not in _NAMES):
        raise ValueError(f"has a column of {encoding}, but tokens must be one-dimensional arrays")
    sizes, begins = ends - begins, begins.copy()
    if not dtype and len(begins):
        if (sizes < 1).any():
            raise ValueError("has arrays without a dtype: it is damaged")
        codes = np.unique(content[begins])
        if len(codes) != 1:
            raise ValueError("has arrays of several dtypes, but tokens must have one")
        dtype = _DTYPES.get(int(codes[0]), "")
        if not dtype:
            raise ValueError(f"has arrays of a dtype with the unknown code {codes[0]}")
        begins += 1
    itemsize = np.dtype(dtype or "uint8").itemsize
    if not shape:
        begins, counts = _read_counts(content, begins, ends)
        if (counts * itemsize != ends - begins).any():
            raise ValueError("has arrays that are not as long as their shapes say: it is damaged")
    return TokenExtents(begins, ends, np.dtype(dtype or "uint8").newbyteorder("<").str)


def _read_counts(
    content: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return begin and number of the values of each array, int64 (n,) each, from stored shapes."""
    if (begins >= ends).any():
        raise ValueError("has arrays without a shape: it is damaged")
    codes = content[begins].astype(np.int64)
    if (codes & ~3 != _ONE_DIMENSION).any():
        raise ValueError("has arrays that do not have exactly one dimension, but tokens must")
    widths = 1 << (codes & 3)
    behind = begins + 1 + widths
    if (behind > ends).any():
        raise ValueError("has arrays that end within their shapes: it is damaged")
    counts = np.zeros(len(begins), np.int64)
    for width in np.unique(widths).tolist():
        those = np.flatnonzero(widths == width)
        raw = np.ascontiguousarray(content[begins[those][:, None] + 1 + np.arange(width)])
        counts[those] = raw.view(f"<u{width}")[:, 0]
    return behind, counts
