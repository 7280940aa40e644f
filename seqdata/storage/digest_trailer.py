"""Seals of files that are kept on disk and believed later: counted lengths, notes of a writer.

A sealed file ends with one line that holds a digest of all before it and of what the file is about,
so that neither a flipped bit nor the file of something else is taken for it. Readers of ``.npy``,
``.npz`` and YAML pass over that line. Manifests, the index and the list of tar shards have the same
digest at a place of their own. Place in the flow: below everything that keeps what it has counted.
Reads: files. Makes: the same.
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
_LINE = b"\n# seal of seqdata: sha256 %b\n"
_SEAL = re.compile(re.escape(_LINE).replace(b"%b", b"([0-9a-f]{64})"))
_SIZE = len(_LINE % bytes(64))


def sealed(content: bytes, about: str) -> bytes:
    """Return a content with its seal.

    Args:
        content: What is kept.
        about: What it is about: a digest of what it was made from, or a name. A file that is sealed
            about something else is never believed.

    Example:
        >>> unsealed(sealed(b"12", "lengths of a"), "lengths of a")
        b'12'
        >>> unsealed(sealed(b"12", "lengths of a"), "lengths of b") is None
        True
    """
    return content + _LINE % _digest(content, about)


def unsealed(raw: bytes, about: str) -> bytes | None:
    """Return the content of a sealed file; None if it has no seal, or another one."""
    content, seal = raw[:-_SIZE], _SEAL.fullmatch(raw[-_SIZE:])
    return content if seal is not None and seal[1] == _digest(content, about) else None


def has_seal(raw: bytes) -> bool:
    """Return whether a file ends with a seal, right or wrong."""
    return _SEAL.fullmatch(raw[-_SIZE:]) is not None


def read_sealed(path: Path) -> bytes | None:
    """Return the content of a file that ``keep_sealed`` wrote under this name.

    None if it is not there, or is not what was kept: then it is made again, and the log says so.
    """
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    content = unsealed(raw, path.name)
    if content is None:
        what = "is damaged, or was kept under another name" if has_seal(raw) else "has no seal"
        _logger.warning("%s: %s, so it is not used: what it held is made again", path, what)
    return content


def keep_sealed(path: Path, content: bytes) -> bool:
    """Keep a file, sealed as what its name says, as a whole or not at all, flushed to the disk.

    Args:
        path: Where; its name has a digest of all that the content was made from.
        content: What is kept.

    Returns:
        Whether it could be written: a folder may be read-only, or the disk full.
    """
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    try:
        with open(aside, "wb") as file:
            file.write(sealed(content, path.name))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        return False
    return True


def _digest(content: bytes, about: str) -> bytes:
    made = hashlib.sha256(f"{about}\n".encode())
    made.update(content)
    return made.hexdigest().encode()
