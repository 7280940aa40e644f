"""The files of a source of ``seqdata write``: a file, a folder or a glob."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from seqdata.errors import ConfigError, must_be
from seqdata.storage.fields import ID_FIELD
from seqdata.storage.local_files import is_remote
from seqdata.storage.remote.urls import redact_url

_WILDCARDS = set("*?[")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read.

    Attributes:
        path: Where it is.
        key: Its path relative to the source, with ``/``, which names it in a store.
    """

    path: Path
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of ``seqdata write`` about the input.

    Attributes:
        field: Name of the field of files that hold one array each; None for ``x``.
        group: Column whose equal values make a sequence; None if each row is one.
        id: Column that names a sequence; None if rows are numbered.
        order: Column that the rows of each group are sorted by; None if they are in order.
        per_sequence: Columns that have one value per group, not one per row.
        delimiter: Character between the columns of a CSV file; None for ``,``.
        decimal: Decimal point of its numbers; None for ``.``.
    """

    field: str | None = None
    group: str | None = None
    id: str | None = None
    order: str | None = None
    per_sequence: tuple[str, ...] = ()
    delimiter: str | None = None
    decimal: str | None = None

    @property
    def naming_columns(self) -> list[str]:
        """The columns whose values name sequences."""
        return [name for name in (self.group, self.id) if name is not None]

    def one_field(self, format_name: str) -> str:
        """Return the field's name for a format of one array per file.

        Raises:
            ConfigError: If an option is set that applies to tables only, or the name is that of the
                field of ids.
        """
        for name in ("group", "id", "order", "delimiter", "decimal"):
            value = getattr(self, name)
            if value is not None:
                raise ConfigError(
                    f"format {format_name!r}: `{name}` must be left out, but is {value!r}: a "
                    "file is a sequence, named by its path; only tables have columns"
                )
        if self.field == ID_FIELD:
            raise ConfigError(
                must_be(
                    f"format {format_name!r}: `field`",
                    "a name for the arrays of the files",
                    f"{ID_FIELD!r}, the field that names sequences",
                    "Choose another name",
                )
            )
        return self.field or "x"


def find_files(
    source: str | os.PathLike[str], *, skip: str | os.PathLike[str] | None = None
) -> list[SourceFile]:
    """Return the files of a source in a fixed order, by their keys.

    Args:
        source: A file, a folder (with all below it), or a glob in which ``**`` is any depth. Hidden
            files and folders are left out unless they are named.
        skip: A folder whose files are left out.

    Raises:
        ConfigError: If it is a URL, there are no files, or one of them is a link to nothing.
    """
    text = os.fspath(source)
    if is_remote(text):
        raise ConfigError(
            must_be(
                f"source {redact_url(text)!r}",
                "a file, a folder or a glob on this machine, unless it is opened as a store",
                "a URL",
                "Copy the files to this machine",
            )
        )
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
            f"source {text!r}: must be a file, a folder or a glob, but was not found. Check the "
            "path."
        )
    names = {Path(name).as_posix() for name in found}
    for name in sorted(names):
        if (root / name).is_symlink() and not (root / name).exists():
            raise ConfigError(
                f"source {text!r}: must hold files, but {name!r} is a link to nothing. Restore the "
                "file, or remove the link"
            )
    keys = sorted(name for name in names if (root / name).is_file())
    if skip is not None:
        out = Path(skip).resolve()
        keys = [key for key in keys if not (root / key).resolve().is_relative_to(out)]
    if not keys:
        raise ConfigError(
            f"source {text!r}: must hold at least one file, but holds none. Check the path or the "
            "pattern."
        )
    return [SourceFile(root / key, key) for key in keys]


def drop_suffixes(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Return files with keys without suffixes, ``a/0`` for ``a/0.npy``, if these differ, too.

    Where two files would have the same key, all keep the one that they have.
    """
    files = list(files)
    keys = [PurePosixPath(file.key).with_suffix("").as_posix() for file in files]
    if len(set(keys)) < len(keys):
        return files
    return [replace(file, key=key) for file, key in zip(files, keys, strict=True)]


def count_suffixes(files: Iterable[SourceFile]) -> dict[str, int]:
    """Return the number of files of each suffix (lower case, with its dot), most common first."""
    counts: dict[str, int] = {}
    for file in files:
        ending = file.path.suffix.lower()
        counts[ending] = counts.get(ending, 0) + 1
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def _glob_root(path: Path) -> Path:
    """Return the folder before the first wildcard."""
    root = Path(path.anchor)
    for part in path.parts[1 if path.anchor else 0 : -1]:
        if _WILDCARDS & set(part):
            break
        root = root / part
    return root
