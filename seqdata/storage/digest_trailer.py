"""Digests at the end of small files that are cached on disk: counted lengths, a writer's records.

Such a file ends with one line that holds a digest of the content before it and of its subject, so
that neither a flipped bit nor a file about another subject is accepted. Readers of ``.npy``,
``.npz`` and YAML ignore that line. Manifests, indexes and lists of shards have their digest inside.
"""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path

from seqdata.storage.local_files import write_atomically

_logger = logging.getLogger("seqdata.storage")
_TRAILER = b"\n# seal of seqdata: sha256 %b\n"
_TRAILER_PATTERN = re.compile(re.escape(_TRAILER).replace(b"%b", b"([0-9a-f]{64})"))
_TRAILER_BYTES = len(_TRAILER % bytes(64))


def add_digest(content: bytes, subject: str) -> bytes:
    """Return content followed by its digest line.

    Args:
        content: The content of the file.
        subject: The subject of the file: a digest of its sources, or a name. A file about another
            subject is rejected.

    Examples:
        >>> strip_digest(add_digest(b"12", "lengths of a"), "lengths of a")
        b'12'
        >>> strip_digest(add_digest(b"12", "lengths of a"), "lengths of b") is None
        True
    """
    return content + _TRAILER % _digest(content, subject)


def strip_digest(raw: bytes, subject: str) -> bytes | None:
    """Return the content without its digest line; None if the line is missing or differs."""
    content, trailer = raw[:-_TRAILER_BYTES], _TRAILER_PATTERN.fullmatch(raw[-_TRAILER_BYTES:])
    is_valid = trailer is not None and trailer[1] == _digest(content, subject)
    return content if is_valid else None


def has_trailer(raw: bytes) -> bool:
    """Return whether a file ends with a checksum trailer, right or wrong."""
    return _TRAILER_PATTERN.fullmatch(raw[-_TRAILER_BYTES:]) is not None


def read_with_digest(path: Path) -> bytes | None:
    """Return the content of a file that ``write_with_digest`` wrote under this name.

    None if it cannot be read, or its digest line is missing or differs; the latter is logged.
    """
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    content = strip_digest(raw, path.name)
    if content is None:
        problem = (
            "is damaged, or was written under another name"
            if has_trailer(raw)
            else "has no digest line"
        )
        _logger.warning("%s: %s, so it is ignored: its content is computed again", path, problem)
    return content


def write_with_digest(path: Path, content: bytes) -> bool:
    """Write a file with its digest line, atomically and flushed to the disk.

    Args:
        path: The path; its name contains a digest of the sources of the content.
        content: The content of the file.

    Returns:
        Whether it was written: a folder may be read-only, or the disk full.
    """
    try:
        write_atomically(path, add_digest(content, path.name))
    except OSError:
        return False
    return True


def _digest(content: bytes, subject: str) -> bytes:
    digest = hashlib.sha256(f"{subject}\n".encode())
    digest.update(content)
    return digest.hexdigest().encode()
