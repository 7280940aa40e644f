"""Formats ``bytes`` and ``text``: one sequence of uint8 per file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from seqdata.errors import DecodeError
from seqdata.readers.source import ReadOptions, SourceFile


def read_bytes(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Yield each file's bytes, uint8 (T,), under its relative path."""
    name = options.one_field("bytes")
    for file in files:
        yield _make_sequence(file, name, file.path.read_bytes())


def read_text(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    r"""Yield each file's text as UTF-8 bytes, uint8 (T,), with ``\n`` line ends and without a BOM.

    Raises:
        DecodeError: If a file is not UTF-8.
    """
    name = options.one_field("text")
    for file in files:
        raw = file.path.read_bytes()
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DecodeError.at(
                f"file {str(file.path)!r}: byte {error.start} is {raw[error.start]:#04x}, but "
                "must be "
                "UTF-8. Convert it, or use the format 'bytes'.",
                file=str(file.path),
                offset=error.start,
            ) from error
        yield _make_sequence(file, name, text.replace("\r\n", "\n").encode())


def _make_sequence(file: SourceFile, name: str, raw: bytes) -> dict[str, Any]:
    return {"id": file.key, name: np.frombuffer(raw, dtype=np.uint8)}
