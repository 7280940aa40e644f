"""The documents of a part of a corpus: id, text, and values of other columns."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from seqdata.backends import DataLocation, make_unknown_name_error
from seqdata.backends.files import find_compression, open_decompressed
from seqdata.errors import DataError, DecodeError
from seqdata_text.corpus import Piece
from seqdata_text.tables import as_strings, read_columns

_SKIP_BYTES = 1 << 20
_UTF8_MARK = b"\xef\xbb\xbf"
_JSON_KINDS: Mapping[type, str] = {
    str: "a string", int: "an integer", float: "a float", bool: "a boolean", list: "a list",
    dict: "an object", type(None): "null",
}  # fmt: skip


class Document(NamedTuple):
    """A document.

    Attributes:
        id: Its id.
        text: Its text.
        values: The values of further columns, numbers or strings.
    """

    id: str
    text: str
    values: Sequence[Any] = ()


@dataclass(frozen=True)
class Columns:
    """Columns of a document in a row or JSON line, and its unit in plain text.

    Attributes:
        text: Column of the text.
        id: Column of the id; None: the file, and the line or row. Plain text ignores it.
        fields: Further columns, which become fields; empty for plain text.
        document: Unit of a document in plain text: ``file`` or ``line``.
    """

    text: str = "text"
    id: str | None = None
    fields: tuple[str, ...] = ()
    document: str = "file"


def read_documents(
    root: Path, kind: str, pieces: Sequence[Piece], columns: Columns
) -> Iterator[Document]:
    """Yield the documents of pieces of files, in order.

    Args:
        root: The folder of the corpus.
        kind: The kind of its files.
        pieces: The pieces.
        columns: Columns of the documents.

    Raises:
        ConfigError: If a column does not exist.
        DataError: If a file is damaged, or a value is not of a valid type; the message names the
            file and, where it is known, the line or row.
    """
    for piece in pieces:
        yield from _READERS[kind](root, kind, piece, columns)


def _read_bytes(root: Path, piece: Piece) -> bytes:
    path = root / piece.name
    try:
        if find_compression(piece.name):
            status = path.stat()
            stream = _share_stream(str(path), status.st_size, status.st_mtime_ns)
            content = stream.read(piece.start, piece.stop)
        else:
            with open_decompressed(path) as file:
                file.seek(piece.start)
                content = file.read(piece.stop - piece.start)
    except OSError as error:
        raise _locate(root, piece).make_error(
            DataError, f"must be readable, but is not ({error.strerror or error}). Check the file"
        ) from error
    if len(content) < piece.stop - piece.start:
        raise _locate(root, piece).make_error(
            DataError,
            f"must have {piece.stop} bytes, but ends after {piece.start + len(content)}: it was "
            "cut off while it was read. Tokenize again",
        )
    return content.removeprefix(_UTF8_MARK) if piece.start == 0 else content


class _Stream:
    """A compressed file that is read forwards, piece by piece, so that it is decompressed once.

    Args:
        path: The path of the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._position = 0
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> bytes:
        """Return the decompressed bytes of a span; going back decompresses from the beginning."""
        with self._lock:
            try:
                return self._read(start, stop)
            except BaseException:
                self._close()
                raise

    def _read(self, start: int, stop: int) -> bytes:
        if self._file is None or start < self._position:
            self._close()
            self._file, self._position = open_decompressed(self._path), 0
        file = self._file
        while self._position < start:
            skipped = len(file.read(min(_SKIP_BYTES, start - self._position)))
            if not skipped:
                self._close()
                return b""
            self._position += skipped
        content = file.read(stop - start)
        self._position += len(content)
        if len(content) < stop - start or not _has_more(file):
            self._close()
        return content

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _has_more(file: Any) -> bool:
    return bool(file.peek(1))


@lru_cache(maxsize=1)
def _share_stream(path: str, size: int, time: int) -> _Stream:
    """Return the stream of a file, cached for its next piece while size and time are the same."""
    del size, time
    return _Stream(path)


def _locate(root: Path, piece: Piece) -> DataLocation:
    return DataLocation(dataset=str(root), file=piece.name)


def _decode(root: Path, piece: Piece, content: bytes, line: int | None = None) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        where = f"byte {error.start}" if line is None else f"line {line}, byte {error.start},"
        hint = "UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "ISO-8859-1"
        raise _locate(root, piece).make_error(
            DecodeError,
            f"must be UTF-8 text, but {where} is not valid. Convert it, for example by `iconv -f "
            f"{hint} -t UTF-8`",
        ) from error


