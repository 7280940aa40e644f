"""Digests of copies in the cache whose content no index names.

The SHA-256 is recorded when a file is downloaded, in a small file next to the copy. It is compared
at the first use of the copy in a process, and again if the copy was written to since: its bytes are
not believed.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

_DIGEST_BYTES = 1 << 20  # bytes at a time
_HEX_DIGITS = 64
_MOST_CHECKED = 1 << 18  # files that a process remembers
_checked: set[int] = set()


def digest_file(descriptor: int, size: int) -> str:
    """Return the SHA-256 of an open file, as 64 hex digits."""
    digest = hashlib.sha256()
    for at in range(0, size, _DIGEST_BYTES):
        digest.update(os.pread(descriptor, min(_DIGEST_BYTES, size - at), at))
    return digest.hexdigest()


def name_digest(path: Path) -> Path:
    """Return the path of the file that records the digest of a copy."""
    return path.with_name(f".{path.name}.sha256")


def record_digest(path: Path, descriptor: int, digest: str) -> None:
    """Record the digest of a copy, which was computed in this process.

    Args:
        path: The name of the copy.
        descriptor: The open copy.
        digest: Its SHA-256.
    """
    aside = path.with_name(f".seqdata-sum-{os.getpid()}-{time.monotonic_ns()}")
    with suppress(FileNotFoundError):  # the folder was removed
        try:
            aside.write_text(digest, encoding="ascii")
            os.replace(aside, name_digest(path))
        finally:
            aside.unlink(missing_ok=True)
    _remember(descriptor, digest)


def read_digest(path: Path) -> str | None:
    """Return the recorded digest of a copy; None if there is none."""
    try:
        found = name_digest(path).read_bytes()[: _HEX_DIGITS + 1].decode("ascii", "replace")
    except OSError:
        return None
    return found if len(found) == _HEX_DIGITS else None


def is_intact(descriptor: int, size: int, digest: str) -> bool:
    """Return whether an open copy has a digest; it is computed once per process and version."""
    if _key(descriptor, digest) in _checked:
        return True
    if digest_file(descriptor, size) != digest:
        return False
    _remember(descriptor, digest)
    return True


def _remember(descriptor: int, digest: str) -> None:
    if len(_checked) >= _MOST_CHECKED:
        _checked.clear()
    _checked.add(_key(descriptor, digest))


def _key(descriptor: int, digest: str) -> int:
    status = os.fstat(descriptor)
    return hash((status.st_dev, status.st_ino, status.st_mtime_ns, digest))
