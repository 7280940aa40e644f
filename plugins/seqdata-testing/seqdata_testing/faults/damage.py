"""Damage to files: one function per fault. What must come of each stands with it.

All change a file in place and give nothing; keep a copy of what you want to have back.
"""

from __future__ import annotations

import os
from pathlib import Path

PAGE = 4096  # bytes that a file system loses at once


def flip_bit(path: Path, bit: int) -> None:
    """Flip one bit, counted from the file's start.

    Must come of it: in a sequence's values a ``CorruptSampleError`` that names it, at its first
    read; in metadata, an index or a manifest a ``DataError`` at opening. With checksums never
    another value, and never the end of the process.

    Args:
        path: The file.
        bit: 8 times the byte, plus the bit in it.
    """
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        (old,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([old ^ 1 << bit % 8]))


def cut(path: Path, size: int) -> None:
    """Cut a file off.

    Must come of it: a ``CorruptShardError`` at opening, for the manifest knows the size. Where the
    file is mapped already: in a worker process a ``WorkerDiedError`` with SIGBUS and the shard.

    Args:
        path: The file.
        size: Bytes that are left.
    """
    os.truncate(path, size)


def empty(path: Path) -> None:
    """Leave nothing of a file but its name. Must come of it: as of ``cut``."""
    cut(path, 0)


def invert(path: Path, at: int, size: int) -> None:
    """Invert all bits of some bytes.

    Must come of it: as of ``flip_bit``.
    """
    with path.open("r+b") as file:
        file.seek(at)
        content = bytes(255 - byte for byte in file.read(size))
        file.seek(at)
        file.write(content)


def zero_page(path: Path, page: int) -> None:
    """Overwrite one page of 4 KiB with zeros, as file systems do after a crash.

    Must come of it: as of ``flip_bit``.

    Args:
        path: The file.
        page: Index of the page.
    """
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(page * PAGE)
        file.write(bytes(max(0, min(PAGE, size - page * PAGE))))


def remove(path: Path) -> None:
    """Remove a file. Must come of it: a ``MissingShardError`` at opening."""
    path.unlink()


def swap(path: Path, second: Path) -> None:
    """Swap two files.

    Must come of it, even where their sizes are equal: a ``CorruptShardError`` or a
    ``FingerprintMismatch`` at opening.
    """
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    second.rename(path)
    aside.rename(second)


def put_back(path: Path, content: bytes) -> None:
    """Put an older state of one file among newer ones: a stale manifest or index.

    Must come of it: a ``DataError`` at opening.

    Args:
        path: The file.
        content: Earlier content.
    """
    path.write_bytes(content)
