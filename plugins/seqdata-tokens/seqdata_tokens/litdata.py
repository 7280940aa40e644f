"""Chunks of tokens that LitData has written (``chunk-0-0.bin``), read in place.

A chunk holds the number of items, their offsets and their tokens; ``index.json`` lists the chunks
and says the dtype (writer.py of litdata).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from seqdata.backends import RandomAccessFile
from seqdata_tokens.listed_files import TokenExtents, check_neighbor, read_index

_NAME = re.compile(r"chunk-\d+-\d+(\.\w+)?\.bin")
_FORMAT = re.compile(r"no_header_(tensor|numpy):(\d+)")
_TENSORS = {
    0: "<f4", 1: "<f4", 2: "<f8", 3: "<f8", 8: "<f2", 9: "<f2", 11: "|u1", 12: "|i1", 13: "<i2",
    14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 20: "<u2",
}  # fmt: skip
_ARRAYS = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")


def find_config(file: RandomAccessFile) -> dict[str, Any] | None:
    """Return the content of LitData's ``index.json``; None if a file is not named as a chunk.

    Raises:
        ValueError: If the file is named as a chunk, but ``index.json`` is missing or of another
            format.
    """
    if not _NAME.fullmatch(file.name.rpartition("/")[2]):
        return None
    found = read_index(file)
    if found is None or not isinstance(found.get("chunks"), list):
        state = "it is missing" if found is None else "the one there has no list 'chunks'"
        raise ValueError(
            f"must have the 'index.json' that LitData writes next to it, but {state}, so dtype and "
            "items are unknown. Restore it, or rename the file if it is one sequence"
        )
    return found


def index_chunk(file: RandomAccessFile, listed: dict[str, Any]) -> TokenExtents:
    """Return the extents of the items of a chunk.

    Args:
        file: The chunk.
        listed: The content of ``index.json``.

    Raises:
        ValueError: If the chunk is damaged, differs from ``index.json``, or does not only hold
            tokens.
    """
    dtype = _find_dtype(listed.get("config") or {})
    chunks = listed["chunks"]
    chunk = chunks[check_neighbor(file, [each["filename"] for each in chunks])]
    count = int.from_bytes(file.read(0, 4), "little")
    head = 4 + 4 * (count + 1)
    if file.size < head:
        raise ValueError(
            f"has {file.size} bytes, but must have at least {head} for the offsets of {count} items"
        )
    offsets = np.frombuffer(file.read(4, head), "<u4").astype(np.int64)
    sizes = np.diff(offsets)
    if offsets[0] != head or (sizes < 0).any() or offsets[-1] != file.size:
        raise ValueError(
            f"must have ascending offsets from {head} to {file.size}, its size, but has offsets "
            f"from {offsets[0]} to {offsets[-1]}: it was cut off or damaged"
        )
    tokens = (file.size - head) // dtype.itemsize
    if (sizes % dtype.itemsize).any() or (chunk["chunk_size"], chunk["dim"]) != (count, tokens):
        raise ValueError(
            f"has {count} items of {tokens} tokens of {dtype.name}, but index.json says "
            f"{chunk['chunk_size']} of {chunk['dim']}"
        )
    return TokenExtents(offsets[:-1], offsets[1:], dtype.str)


def _find_dtype(config: dict[str, Any]) -> np.dtype[np.generic]:
    """Return the dtype of tokens in the configuration of LitData.

    Raises:
        ValueError: If the chunks are compressed, encrypted, or not of tokens only.
    """
    for what in ("compression", "encryption"):
        if config.get(what):
            raise ValueError(
                f"was written with {what} ({config[what]}), and parts of it cannot be read in "
                f"place. Write it with `optimize(..., {what}=None)`"
            )
    formats = config.get("data_format") or []
    match = _FORMAT.fullmatch(formats[0]) if len(formats) == 1 else None
    if match is None or config.get("item_loader") != "TokensLoader":
        raise ValueError(
            f"must hold tokens only, but index.json says data_format={formats} and "
            f"item_loader={config.get('item_loader')}. Write it with `optimize(..., "
            "item_loader=TokensLoader())`, one array or tensor for each item"
        )
    code = int(match[2])
    known = _TENSORS if match[1] == "tensor" else dict(enumerate(_ARRAYS))
    if code not in known:
        raise ValueError(f"has tokens of a dtype that is not supported ({formats[0]})")
    return np.dtype(known[code])
