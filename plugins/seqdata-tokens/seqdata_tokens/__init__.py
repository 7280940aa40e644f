"""Token files of Megatron, fairseq, llm.c, nanoGPT, dolma, MosaicML Streaming and LitData."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqdata.backends import Extents, FileFormat, FileIndex, RandomAccessFile, hookimpl
from seqdata.errors import ConfigError, MissingShardError, must_be
from seqdata_tokens.litdata import find_config, index_chunk
from seqdata_tokens.mds import PACKED, SUFFIX, index_mds, make_packed_error

__all__ = ["Tokens", "seqdata_register_backends"]

_HEAD = struct.Struct("<9sQBQQ")  # magic, version, code of the dtype, sequences, documents
_FAIRSEQ_HEAD = struct.Struct("<9sQBQ")  # without documents: each sequence is one
_MAGIC = b"MMIDIDX\x00\x00"
_LEGACY_MAGIC = b"TNTIDX\x00\x00"
_LLMC_HEAD = struct.Struct("<3i")  # magic, version, tokens: the first of 256 int32
_LLMC_BYTES = 1024
_LLMC_DTYPES = {(20240520, 1): "<u2", (20240801, 7): "<u4"}  # GPT-2, Llama 3
_LLMC_MAGICS = tuple(magic.to_bytes(4, "little") for magic, _ in _LLMC_DTYPES)
_NPY_MAGIC = b"\x93NUMPY"
_NPY_HEAD = 1 << 16  # bytes
_MEGATRON_ENDS = ("_document.bin", "_sentence.bin")  # as its preprocess_data.py names files
_WIDEST = 8  # bytes of a token
_DEFAULT = "uint16"  # of a file that does not say it
_DTYPES = {1: "|u1", 2: "|i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_FAIRSEQ_DTYPES = _DTYPES | {7: "<f8", 9: "<u4", 10: "<u8"}


@dataclass(frozen=True)
class Tokens(FileFormat):
    """Format of token files, with a field ``tokens`` of numbers along ``time``.

    If there is an ``.idx`` file next to the file, each document is a sequence (Megatron-LM,
    ``core/datasets/indexed_dataset.py``), or each sentence (fairseq, ``--dataset-impl mmap``).
    Otherwise the whole file is one sequence. It may have the header of llm.c with dtype and count
    (also used by modded-nanogpt), the header of NumPy, or no header (nanoGPT,
    ``data/*/prepare.py``; ``.npy`` of dolma). A file with a name of Megatron (``_document.bin``,
    ``_sentence.bin``) and without an ``.idx`` file raises an error.

    In files of MosaicML Streaming (``.mds``), each sample is a sequence. In files of LitData
    (``chunk-0-0.bin`` and ``index.json``, ``TokensLoader``), each item is a sequence.

    Args:
        dtype: NumPy dtype of a file that does not declare one, little-endian unless given otherwise
            (``">u2"``). None: ``"uint16"`` for a plain file, and an error for a column of bytes.
        column: Column of ``.mds`` with the tokens; None: the only column.

    Raises:
        ConfigError: If ``dtype`` is not a dtype of integers or floats of at most 8 bytes, or
            ``column`` is not a name.
    """

    dtype: str | None = None
    column: str | None = None
    suffixes = (".bin", ".npy", SUFFIX, *PACKED)
    version = 3  # 1 took the header of llm.c for tokens, 2 that of LitData

    def __post_init__(self) -> None:
        if self.dtype is not None:
            _parse_dtype(self.dtype)
        if self.column is not None and (not isinstance(self.column, str) or not self.column):
            must, remedy = "the name of a column, or None", "Leave it out where there is one"
            raise ConfigError(must_be("tokens: `column`", must, repr(self.column), remedy))

    def index(self, file: RandomAccessFile) -> FileIndex:
        """Return the positions of the tokens of each document.

        Raises:
            ValueError: If the file is damaged, is of a kind that cannot be read, or does not match
                the ``.idx`` or ``index.json`` next to it; or if one of these is missing or invalid.
        """
        name = file.name.lower()
        if name.endswith(PACKED):
            raise make_packed_error(file)
        if name.endswith(SUFFIX):
            said = None if self.dtype is None else self._stored_dtype.str
            return index_mds(file, self.column, said).to_index()
        config = find_config(file)
        if config is not None:
            return index_chunk(file, config).to_index()
        described = _find_index(file)
        if described is None:
            offsets, dtype = _plain_offsets(file, self._stored_dtype)
        else:
            offsets, dtype = _document_offsets(described.read(0, described.size))
        if offsets[-1] != file.size:
            raise ValueError(f"has {file.size} bytes, but must have {offsets[-1]} by its .idx")
        return FileIndex({"tokens": Extents(offsets[:-1], offsets[1:], dtype.str)})

    @property
    def _stored_dtype(self) -> np.dtype[np.generic]:
        return _parse_dtype(_DEFAULT if self.dtype is None else self.dtype)


def _plain_offsets(
    file: RandomAccessFile, dtype: np.dtype[np.generic]
) -> tuple[NDArray[np.int64], np.dtype[np.generic]]:
    """Return start and end of the tokens of a file without ``.idx``, int64 (2,), and their dtype.

    Args:
        file: The file.
        dtype: Dtype of its tokens, if its header does not declare one.

    Raises:
        ValueError: If the header is not supported, or does not match the size of the file.
    """
    begin, count, writer = 0, -1, ""
    head = file.read(0, _LLMC_HEAD.size)
    if head[:4] in _LLMC_MAGICS and len(head) == _LLMC_HEAD.size:
        magic, version, count = _LLMC_HEAD.unpack(head)
        if (magic, version) not in _LLMC_DTYPES:
            (known,) = (each for number, each in _LLMC_DTYPES if number == magic)
            raise ValueError(
                f"its llm.c header (magic {magic}) is of version {version}, but only version "
                f"{known} can be read"
            )
        begin, dtype, writer = _LLMC_BYTES, np.dtype(_LLMC_DTYPES[magic, version]), "llm.c"
    elif head.startswith(_NPY_MAGIC):
        begin, count, dtype = _parse_npy_header(file.read(0, _NPY_HEAD))
        writer = "NumPy"
    expected = begin + count * dtype.itemsize
    if writer and file.size != expected:
        raise ValueError(
            f"has {file.size} bytes, but must have {expected}, since its {writer} header declares "
            f"{count} tokens of {dtype.name}. It may be cut off: restore it"
        )
    if file.size % dtype.itemsize:
        raise ValueError(
            f"has {file.size} bytes, but must have a multiple of {dtype.itemsize}, the size of a "
            f"{dtype.name}. Open it in Python, with open_store(path, backend=Tokens(dtype=...))"
        )
    return np.array([begin, file.size]), dtype


def _parse_npy_header(head: bytes) -> tuple[int, int, np.dtype[np.generic]]:
    """Return the size in bytes of the header of a NumPy file, the count of numbers, and the dtype.

    Raises:
        ValueError: If the file is not a one-dimensional array of numbers.
    """
    stream = io.BytesIO(head)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0
    shape, _, dtype = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(stream)
    if len(shape) != 1 or dtype.kind not in "iuf":
        raise ValueError(f"must be a one-dimensional array of numbers, but is {dtype} {shape}")
    return stream.tell(), shape[0], dtype


def _find_index(file: RandomAccessFile) -> RandomAccessFile | None:
    """Return the ``.idx``, or next to ``.BIN`` also ``.IDX``, of a file; None if there is none."""
    name = file.name.rpartition("/")[2]
    stem = name[: -len(".bin")] if name.lower().endswith(".bin") else name
    for ending in (".idx", ".IDX") if name.endswith(".BIN") else (".idx",):
        try:
            return file.sibling(stem + ending)
        except MissingShardError:
            continue
    if name.lower().endswith(_MEGATRON_ENDS):
        raise ValueError(
            f"must have {stem + '.idx'!r}, the index that Megatron writes, next to it, but it is "
            "missing, so the documents are unknown. Restore it, or rename the file if it is one "
            "sequence"
        )
    return None


def _parse_dtype(name: str) -> np.dtype[np.generic]:
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(object)
    if dtype.kind not in "iuf" or dtype.itemsize > _WIDEST:
        must = f"a NumPy dtype of integers or floats of at most {_WIDEST} bytes"
        remedy = "Pass the dtype that its tokens were written with, such as 'uint16'"
        raise ConfigError(must_be("tokens: `dtype`", must, repr(name), remedy))
    return dtype.newbyteorder("<") if dtype.isnative else dtype


def _document_offsets(content: bytes) -> tuple[NDArray[np.int64], np.dtype[np.generic]]:
    """Return the offsets of documents, or sentences of fairseq, and the dtype of tokens.

    The offsets are in bytes, int64 (documents+1,).
    """
    if content.startswith(_LEGACY_MAGIC):
        raise ValueError(
            "its .idx must have the format of Megatron or of fairseq's mmap, but has fairseq's "
            "legacy format (TNTIDX). Write both files again with "
            "`fairseq-preprocess --dataset-impl mmap`"
        )
    if _is_of_fairseq(content):
        return _sentence_offsets(content)
    if len(content) < _HEAD.size:
        raise ValueError(f"its .idx has {len(content)} bytes, but must have at least {_HEAD.size}")
    magic, version, code, sequences, documents = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise ValueError(f"its .idx must begin with {_MAGIC!r}, but begins with {magic!r}")
    if version != 1 or code not in _DTYPES:
        raise ValueError(
            f"its .idx must be of version 1, with a dtype of code 1 to {max(_DTYPES)}, but is of "
            f"version {version}, with code {code}"
        )
    size = _HEAD.size + 12 * sequences + 8 * documents
    if sequences and documents and len(content) == size + sequences:
        raise ValueError("its .idx has modes (multimodal data), but must describe tokens only")
    if not documents:
        raise ValueError("its .idx must have at least one entry of documents, but has none")
    if len(content) != size:
        raise ValueError(
            f"its .idx must have {size} bytes for {sequences} sequences and {documents} documents, "
            f"but has {len(content)}"
        )
    dtype = np.dtype(_DTYPES[code])
    offsets = _sequence_offsets(content, _HEAD.size, sequences, dtype.itemsize)
    firsts = np.frombuffer(content, "<i8", documents, _HEAD.size + 12 * sequences)
    if firsts[0] != 0 or firsts[-1] != sequences or (np.diff(firsts) < 0).any():
        raise ValueError("its .idx must have documents that cover its sequences in order")
    return offsets[firsts], dtype


def _is_of_fairseq(content: bytes) -> bool:
    """Return whether an ``.idx`` has sizes and offsets of sequences only, and no documents."""
    if len(content) < _FAIRSEQ_HEAD.size:
        return False
    magic, version, code, sentences = _FAIRSEQ_HEAD.unpack_from(content)
    is_known = magic == _MAGIC and version == 1 and code in _FAIRSEQ_DTYPES
    return is_known and len(content) == _FAIRSEQ_HEAD.size + 12 * sentences


def _sentence_offsets(content: bytes) -> tuple[NDArray[np.int64], np.dtype[np.generic]]:
    """Return the offsets of sentences in bytes, int64 (sentences+1,), and the dtype of tokens."""
    _, _, code, sentences = _FAIRSEQ_HEAD.unpack_from(content)
    dtype = np.dtype(_FAIRSEQ_DTYPES[code])
    return _sequence_offsets(content, _FAIRSEQ_HEAD.size, sentences, dtype.itemsize), dtype


def _sequence_offsets(content: bytes, at: int, count: int, itemsize: int) -> NDArray[np.int64]:
    """Return the offsets of sequences in bytes, int64 (count+1,), from sizes and positions."""
    sizes = np.frombuffer(content, "<i4", count, at).astype(np.int64)
    begins = np.frombuffer(content, "<i8", count, at + 4 * count)
    offsets = np.concatenate(([0], np.cumsum(sizes * itemsize)))
    if sizes.min(initial=0) < 0 or (offsets[:-1] != begins).any():
        raise ValueError("its .idx must have contiguous sequences, but has a gap or an overlap")
    return offsets


@hookimpl
def seqdata_register_backends() -> Mapping[str, FileFormat]:
    """Register the format ``tokens``."""
    return {"tokens": Tokens()}
