"""The files of a corpus, and their division into parts, which are lists of pieces of files.

A part is the unit that one process tokenizes at a time. Where parts begin depends on the files
alone, so that tokens do not depend on the number of processes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from seqdata.backends import DataLocation
from seqdata.backends.files import (
    LocalCopies,
    fetch_copies,
    find_compression,
    find_files,
    find_tables,
    open_decompressed,
    refuse_repeated,
    strip_compression,
    warn_left_out,
)
from seqdata.errors import ConfigError, DataError, must_be
from seqdata_text.tables import iter_batch_sizes

KINDS = {
    "text": (".txt", ".text"),
    "jsonl": (".jsonl", ".ndjson", ".jsonlines"),
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather", ".ipc"),
}
"""Kind of files -> their suffixes; those of text and JSON lines may be compressed."""
_COMPRESSED_KINDS = ("text", "jsonl")
_OTHER_COMPRESSIONS = (".lz4", ".z", ".br", ".lzma", ".zip", ".7z")
_EXPANSION = 4  # of compressed text, about, for the size of parts
PART_BYTES = 32 << 20
"""Size of a part in bytes; larger if the corpus would have more than ``_MOST_PARTS`` parts."""
_MOST_PARTS = 2048
_THREADS = 4
_READ_BYTES = 1 << 20


class Piece(NamedTuple):
    """A piece of a file.

    Attributes:
        name: The path of the file below the root.
        start: Position of the first byte in the decompressed file; for a table, index of the first
            row group or record batch.
        stop: One past the last.
        first: Number of the first line, counted from 1; for a table, index of the first row, from
            0.
        size: Size of the decompressed piece in bytes; for a table, of its column of text.
    """

    name: str
    start: int
    stop: int
    first: int
    size: int


class FileState(NamedTuple):
    """State of a file; a file whose state is equal is taken for unchanged.

    Attributes:
        name: The path of the file below the root.
        size: Size in bytes.
        time: Modification time in nanoseconds; for a file behind a URL, a number derived from its
            version.
    """

    name: str
    size: int
    time: int


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus.

    Attributes:
        root: The folder that names count from.
        kind: ``text``, ``jsonl``, ``parquet`` or ``arrow``.
        names: Paths of the files below the root, in natural order.
        copies: Local copies of the files behind a URL; None: the corpus is local.
    """

    root: Path
    kind: str
    names: Sequence[str]
    copies: LocalCopies | None = None

    @property
    def folder(self) -> Path:
        """The folder below which tokens may be stored: of the corpus, or of its local copies."""
        return self.root if self.copies is None else self.copies.folder

    def explain(self) -> AbstractContextManager[None]:
        """Return a context manager; errors raised within it name URLs in place of local copies."""
        return nullcontext() if self.copies is None else self.copies.explain()

    def stat(self) -> list[FileState]:
        """Return the state of each file.

        Raises:
            DataError: If a file is missing or cannot be accessed.
        """
        states = []
        for name in self.names:
            try:
                status = os.stat(self.root / name)
            except OSError as error:
                raise _make_read_error(self.root, name, error) from error
            time = status.st_mtime_ns
            if self.copies is not None:  # their times are those of their last use
                time = int(self.copies.versions[self.root / name][:15], 16)
            states.append(FileState(name, status.st_size, time))
        return states


def find_corpus(location: str, kind: str | None, remote: Any = None) -> Corpus:
    """Return the files of a corpus: a file, a folder, a glob, or several of these.

    Args:
        location: Local paths; or URLs, whose files are downloaded.
        kind: The kind of every file; None: the kind that their suffixes name.
        remote: Access to URLs, as in ``open_store``.

    Raises:
        ConfigError: If there are no files, they are of several kinds or splits, one is there twice
            (plain and compressed), or one is compressed in a way that is not read.
        DataError: If files of a saved dataset are missing.
        SeqDataError: If files cannot be fetched.
    """

    def choose(path: str) -> list[Path]:
        corpus, _ = _find_local(path, kind)
        return [corpus.root / name for name in corpus.names]

    copies = fetch_copies(location, remote, choose)
    corpus, found = _find_local(location if copies is None else copies.path, kind)
    warn_left_out([found if copies is None else copies.show(found)])
    return replace(corpus, copies=copies)


def _find_local(location: str, kind: str | None) -> tuple[Corpus, Any]:
    """Return the files of a local corpus, and the ``FoundFiles`` that they were chosen from."""
    suffixes = tuple(ending for each in KINDS.values() for ending in each)
    found = find_files(location, lambda name: kind is not None or _find_kind(name) is not None)
    refuse_repeated(f"corpus {location!r}", found.names)
    kinds = {} if kind is not None else {_find_kind(name): name for name in reversed(found.names)}
    if len(kinds) > 1:
        shown = ", ".join(f"{each} ({name!r})" for each, name in sorted(kinds.items(), key=str))
        remedy = f"Name one kind by a glob, such as '*{KINDS['jsonl'][0]}', or pass `format`"
        raise ConfigError(must_be(f"corpus {location!r}", "of one kind", shown, remedy))
    kind = kind or next(iter(kinds), None)
    if kind is None:
        _refuse_compressed(location, found.names or found.others)
    if not found.names:
        remedy, needed = "Check the path", "at least one file"
        if kind is None:
            remedy += ", or pass `format='text'` for files of other suffixes"
            needed += f" that ends with {', '.join(suffixes)}"
        raise ConfigError(f"corpus {location!r}: must hold {needed}, but holds none. {remedy}")
    if kind is None:
        ending = Path(found.names[0]).suffix or "none"
        raise ConfigError(
            f"corpus {location!r}: must have one of the suffixes {', '.join(suffixes)}, but has "
            f"{ending}. "
            "Pass `format`: text, jsonl, parquet or arrow"
        )
    if kind in ("parquet", "arrow") and kinds:
        found = find_tables(location)
    return Corpus(found.root, kind, list(found.names)), found


