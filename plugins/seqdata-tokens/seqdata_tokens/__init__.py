"""Token files: ``.bin`` and ``.idx`` of Megatron, and the plain ``.bin`` of nanoGPT."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import Extents, FileFormat, FileIndex, Opener, RandomAccessFile, hookimpl
from seqdata.backends import FormatBackend as Backend
from seqdata.errors import ConfigError, MissingShardError, must_be

__all__ = ["Tokens", "seqdata_register_backends"]

_HEAD = struct.Struct("<9sQBQQ")  # magic, version, code of the dtype, sequences, documents
_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_ENDS = ("_document.bin", "_sentence.bin")  # as its preprocess_data.py names files
_WIDEST = 8  # bytes of a token
_DTYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


@dataclass(frozen=True)
class Tokens(FileFormat):
    """Token files: a field ``tokens``, numbers along ``time``.

    With an ``.idx`` next to it (Megatron-LM, ``core/datasets/indexed_dataset.py``) each document is
    a sequence. Without, the whole file is one sequence (nanoGPT, ``data/*/prepare.py``), unless its
    name ends as Megatron's do (``_document.bin``): then its ``.idx`` is lost.

    Args:
        dtype: Of a plain file without ``.idx``, which does not say it: a NumPy dtype, little-endian
            unless it says otherwise (``">u2"``).

    Raises:
        ConfigError: If it is not a dtype of integers or floats of at most 8 bytes.
    """

    dtype: str = "uint16"
    suffixes = (".bin",)

    def __post_init__(self) -> None:
        _parse_dtype(self.dtype)

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return where the tokens of each document lie.

        Raises:
            ValueError: If both files do not fit each other, or the ``.idx`` is none or is lost.
        """
        described = _find_index(file)
        if described is None:
            offsets, dtype = np.array([0, file.size]), _parse_dtype(self.dtype)
        else:
            offsets, dtype = _document_offsets(described.read(0, described.size))
        if offsets[-1] != file.size:
            raise ValueError(f"has {file.size} bytes, but its .idx says {offsets[-1]}")
        if file.size % dtype.itemsize:
            raise ValueError(
                f"has {file.size} bytes, but must have a multiple of {dtype.itemsize}, as "
                f"{dtype.name} does. Open it in Python, with open_store(path, "
                "backend=Tokens(dtype=...))"
            )
        return FileIndex({"tokens": Extents(offsets[:-1], offsets[1:], dtype.str)})


def _find_index(file: RandomAccessFile) -> RandomAccessFile | None:
    """Return the ``.idx`` next to a file, if there is one; ``.IDX`` next to ``.BIN``."""
    name = file.name.rpartition("/")[2]
    stem = name[: -len(".bin")] if name.lower().endswith(".bin") else name
    for ending in (".idx", ".IDX") if name.endswith(".BIN") else (".idx",):
        try:
            return file.sibling(stem + ending)
        except MissingShardError:
            continue
    if name.lower().endswith(_MEGATRON_ENDS):
        raise ValueError(
            f"must have {stem + '.idx'!r} next to it, since Megatron names its files so, but has "
            "not: its documents are unknown. Restore it, or rename the file if it is one sequence"
        )
    return None


def _parse_dtype(name: str) -> np.dtype[np.generic]:
    try:
        dtype = np.dtype(object if name is None else name)  # NumPy's None is float64
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(object)
    if dtype.kind not in "iuf" or dtype.itemsize > _WIDEST:
        must = f"a NumPy dtype of integers or floats of at most {_WIDEST} bytes"
        remedy = "Pass what its tokens were written as, such as 'uint16'"
        raise ConfigError(must_be("tokens: `dtype`", must, repr(name), remedy))
    return dtype.newbyteorder("<") if dtype.isnative else dtype


def _document_offsets(content: bytes) -> tuple[NDArray[np.int64], np.dtype[np.generic]]:
    """Return where documents begin in bytes, int64 (documents+1,), and the dtype of tokens."""
    if len(content) < _HEAD.size:
        raise ValueError(f"its .idx has {len(content)} bytes, but must have at least {_HEAD.size}")
    magic, version, code, sequences, documents = _HEAD.unpack_from(content)
    if magic != _MAGIC or version != 1 or code not in _DTYPES:
        raise ValueError("its .idx is not an index of Megatron (MMIDIDX, version 1)")
    size = _HEAD.size + 12 * sequences + 8 * documents
    if sequences and documents and len(content) == size + sequences:
        raise ValueError("its .idx has modes (multimodal data), but must be of tokens alone")
    if not documents:
        raise ValueError("its .idx must have at least one entry of documents, but has none")
    if len(content) != size:
        raise ValueError(
            f"its .idx must have {size} bytes for {sequences} sequences and {documents} documents, "
            f"but has {len(content)}"
        )
    dtype = np.dtype(_DTYPES[code])
    sizes = np.frombuffer(content, "<i4", sequences, _HEAD.size).astype(np.int64)
    begins = np.frombuffer(content, "<i8", sequences, _HEAD.size + 4 * sequences)
    firsts = np.frombuffer(content, "<i8", documents, _HEAD.size + 12 * sequences)
    offsets = np.concatenate(([0], np.cumsum(sizes * dtype.itemsize)))
    if sizes.min(initial=0) < 0 or (offsets[:-1] != begins).any():
        raise ValueError("its .idx has sequences that do not lie one behind another")
    if firsts[0] != 0 or firsts[-1] != sequences or (np.diff(firsts) < 0).any():
        raise ValueError("its .idx has documents that do not cover its sequences in order")
    return offsets[firsts], dtype


@hookimpl
def seqdata_register_backends() -> Mapping[str, Opener]:
    """Offer the format under its name."""
    return {"tokens": Backend(Tokens())}
