"""Which files at a location are Arrow, Feather or Parquet files that others wrote.

Place in the flow: opening asks what a folder is, the foreign store what to open. Reads: a folder's
names. Makes: names of files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from seqdata.errors import ConfigError, DataError
from seqdata.storage.location import is_plain_name
from seqdata.storage.manifest import MANIFEST
from seqdata.storage.places import Place
from seqdata.storage.writing.commit import OWN_FILES, unfinished

SUFFIXES = (".arrow", ".feather", ".ipc", ".parquet", ".pq")
_STATE = "state.json"  # what the datasets library writes beside its files, naming those that count
_MOST_STATE = 1 << 24  # bytes


def is_foreign(location: str | os.PathLike[str]) -> bool:
    """Tell whether a location is a file or folder of the foreign store's, by names alone."""
    path = Path(location)
    if path.suffix in SUFFIXES and not path.is_dir():
        return True
    if not path.is_dir() or (path / MANIFEST).exists() or unfinished(path):
        return False
    names = [one.name for one in path.iterdir()]
    return not any(OWN_FILES.fullmatch(name) for name in names) and any(map(_is_data, names))


def files_of(root: Path) -> tuple[Path, list[str]]:
    """Give the folder and the names of the files to open, in the order of their sequences.

    Of a folder these are the files that its ``state.json`` names, if the datasets library wrote
    one, else all with a known ending, by name.

    Raises:
        ConfigError: If nothing is there.
        DataError: If there is no such file, or files of Arrow and of Parquet lie together.
    """
    if not root.exists():
        raise ConfigError(
            f"{root}: is not there, must be an Arrow, Feather or Parquet file or a folder of them; "
            "check the path"
        )
    if not root.is_dir():
        return root.parent, [root.name]
    there = [one.name for one in root.iterdir()]
    return root, chosen_of(str(root), there, _named_by_datasets(root / _STATE))


def chosen_of(location: str, there: Iterable[str], named: Sequence[str]) -> list[str]:
    """Choose the files to open of those in a folder; raises as ``files_of`` does.

    Args:
        location: Of the folder, for messages.
        there: All names in it.
        named: Those that count, where something says so.
    """
    names = sorted(name for name in there if _is_data(name))
    if named and set(named) <= set(names):
        names = list(named)
    if not names:
        raise Place(dataset=location).error(
            DataError,
            f"holds no file that ends with {', '.join(SUFFIXES)}, must hold one at least; check "
            "the path",
        )
    parquet = [name for name in names if name.endswith((".parquet", ".pq"))]
    if parquet and len(parquet) < len(names):
        other = next(name for name in names if name not in parquet)
        raise Place(dataset=location, file=other).error(
            DataError,
            f"lies beside {parquet[0]!r}, must be of the same kind, for they may be the same data; "
            "open them by name",
        )
    return names


def _is_data(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith((".", "_"))


def _named_by_datasets(state: Path) -> list[str]:
    """Give the names in the state of a saved dataset; none where it is not that."""
    if not state.is_file() or state.stat().st_size > _MOST_STATE:
        return []
    try:
        told = json.loads(state.read_text("utf-8"))
        names = [one["filename"] for one in told["_data_files"]]
    except (ValueError, KeyError, TypeError, RecursionError):  # somebody else's state.json
        return []
    return [name for name in names if isinstance(name, str) and is_plain_name(name)]