def _find_kind(name: str) -> str | None:
    for kind, suffixes in KINDS.items():
        plain = strip_compression(name) if kind in _COMPRESSED_KINDS else name
        if plain.lower().endswith(suffixes):
            return kind
    return None


def _refuse_compressed(location: str, names: Sequence[str]) -> None:
    """Raise if a file of a corpus is compressed in a way that is not read.

    Raises:
        ConfigError: If a file has another suffix of compression, or a table is compressed as a
            whole.
    """
    suffixes = tuple(ending for each in KINDS.values() for ending in each)
    for name in names:
        plain, ending = os.path.splitext(name.lower())
        if ending in _OTHER_COMPRESSIONS and plain.endswith(suffixes):
            raise ConfigError(
                f"corpus {location!r}: must be uncompressed or compressed as .gz, .bz2, .xz or "
                f".zst, but {name!r} is compressed as {ending}. Decompress it, or use one of these"
            )
        if find_compression(name) and plain.endswith(KINDS["parquet"] + KINDS["arrow"]):
            raise ConfigError(
                f"corpus {location!r}: must have Parquet and Arrow files that are not compressed "
                f"as a whole, but {name!r} is. Decompress it"
            )


def choose_part_bytes(states: Sequence[FileState], part_bytes: int = PART_BYTES) -> int:
    """Return the size of parts, in bytes, by the size of all files."""
    size = sum(state.size * (_EXPANSION if find_compression(state.name) else 1) for state in states)
    return max(part_bytes, size // _MOST_PARTS)


def split_corpus(
    corpus: Corpus, document: str, text: str, part_bytes: int
) -> tuple[list[tuple[Piece, ...]], list[str]]:
    """Read a corpus, and return its parts and the SHA-256 of each file.

    Args:
        corpus: The files.
        document: Document of plain text. ``line``: a part may end after any line. ``file``: a part
            may end only after a file. Other kinds ignore it.
        text: The column of text, for the size of a table's pieces.
        part_bytes: Size at which a part ends, in bytes.

    Raises:
        ConfigError: If a table does not have the column of text.
        DataError: If a file cannot be read or is damaged.
    """
    split = _SPLITTERS[corpus.kind if corpus.kind != "text" or document == "line" else "file"]
    cut = partial(_split_file, corpus.root, split, text, part_bytes)
    with ThreadPoolExecutor(_THREADS) as pool:
        results = list(pool.map(cut, corpus.names))
    parts: list[tuple[Piece, ...]] = []
    pending: list[Piece] = []
    for pieces, _ in results:
        for piece in pieces:
            pending.append(piece)
            if sum(each.size for each in pending) >= part_bytes:
                parts.append(tuple(pending))
                pending = []
    if pending:
        parts.append(tuple(pending))
    return parts, [digest for _, digest in results]


_Split = Callable[[Path, str, str, int], Iterator[Piece]]


def _split_file(
    root: Path, split: _Split, text: str, part_bytes: int, name: str
) -> tuple[list[Piece], str]:
    """Return the pieces of a file, and its SHA-256."""
    try:
        pieces = list(split(root, name, text, part_bytes))
        with (root / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _make_read_error(root, name, error) from error
    return pieces, digest


def _split_lines(root: Path, name: str, text: str, part_bytes: int) -> Iterator[Piece]:
    del text
    start, line = 0, 1
    with open_decompressed(root / name) as file:
        while content := file.read(part_bytes):
            content += file.readline()
            yield Piece(name, start, start + len(content), line, len(content))
            start += len(content)
            line += content.count(b"\n")


def _split_nothing(root: Path, name: str, text: str, part_bytes: int) -> Iterator[Piece]:
    del text, part_bytes
    size = (root / name).stat().st_size
    if find_compression(name):
        with open_decompressed(root / name) as file:
            size = sum(map(len, iter(partial(file.read, _READ_BYTES), b"")))
    yield Piece(name, 0, size, 1, size)


def _split_table(kind: str, root: Path, name: str, text: str, part_bytes: int) -> Iterator[Piece]:
    start = row = size = rows = 0
    stop = -1
    for stop, (count, bytes_) in enumerate(iter_batch_sizes(root, name, kind, text)):
        rows, size = rows + count, size + bytes_
        if size >= part_bytes:
            yield Piece(name, start, stop + 1, row, size)
            start, row, rows, size = stop + 1, row + rows, 0, 0
    if stop >= start:
        yield Piece(name, start, stop + 1, row, size)


_SPLITTERS: dict[str, _Split] = {
    "text": _split_lines,
    "jsonl": _split_lines,
    "file": _split_nothing,
    "parquet": partial(_split_table, "parquet"),
    "arrow": partial(_split_table, "arrow"),
}


def _make_read_error(root: Path, name: str, error: OSError) -> DataError:
    reason = error.strerror or str(error)
    return DataLocation(dataset=str(root), file=name).make_error(
        DataError, f"must be readable, but is not ({reason}). Check the file and its permissions"
    )
