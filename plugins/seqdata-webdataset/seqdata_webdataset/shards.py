"""From a location to the tar files that it means: a file, a folder, a list, braces.

Place in the flow: the first step of opening and of indexing. Reads: names. Makes: paths.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path

import braceexpand

from seqdata.errors import ConfigError, IncompleteDatasetError, UnsafeContentError
from seqdata.storage.location import local_path
from seqdata.storage.places import Place
from seqdata.storage.writing.commit import unfinished

Location = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
SUFFIX = ".tar"
JOINED = "::"
_PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4")
MAX_SHARDS = 1 << 20
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")


def text_of(location: Location) -> str:
    """Give a location as one text, which means the same again.

    Raises:
        ConfigError: If it is no path and no list of them.
    """
    if isinstance(location, str | os.PathLike):
        return os.fspath(location)
    parts = list(location) if isinstance(location, Sequence) else []
    if not parts or not all(isinstance(part, str | os.PathLike) for part in parts):
        raise ConfigError(
            f"webdataset: location is {location!r}, must be a path or a list of paths of tar files"
        )
    return JOINED.join(os.fspath(part) for part in parts)


def find_shards(location: str) -> list[Path]:
    """Give the tar files that a location means, in its order; of a folder by name.

    Args:
        location: A file, a folder, braces (``x-{000..017}.tar``), or several, joined by ``::``.

    Raises:
        ConfigError: If it means none, or one of them twice.
        UnsafeContentError: If it would run a program.
        IncompleteDatasetError: If a folder's writing was never finished.
    """
    found: list[Path] = []
    for part in location.split(JOINED):
        if part.startswith(("pipe:", "|")) or part.endswith("|"):
            raise UnsafeContentError(
                f"webdataset: {part!r} would run a program, must be a path; run it yourself and "
                "open the file that it makes"
            )
        for one in _expanded(part, location):
            path = local_path(one)
            found.extend(_in_folder(path) if path.is_dir() else [path])
    for path in found:
        if path.name.endswith(_PACKED):
            raise ConfigError(
                f"{path}: is compressed, must be a plain tar file, of which parts can be read; "
                "unpack it once, e.g. with gunzip"
            )
    if len(set(found)) < len(found):
        twice = next(path for path in found if found.count(path) > 1)
        raise ConfigError(f"webdataset: {location!r} names {twice} twice, must name it once")
    return found


def _expanded(part: str, location: str) -> list[str]:
    if "{" not in part:
        return [part]
    if _most(part) > MAX_SHARDS:
        raise ConfigError(
            f"webdataset: {location!r} means more than {MAX_SHARDS} shards, must mean at most so "
            "many; check the braces"
        )
    try:
        return list(braceexpand.braceexpand(part))
    except ValueError as error:  # unbalanced
        raise ConfigError(
            f"webdataset: {location!r} has braces without their ends, must have both; e.g. "
            "'x-{000..017}.tar'"
        ) from error


def _most(part: str) -> int:
    """Give how many texts braces mean at most, without making them."""
    ranges = [abs(int(last) - int(first)) + 1 for first, last in _RANGE.findall(part)]
    choices = [one.count(",") + 1 for one in part.split("{")[1:]]
    return math.prod(ranges) * math.prod(choices)


def _in_folder(folder: Path) -> list[Path]:
    if unfinished(folder):
        raise Place(dataset=str(folder)).error(
            IncompleteDatasetError,
            "was never finished writing, must be; the same call goes on with it, or remove the "
            "folder '.seqdata-tmp-…' in it",
        )
    found = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))
    if not found:
        raise ConfigError(
            f"{folder}: holds no file that ends with {SUFFIX!r}, must hold one at least; check the "
            "path"
        )
    return found


def is_tar_folder(names: Sequence[str]) -> bool:
    """Tell whether a folder with these names is one of shards."""
    return any(name.endswith(SUFFIX) for name in names)
