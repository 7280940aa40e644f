"""Which files at a location are Arrow, Feather or Parquet files that others wrote.

Place in the flow: opening asks what a folder is, the foreign store what to open. Reads: a folder's
names. Makes: names of files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from seqdata.errors import ConfigError, CorruptShardError, DataError, MissingShardError
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.data_location import Place
from seqdata.storage.local_files import is_plain_name
from seqdata.storage.writing.staging_dir import OWN_FILES, unfinished

SUFFIXES = (".arrow", ".feather", ".ipc", ".parquet", ".pq")
STATE = "state.json"  # what the datasets library writes beside its files, naming those that count
_INFO = "dataset_info.json"  # lies beside it
MOST_STATE = 1 << 24  # bytes
_OF = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")


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
        MissingShardError: If a file that is named is not there.
        CorruptShardError: If the state of a saved dataset is damaged.
        DataError: If there is no such file, or files of Arrow and of Parquet lie together.
    """
    if not root.exists():
        raise ConfigError(
            f"{root}: is not there, must be an Arrow, Feather or Parquet file or a folder of them; "
            "check the path"
        )
    if not root.is_dir():
        _check_ordinary(root, root.name, str(root))
        return root.parent, [root.name]
    there = [one.name for one in root.iterdir()]
    state, named = root / STATE, []
    if state.is_file() and state.stat().st_size <= MOST_STATE:
        named = named_by_datasets(str(root), state.read_bytes(), there)
    names = chosen_of(str(root), there, named)
    for name in names:
        _check_ordinary(root / name, name, str(root))
    return root, names


def _check_ordinary(path: Path, name: str, location: str) -> None:
    """Refuse what is no file to read: opening a pipe would wait for ever."""
    if path.is_file():
        return
    place = Place(dataset=location, file=name)
    if path.is_symlink() and not path.exists():
        raise place.error(
            MissingShardError, "is a link to nothing, must lead to a file; restore it"
        )
    raise place.error(
        DataError, "is a folder, pipe or device, must be an ordinary file; remove it from there"
    )


def chosen_of(location: str, there: Iterable[str], named: Sequence[str]) -> list[str]:
    """Choose the files to open of those in a folder; raises as ``files_of`` does.

    Args:
        location: Of the folder, for messages.
        there: All names in it.
        named: Those that count, where something says so.
    """
    there = set(there)
    for number, name in enumerate(named):
        if name not in there:
            raise Place(dataset=location, shard=number, file=name).error(
                MissingShardError,
                f"must be in the folder, for {STATE!r} names it ({len(named)} files; "
                f"{len(there & set(named))} are there), but is not. Restore it, or save the "
                "dataset again",
            )
    names = list(named) or sorted(name for name in there if _is_data(name))
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


def gaps_in(names: Sequence[str]) -> str:
    """Return what is missing where names say how many files there are (``x-00000-of-00003``).

    Returns:
        In words; empty if nothing is.
    """
    runs: dict[tuple[str, str, str], set[int]] = {}
    for found in filter(None, map(_OF.fullmatch, names)):
        runs.setdefault((found[1], found[3], found[4]), set()).add(int(found[2]))
    for (begin, count, end), numbers in runs.items():
        lacking = sorted(set(range(int(count))) - numbers) if int(count) < 1 << 20 else []
        if lacking:
            return (
                f"must hold {int(count)} files by their names, but holds {len(numbers)}; the first "
                f"that is not there is '{begin}-{lacking[0]:05}-of-{count}{end}'"
            )
    return ""


def _is_data(name: str) -> bool:
    return name.endswith(SUFFIXES) and not name.startswith((".", "_"))


def named_by_datasets(location: str, state: bytes, there: Iterable[str]) -> list[str]:
    """Return the names in the state of a saved dataset; none if there is no saved dataset.

    Args:
        location: Of the folder, for messages.
        state: Its ``state.json``, which may be somebody else's.
        there: All names in it.

    Raises:
        CorruptShardError: If there is one, and its state does not name plain files.
    """
    try:
        told = json.loads(state.decode("utf-8"))
        names = [one["filename"] for one in told["_data_files"]]
        plain = all(isinstance(name, str) and is_plain_name(name) for name in names)
        if plain and len(set(names)) == len(names):
            return names
        what = "names a file twice" if plain else "names files outside of the folder"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if _INFO not in there:  # somebody else's state.json
            return []
        what = f"cannot be read ({type(error).__name__})"
    raise Place(dataset=location, file=STATE).error(
        CorruptShardError,
        f"must name the files of a saved dataset, but {what}. Restore it, or save the dataset "
        "again; to open files without it, pass them by name",
    )
