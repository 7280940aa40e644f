"""Names of members: which sample they are of, and which field.

The rule is the one of the webdataset library, letter by letter.
"""

from __future__ import annotations

import re

UNSAFE_EXTENSIONS = frozenset({"pyd", "pkl", "pickle", "pth", "pt", "dill", "joblib"})
"""Parts of extensions whose decoders run code that the data brings."""
MAX_KEY_BYTES = 1024
"""Bytes of a key."""

_MEMBER_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META_NAME = re.compile(r"__[^/]*__($|/)")


def split_name(name: str) -> tuple[str, str] | None:
    """Return (key, extension) of a member's name; None: it is no part of a sample.

    The key ends at the first dot of the last part of the path; the extension is in small letters.

    Examples:
        >>> split_name("train/utt-7.Mel.npy"), split_name("README"), split_name("__meta__/x.json")
        (('train/utt-7', 'mel.npy'), None, None)
    """
    if _META_NAME.match(name):
        return None
    found = _MEMBER_NAME.match(name)
    return None if found is None else (found[1], found[2].lower())


def last_part(extension: str) -> str:
    """Return the last part of an extension, which says how it is decoded.

    Examples:
        >>> last_part("mel.npy")
        'npy'
    """
    return extension.rpartition(".")[2]


def is_unsafe(extension: str) -> bool:
    """Return whether any part of an extension stands for a format that runs code."""
    return not UNSAFE_EXTENSIONS.isdisjoint(extension.split("."))
