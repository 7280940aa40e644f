"""Text files that are compressed: read as if they were not, forwards, with bounded memory.

The last suffix of a name says how: ``rows.csv.gz`` is a CSV file, compressed by gzip. Checksums of
the compressed data are compared, and data after its end is an error, not an end.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from seqdata.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER_BYTES = 1 << 20
_SIGNATURES = {
    ".gz": rb"\x1f\x8b\x08",
    ".bz2": rb"BZh[1-9]1AY&SY",
    ".xz": rb"\xfd7zXZ\x00",
    ".zst": rb"\x28\xb5\x2f\xfd",
}
COMPRESSED_SUFFIXES = tuple(_SIGNATURES)
"""Suffixes of compressed files that can be read."""


def find_compression(name: str | os.PathLike[str]) -> str:
    """Return the suffix of compression of a file's name, in lower case; empty if it has none.

    Examples:
        >>> find_compression("a/rows.csv.GZ"), find_compression("rows.csv")
        ('.gz', '')
    """
    ending = os.path.splitext(os.fspath(name))[1].lower()
    return ending if ending in COMPRESSED_SUFFIXES else ""


def strip_compression(name: str) -> str:
    """Return a file's name without its suffix of compression, if it has one.

    Examples:
        >>> strip_compression("a/rows.csv.gz"), strip_compression("rows.csv")
        ('a/rows.csv', 'rows.csv')
    """
    return name[: len(name) - len(find_compression(name))]


def refuse_repeated(where: str, names: Iterable[str]) -> None:
    """Raise if a file is there both plain and compressed, or compressed in two ways.

    Args:
        where: The source, for the message.
        names: Names of the files.

    Raises:
        ConfigError: If two names differ only in their suffix of compression.
    """
    found: dict[str, str] = {}
    for name in names:
        other = found.setdefault(strip_compression(name), name)
        if other != name:
            raise ConfigError(
                f"{where}: must have each file once, but has {other!r} and {name!r}, which would "
                "be the same data twice. Remove one of them, or name the files by a glob"
            )


def open_decompressed(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading; one whose name ends in a suffix of compression is decompressed.

    Args:
        path: The path of the file.

    Returns:
        A buffered file. It can be read forwards only if it is decompressed.

    Raises:
        DecodeError: Also while it is read, if the content is not compressed as the name says, ends
            too early, is damaged, or is compressed and the name does not say so.
        OSError: If it cannot be opened.
    """
    text = os.fspath(path)
    with open(text, "rb") as file:
        head = file.read(16)
    ending = find_compression(text)
    if ending:
        return cast("BinaryIO", io.BufferedReader(_Decompressed(text, ending), _BUFFER_BYTES))
    for other, signature in _SIGNATURES.items():
        if re.match(signature, head):
            raise DecodeError.at(
                f"file {text!r}: must be text, but begins like a file compressed as {other}. Name "
                f"it {os.path.basename(text) + other!r}, or decompress it",
                file=text,
            )
    return open(text, "rb")


class _Decompressed(io.RawIOBase):
    """The content of a compressed file.

    Args:
        path: The path of the file.
        ending: Its suffix of compression.
    """

    def __init__(self, path: str, ending: str) -> None:
        self._path, self._ending = path, ending
        self._stream = _OPENERS[ending](path)
        self._size = os.path.getsize(path)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read into a buffer; return the number of bytes, 0 at the end."""
        view = memoryview(buffer).cast("B")
        try:
            content = self._stream.read(len(view))
        except _codec_errors() as error:
            raise self._make_error(str(error).splitlines()[0]) from error
        if not content and not self._size:
            raise self._make_error("it is empty")
        view[: len(content)] = content
        return len(content)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._stream.close()
        super().close()

    def _make_error(self, reason: str) -> DecodeError:
        return DecodeError.at(
            f"file {self._path!r}: must be a whole {self._ending} file, but is not ({reason}). "
            f"Restore it; a file that is not compressed must not end in {self._ending}",
            file=self._path,
        )


def _codec_errors() -> tuple[type[Exception], ...]:
    import lzma
    import zlib

    return OSError, EOFError, ValueError, lzma.LZMAError, zlib.error


def _open_gzip(path: str) -> Any:
    import gzip

    return gzip.open(path)


def _open_by_arrow(path: str, codec: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.OSFile(path), codec)


class _Xz:
    """An xz file of one or several streams; ``lzma.open`` would take a damaged one for the end."""

    def __init__(self, path: str) -> None:
        import lzma

        self._make = lzma.LZMADecompressor
        self._file = open(path, "rb")  # noqa: SIM115
        self._decompressor = self._make()
        self._pending = b""

    def read(self, size: int) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        while True:
            decompressor = self._decompressor
            if decompressor.eof:
                rest = decompressor.unused_data.lstrip(b"\0")  # streams may be padded
                while not rest and (content := self._file.read(_BUFFER_BYTES)):
                    rest = content.lstrip(b"\0")
                if not rest:
                    return b""
                self._decompressor, self._pending = self._make(), rest
                continue
            if decompressor.needs_input and not self._pending:
                self._pending = self._file.read(_BUFFER_BYTES)
                if not self._pending:
                    raise EOFError("it ends before the end of its stream")
            content, self._pending = decompressor.decompress(self._pending, size), b""
            if content:
                return content

    def close(self) -> None:
        """Close the file."""
        self._file.close()


_OPENERS: dict[str, Callable[[str], Any]] = {
    ".gz": _open_gzip,
    ".bz2": lambda path: _open_by_arrow(path, "bz2"),
    ".xz": _Xz,
    ".zst": lambda path: _open_by_arrow(path, "zstd"),
}
