"""Detection of files of another project with the same import name in the package's folder.

A package index has a project `seqdata` for genomics. It installs into a folder of the same name,
and the second to be installed overwrites what both have, above all `__init__.py`.
"""

from __future__ import annotations

import os
import sys
import warnings

DISTRIBUTION = "lightning-seqdata"
IMPORT_NAME = "seqdata"
REPAIR_HINT = (
    f"pip uninstall -y {IMPORT_NAME} {DISTRIBUTION}, then pip install {DISTRIBUTION}; "
    "keep the other one elsewhere"
)
_OWN_ATTRIBUTE = "_DEFINED_IN"  # in seqdata's own `__init__.py`


def require_own_init() -> None:
    """Raise ImportError if the loaded `seqdata/__init__.py` belongs to another project."""
    package = sys.modules.get(IMPORT_NAME)
    if package is None or hasattr(package, _OWN_ATTRIBUTE):
        return
    raise ImportError(
        f"{getattr(package, '__file__', None) or IMPORT_NAME}: must be the `__init__.py` of "
        f"{DISTRIBUTION}, but is of another project of the name {IMPORT_NAME}, installed over it "
        f"or instead of it. Run {REPAIR_HINT}"
    )


def warn_of_foreign_files(folder: str) -> None:
    """Warn that files of another project lie in the package's folder."""
    warnings.warn(
        f"{folder}: must hold {DISTRIBUTION} alone, but files of another project named "
        f"{IMPORT_NAME} are in it; uninstalling that project also removes files of "
        f"{DISTRIBUTION}. Run {REPAIR_HINT}",
        stacklevel=3,
    )


def find_foreign_release() -> str | None:
    """Return the installed release of the other project; None if it is not installed."""
    from importlib import metadata  # takes as long as the rest of the import

    try:
        return f"{IMPORT_NAME} {metadata.version(IMPORT_NAME)}"
    except metadata.PackageNotFoundError:
        return None


def find_foreign_files() -> list[str]:
    """Return files of the other project in the package's folder, at most five."""
    from importlib import metadata

    package_dir = os.path.dirname(os.path.abspath(__file__))
    try:
        known = metadata.files(IMPORT_NAME) or []
    except metadata.PackageNotFoundError:
        return []
    paths = [os.path.abspath(str(file.locate())) for file in known]
    inside = [path for path in paths if path.startswith(package_dir + os.sep)]
    return sorted(os.path.relpath(path, os.path.dirname(package_dir)) for path in inside)[:5]
