"""The Zarr folders at a location: a path, a URL, or a glob of either.

Reads: listings. Makes: Zarr folders.
"""

from __future__ import annotations

import fnmatch
import glob
import posixpath
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from seqdata.backends import DataLocation
from seqdata.backends.files import RemoteTree
from seqdata.errors import ConfigError, MissingShardError
from seqdata_arrays.layout import natural_order
from seqdata_arrays.zarr_folder import METADATA, LocalFolder, RemoteFolder, find_lost

_SIGNS = re.compile(r"[*?\[]")


def is_url(location: str) -> bool:
    """Return whether a location is behind a URL, not on this machine."""
    return "://" in location.removeprefix("file://")


def find_folders(root: str) -> list[LocalFolder]:
    """Return the Zarr folders at a path, in natural order.

    Raises:
        ConfigError: If there are none.
        MissingShardError: If a ``.zarr`` folder next to them holds data, but no metadata file.
    """
    path = Path(root)
    if path.is_dir():
        if any((path / name).is_file() for name in METADATA):
            return [LocalFolder(path, path.name)]
        found = [Path(each) for each in glob.glob(f"{glob.escape(root)}/**/*.zarr", recursive=True)]
    else:
        found = [Path(each) for each in glob.glob(root, recursive=True)]
    others = [each for each in found if not any((each / name).is_file() for name in METADATA)]
    found = [each for each in found if each not in set(others)]
    if not found:
        raise _make_missing_error(root)
    for each in others:
        if each.suffix == ".zarr" and each.is_dir():
            _check_no_data(root, each.name, LocalFolder(each, each.name).list_sizes(""))
    found.sort(key=lambda each: natural_order(str(each)))
    if len(found) > 1 and path.is_dir():
        return [LocalFolder(each, str(each.relative_to(path))) for each in found]
    return [LocalFolder(each, each.name) for each in found]


def find_remote_folders(url: str, remote: Any) -> tuple[RemoteTree, list[RemoteFolder]]:
    """Return the files at a URL, and the Zarr folders among them, in natural order.

    All files below the URL are listed. If the server does not list files, the URL must be of one
    folder with consolidated metadata.

    Raises:
        ConfigError: If there are no Zarr folders.
        CorruptShardError: If consolidated metadata is damaged.
        MissingShardError: If a server that lists no files has no consolidated metadata, or a
            ``.zarr`` folder next to others holds data, but no metadata file.
        RemoteReadError: If a request fails.
    """
    base, pattern = _split_pattern(url)
    tree = RemoteTree(base, remote)
    shown = f"{tree.location}/{pattern}" if pattern else tree.location
    listed = tree.list_files()
    if listed is None:
        if pattern:
            raise ConfigError(
                f"{shown}: must be one Zarr folder, since its server lists no files, but is a "
                "glob. Open each folder by its URL, and concatenate the stores"
            )
        return tree, [RemoteFolder(tree, "", posixpath.basename(shown), None)]
    paths = sorted(listed)
    bases = {posixpath.dirname(path) for path in paths if posixpath.basename(path) in METADATA}
    if not pattern and "" in bases:
        return tree, [RemoteFolder(tree, "", posixpath.basename(shown), paths)]
    found = [each for each in bases if _matches(each, pattern or "**/*.zarr")]
    if not found:
        raise _make_missing_error(shown)
    beginnings = {path.partition(".zarr/")[0] for path in paths if ".zarr/" in path}
    for each in {f"{beginning}.zarr" for beginning in beginnings} - bases:
        if _matches(each, pattern or "**/*.zarr"):
            below = (path.removeprefix(f"{each}/") for path in paths if path.startswith(f"{each}/"))
            _check_no_data(shown, posixpath.basename(each), below)
    found.sort(key=natural_order)
    is_below = len(found) > 1 and not pattern
    return tree, [
        RemoteFolder(tree, each, each if is_below else posixpath.basename(each), paths)
        for each in found
    ]


def _split_pattern(url: str) -> tuple[str, str]:
    """Return the URL before the first part with a wildcard, and the glob; "" if there is none."""
    scheme, separator, rest = url.partition("://")
    path, mark, query = rest.partition("?") if scheme.startswith("http") else (rest, "", "")
    parts = path.rstrip("/").split("/")
    first = next((at for at, part in enumerate(parts) if _SIGNS.search(part)), len(parts))
    base = f"{scheme}{separator}{'/'.join(parts[:first])}{mark}{query}"
    return base, "/".join(parts[first:])


def _matches(path: str, pattern: str) -> bool:
    """Return whether a path matches a glob, in which ``**`` matches any number of folders."""
    return _match_parts(path.split("/"), pattern.split("/"))


def _match_parts(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        is_below = bool(parts) and not parts[0].startswith(".")
        return _match_parts(parts, patterns[1:]) or (is_below and _match_parts(parts[1:], patterns))
    return (
        bool(parts)
        and fnmatch.fnmatchcase(parts[0], patterns[0])
        and (not parts[0].startswith(".") or patterns[0].startswith("."))
        and _match_parts(parts[1:], patterns[1:])
    )


def _check_no_data(location: str, name: str, files: Iterable[str]) -> None:
    """Check that a folder ``*.zarr`` without a metadata file holds no data."""
    lost = find_lost(files)
    if lost is not None:
        raise DataLocation(dataset=location, file=name).make_error(
            MissingShardError,
            f"must have a metadata file ({', '.join(METADATA[:-1])} or {METADATA[-1]}), but has "
            f"none, although it holds {lost[2]!r}. Restore the file, or move the folder elsewhere",
        )


def _make_missing_error(location: str) -> ConfigError:
    return ConfigError(
        f"{location}: must be a Zarr folder, or hold some (`*.zarr`), but there is no "
        f"{' or '.join(METADATA)}. Check the path, or restore the file"
    )
