"""Damage to files: one function per fault, whose docstring has the expected outcome.

All functions change a file in place; to restore it, keep a copy.
"""

from __future__ import annotations

import os
from pathlib import Path

PAGE = 4096  # bytes that a file system loses at once


def flip_bit(path: Path, bit: int) -> None:
    """Flip one bit, counted from the file's start.

    Expected: in values, a ``CorruptSampleError`` that names the sequence, at its first read; in
    metadata, an index or a manifest, a ``DataError`` at opening. With checksums, never a wrong
    value, and never the end of the process.

    Args:
        path: The file.
        bit: 8 times the position of the byte, plus the bit in it.
    """
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        (old,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([old ^ 1 << bit % 8]))


def cut(path: Path, size: int) -> None:
    """Truncate a file.

    Expected: a ``CorruptShardError`` at opening, because the manifest has the size. If a worker has
    already mapped the file: a ``WorkerDiedError`` with SIGBUS and the shard.

    Args:
        path: The file.
        size: New size in bytes.
    """
    os.truncate(path, size)


def empty(path: Path) -> None:
    """Truncate a file to 0 bytes. Expected: as for ``cut``."""
    cut(path, 0)


def invert(path: Path, at: int, size: int) -> None:
    """Invert all bits of some bytes.

    Expected: as for ``flip_bit``.
    """
    with path.open("r+b") as file:
        file.seek(at)
        content = bytes(255 - byte for byte in file.read(size))
        file.seek(at)
        file.write(content)


def zero_page(path: Path, page: int) -> None:
    """Overwrite one page of 4 KiB with zeros, as file systems do after a crash.

    Expected: as for ``flip_bit``.

    Args:
        path: The file.
        page: Index of the page.
    """
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(page * PAGE)
        file.write(bytes(max(0, min(PAGE, size - page * PAGE))))


def remove(path: Path) -> None:
    """Remove a file. Expected: a ``MissingShardError`` at opening."""
    path.unlink()


def swap(path: Path, second: Path) -> None:
    """Swap two files.

    Expected, even if their sizes are equal: a ``CorruptShardError`` or a ``FingerprintMismatch`` at
    opening.
    """
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    second.rename(path)
    aside.rename(second)


def put_back(path: Path, content: bytes) -> None:
    """Replace a file by an older version of it, such as a stale manifest or index.

    Expected: a ``DataError`` at opening.

    Args:
        path: The file.
        content: Earlier content.
    """
    path.write_bytes(content)
