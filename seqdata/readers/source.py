"""What the user means by a source of ``seqdata write``: a file, a folder or a glob.

Place in the flow: a reader gets these files. Reads: folders. Makes: lists of files.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from seqdata.errors import ConfigError

_WILDCARDS = set("*?[")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read.

    Attributes:
        path: Where it is.
        key: Its path relative to the source, with ``/``: what names it in a store.
    """

    path: Path
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What ``seqdata write`` was told about the input.

    Attributes:
        field: Name of the one field of files that hold one array each; None: ``x``.
        group: Column whose equal values make a sequence; None: each row is one.
        id: Column that names a sequence; None: rows are numbered.
    """

    field: str | None = None
    group: str | None = None
    id: str | None = None

    def one_field(self, kind: str) -> str:
        """Return the field's name for a format of one array per file.

        Raises:
            ConfigError: If an option is set that only tables have.
        """
        for name, value in (("group", self.group), ("id", self.id)):
            if value is not None:
                raise ConfigError(
                    f"format {kind!r}: `{name}` is {value!r}, must be left out: a file is a "
                    "sequence, named by its path; only tables have columns"
                )
        return self.field or "x"


def find_files(
    source: str | os.PathLike[str], *, skip: str | os.PathLike[str] | None = None
) -> list[SourceFile]:
    """Return the files of a source in a fixed order, by their keys.

    Args:
        source: A file, a folder (with all below it), or a glob where ``**`` is any depth. Hidden
            files and folders are left out unless they are named.
        skip: A folder whose files are left out.

    Raises:
        ConfigError: If there is none.
    """
    text = os.fspath(source)
    path = Path(text)
    if path.is_file():
        return [SourceFile(path, path.name)]
    if path.is_dir():
        root, found = path, glob.iglob("**", root_dir=path, recursive=True)
    elif _WILDCARDS & set(text):
        root = _glob_root(path)
        pattern = os.path.relpath(text, root)
        found = glob.iglob(pattern, root_dir=root, recursive=True)
    else:
        raise ConfigError(
            f"source {text!r}: is not there, must be a file, a folder or a glob; check the path"
        )
    keys = sorted({Path(name).as_posix() for name in found if (root / name).is_file()})
    if skip is not None:
        out = Path(skip).resolve()
        keys = [key for key in keys if not (root / key).resolve().is_relative_to(out)]
    if not keys:
        raise ConfigError(
            f"source {text!r}: holds no file, must hold at least one; check the path or the pattern"
        )
    return [SourceFile(root / key, key) for key in keys]


def count_suffixes(files: Iterable[SourceFile]) -> dict[str, int]:
    """Count the files of each ending (lower case, with its dot), most common first."""
    counts: dict[str, int] = {}
    for file in files:
        ending = file.path.suffix.lower()
        counts[ending] = counts.get(ending, 0) + 1
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def _glob_root(path: Path) -> Path:
    """Return the folder that comes before the first wildcard."""
    root = Path(path.anchor)
    for part in path.parts[1 if path.anchor else 0 : -1]:
        if _WILDCARDS & set(part):
            break
        root = root / part
    return root