def _read_text(root: Path, kind: str, piece: Piece, columns: Columns) -> Iterator[Document]:
    del kind
    content = _read_bytes(root, piece)
    if columns.document == "file":
        yield Document(piece.name, _decode(root, piece, content))
        return
    for line, raw in _iter_lines(content, piece.first):
        yield Document(f"{piece.name}:{line}", _decode(root, piece, raw, line))


def _iter_lines(content: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line that is not empty."""
    for line, raw in enumerate(content.split(b"\n"), first):
        text = raw.removesuffix(b"\r")
        if text:
            yield line, text


def _read_jsonl(root: Path, kind: str, piece: Piece, columns: Columns) -> Iterator[Document]:
    del kind
    names = (columns.text, *columns.fields, *filter(None, [columns.id]))
    for line, raw in _iter_lines(_read_bytes(root, piece), piece.first):
        text = _decode(root, piece, raw, line)
        if text.isspace():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _locate(root, piece).make_error(
                DecodeError,
                f"line {line} must be a JSON object, but is not valid JSON ({error}). Write one "
                "object per line",
            ) from error
        if not isinstance(row, dict):
            raise _locate(root, piece).make_error(
                DecodeError,
                f"line {line} must be a JSON object, but is {_JSON_KINDS[type(row)]}. Write one "
                "object per line",
            )
        for name in names:
            if name not in row:
                where = f"{_locate(root, piece)}: line {line}"
                raise make_unknown_name_error(where, "column", name, row)
        yield Document(
            f"{piece.name}:{line}"
            if columns.id is None
            else _as_id(root, piece, f"line {line}", columns.id, row[columns.id]),
            _as_text(root, piece, line, columns.text, row[columns.text]),
            [_as_value(root, piece, f"line {line}", name, row[name]) for name in columns.fields],
        )


def _as_text(root: Path, piece: Piece, line: int, column: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _locate(root, piece).make_error(
            DecodeError,
            f"line {line} must have a string in {column!r}, but has {_JSON_KINDS[type(value)]}. "
            "Pass the name of the text column as `text`, or remove such lines",
            field=column,
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _locate(root, piece).make_error(
                DecodeError,
                f"line {line} must have valid text in {column!r}, but has half of a surrogate pair "
                f"(\\u{ord(value[error.start]):04x}). Write the whole character",
                field=column,
            ) from error
    return value


def _as_id(root: Path, piece: Piece, place: str, column: str, value: Any) -> str:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise _locate(root, piece).make_error(
        DecodeError,
        f"{place} must have a string or an integer in {column!r}, but has "
        f"{_JSON_KINDS.get(type(value), type(value).__name__)}. Pass the name of the id column as "
        "`id`",
        field=column,
    )


def _as_value(root: Path, piece: Piece, place: str, column: str, value: Any) -> Any:
    if isinstance(value, str | int | float):
        return value
    raise _locate(root, piece).make_error(
        DecodeError,
        f"{place} must have a string or a number in {column!r}, but has "
        f"{_JSON_KINDS.get(type(value), type(value).__name__)}. Leave the column out of `fields`",
        field=column,
    )


def _read_table(root: Path, kind: str, piece: Piece, columns: Columns) -> Iterator[Document]:
    row = piece.first
    names = [columns.text, *columns.fields, *filter(None, [columns.id])]
    for found in read_columns(root, piece.name, kind, names, piece.start, piece.stop):
        texts = as_strings(root, piece.name, columns.text, found[0], row)
        fields = [values.to_pylist() for values in found[1 : len(columns.fields) + 1]]
        ids = None if columns.id is None else found[-1].to_pylist()
        for at, text in enumerate(texts):
            yield Document(
                f"{piece.name}:{row}"
                if ids is None
                else _as_id(root, piece, f"row {row}", str(columns.id), ids[at]),
                text,
                [
                    _as_value(root, piece, f"row {row}", name, values[at])
                    for name, values in zip(columns.fields, fields, strict=True)
                ],
            )
            row += 1


_Reader = Callable[[Path, str, Piece, Columns], Iterator[Document]]
_READERS: Mapping[str, _Reader] = {
    "text": _read_text,
    "jsonl": _read_jsonl,
    "parquet": _read_table,
    "arrow": _read_table,
}
