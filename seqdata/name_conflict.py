"""Whose files the package's folder holds: another project of the same import name may be there.

A package index has a project `seqdata` for genomics. It installs into a folder of the same name,
and whichever comes second writes over what both have, `__init__.py` above all. Place in the flow:
below everything; `import seqdata` and every module of ours ask once, `seqdata doctor` asks more.
Reads: names of files; for the doctor, what is known of installed distributions.
"""

from __future__ import annotations

import os
import sys
import warnings

OURS = "lightning-seqdata"
NAME = "seqdata"
FIX = f"pip uninstall -y {NAME} {OURS}, then pip install {OURS}; keep the other one elsewhere"
_MARK = "_DEFINED_IN"  # in our `__init__.py`


def require_own_front() -> None:
    """Raise ImportError if `seqdata/__init__.py` is of another project.

    It costs a look at a module that is loaded.
    """
    front = sys.modules.get(NAME)
    if front is None or hasattr(front, _MARK):
        return
    raise ImportError(
        f"{getattr(front, '__file__', None) or NAME}: must be the `__init__.py` of {OURS}, but is "
        f"of another project of the name {NAME}, installed over it or instead of it. Run {FIX}"
    )


def warn_of_foreign_files(folder: str) -> None:
    """Warn that files of another project lie in the package's folder."""
    warnings.warn(
        f"{folder}: must hold {OURS} alone, but files of another project of the name {NAME} lie "
        f"beside ours; uninstalling it takes some of ours along. Run {FIX}",
        stacklevel=3,
    )


def foreign_release() -> str | None:
    """Return the release of the other project that is installed; None: it is not."""
    from importlib import metadata  # it takes as long as the rest of an import of ours

    try:
        return f"{NAME} {metadata.version(NAME)}"
    except metadata.PackageNotFoundError:
        return None


def foreign_files() -> list[str]:
    """Return what of that release lies in our package's folder, at most five files."""
    from importlib import metadata

    ours = os.path.dirname(os.path.abspath(__file__))
    try:
        known = metadata.files(NAME) or []
    except metadata.PackageNotFoundError:
        return []
    places = [os.path.abspath(str(file.locate())) for file in known]
    found = [place for place in places if place.startswith(ours + os.sep)]
    return sorted(os.path.relpath(place, os.path.dirname(ours)) for place in found)[:5]
