"""Names of members: the key of the sample, and the extension.

The rule is exactly that of the webdataset library.
"""

from __future__ import annotations

import re

UNSAFE_EXTENSIONS = frozenset({"pyd", "pkl", "pickle", "pth", "pt", "dill", "joblib"})
"""Parts of extensions whose decoders run code from the data."""
MAX_KEY_BYTES = 1024
"""Maximum bytes of a key."""

_MEMBER_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META_NAME = re.compile(r"__[^/]*__($|/)")


def split_name(name: str) -> tuple[str, str] | None:
    """Return (key, extension) of a member's name; None if it is not part of a sample.

    The key ends at the first dot of the last part of the path; the extension is in lower case.

    Examples:
        >>> split_name("train/utt-7.Mel.npy"), split_name("README"), split_name("__meta__/x.json")
        (('train/utt-7', 'mel.npy'), None, None)
    """
    if _META_NAME.match(name):
        return None
    found = _MEMBER_NAME.match(name)
    return None if found is None else (found[1], found[2].lower())


def last_part(extension: str) -> str:
    """Return the last part of an extension, which determines the decoder.

    Examples:
        >>> last_part("mel.npy")
        'npy'
    """
    return extension.rpartition(".")[2]


def is_unsafe(extension: str) -> bool:
    """Return whether any part of an extension stands for a format that runs code."""
    return not UNSAFE_EXTENSIONS.isdisjoint(extension.split("."))
