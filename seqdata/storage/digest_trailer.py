"""Seals of files that are kept on disk and believed later: counted lengths, notes of a writer.

A sealed file ends with one line that holds a digest of all before it and of what the file is about,
so that neither a flipped bit nor the file of something else is taken for it. Readers of ``.npy``,
``.npz`` and YAML pass over that line. Manifests, the index and the list of tar shards have the same
digest at a place of their own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path

_logger = logging.getLogger("seqdata.storage")
_TRAILER = b"\n# seal of seqdata: sha256 %b\n"
_TRAILER_PATTERN = re.compile(re.escape(_TRAILER).replace(b"%b", b"([0-9a-f]{64})"))
_TRAILER_BYTES = len(_TRAILER % bytes(64))


def add_digest(content: bytes, subject: str) -> bytes:
    """Return a content with its seal.

    Args:
        content: What is kept.
        subject: What it is about: a digest of what it was made from, or a name. A file that is
            sealed about something else is never believed.

    Example:
        >>> unsealed(sealed(b"12", "lengths of a"), "lengths of a")
        b'12'
        >>> unsealed(sealed(b"12", "lengths of a"), "lengths of b") is None
        True
    """
    return content + _TRAILER % _digest(content, subject)


def strip_digest(raw: bytes, subject: str) -> bytes | None:
    """Return the content of a sealed file; None if it has no seal, or another one."""
    content, seal = raw[:-_TRAILER_BYTES], _TRAILER_PATTERN.fullmatch(raw[-_TRAILER_BYTES:])
    return content if seal is not None and seal[1] == _digest(content, subject) else None


def has_digest(raw: bytes) -> bool:
    """Return whether a file ends with a seal, right or wrong."""
    return _TRAILER_PATTERN.fullmatch(raw[-_TRAILER_BYTES:]) is not None


def read_with_digest(path: Path) -> bytes | None:
    """Return the content of a file that ``write_with_digest`` wrote under this name.

    None if it is not there, or is not what was kept: then it is made again, and the log says so.
    """
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    content = strip_digest(raw, path.name)
    if content is None:
        problem = "is damaged, or was kept under another name" if has_digest(raw) else "has no seal"
        _logger.warning("%s: %s, so it is not used: what it held is made again", path, problem)
    return content


def write_with_digest(path: Path, content: bytes) -> bool:
    """Keep a file, sealed as what its name says, as a whole or not at all, flushed to the disk.

    Args:
        path: Where; its name has a digest of all that the content was made from.
        content: What is kept.

    Returns:
        Whether it could be written: a folder may be read-only, or the disk full.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    try:
        with open(temporary, "wb") as file:
            file.write(add_digest(content, path.name))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        return False
    return True


def _digest(content: bytes, subject: str) -> bytes:
    digest = hashlib.sha256(f"{subject}\n".encode())
    digest.update(content)
    return digest.hexdigest().encode()
