"""Discovery of Arrow, Feather and Parquet files at a location."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from seqdata.errors import ConfigError, CorruptShardError, DataError, MissingShardError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.local_files import is_plain_name

SUFFIXES = (".arrow", ".feather", ".ipc", ".parquet", ".pq")
STATE_FILE = (
    "state.json"  # the datasets library writes it next to its files; it names the valid ones
)
_INFO_FILE = "dataset_info.json"  # next to it
MAX_STATE_BYTES = 1 << 24  # bytes
_NUMBERED_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")


def find_files(root: Path) -> tuple[Path, list[str]]:
    """Return the folder and the names of the files to open, in the order of their sequences.

    In a folder these are the files that its ``state.json`` names, if the datasets library wrote
    one; otherwise all files with a known suffix, sorted by name, except those that begin with ``.``
    or ``_``.

    Raises:
        ConfigError: If there are no files.
        MissingShardError: If a named file does not exist.
        CorruptShardError: If the state of a saved dataset is damaged.
        DataError: If there is no such file, or Arrow and Parquet files are mixed.
    """
    if not root.exists():
        raise ConfigError(
            f"{root}: must be an Arrow, Feather or Parquet file or a folder of them, but is not "
            "there. Check the path"
        )
    if not root.is_dir():
        _check_regular_file(root, root.name, str(root))
        return root.parent, [root.name]
    existing = [path.name for path in root.iterdir()]
    state, listed = root / STATE_FILE, []
    if state.is_file() and state.stat().st_size <= MAX_STATE_BYTES:
        listed = parse_dataset_state(str(root), state.read_bytes(), existing)
    names = choose_files(str(root), existing, listed)
    for name in names:
        _check_regular_file(root / name, name, str(root))
    return root, names


def _check_regular_file(path: Path, name: str, location: str) -> None:
    """Raise if a path is not an ordinary file: opening a pipe would block."""
    if path.is_file():
        return
    data_location = DataLocation(dataset=location, file=name)
    if path.is_symlink() and not path.exists():
        raise data_location.make_error(
            MissingShardError, "must lead to a file, but is a link to nothing. Restore it"
        )
    raise data_location.make_error(
        DataError, "must be an ordinary file, but is a folder, pipe or device. Remove it from there"
    )


def choose_files(location: str, existing: Iterable[str], listed: Sequence[str]) -> list[str]:
    """Choose the files to open of those in a folder; raises as ``find_files`` does.

    Args:
        location: Of the folder, for messages.
        existing: All names in it.
        listed: The valid names, if a state file lists them.
    """
    existing = set(existing)
    for number, name in enumerate(listed):
        if name not in existing:
            raise DataLocation(dataset=location, shard=number, file=name).make_error(
                MissingShardError,
                f"must be in the folder, for {STATE_FILE!r} names it ({len(listed)} files; "
                f"{len(existing & set(listed))} are there), but is not. Restore it, or save the "
                "dataset again",
            )
    names = list(listed) or sorted(name for name in existing if is_data_file(name))
    if not names:
        raise DataLocation(dataset=location).make_error(
            DataError,
            f"must hold at least one file that ends with {', '.join(SUFFIXES)}, but holds none. "
            "Check the path",
        )
    parquet = [name for name in names if name.lower().endswith((".parquet", ".pq"))]
    if parquet and len(parquet) < len(names):
        mismatched_file = next(name for name in names if name not in parquet)
        raise DataLocation(dataset=location, file=mismatched_file).make_error(
            DataError,
            f"must be of the same kind as {parquet[0]!r} next to it, but is not: they may be the "
            "same data. Open them by name",
        )
    return names


def describe_gaps(names: Sequence[str]) -> str:
    """Return the missing files of names with a total (``x-00000-of-00003``).

    Returns:
        As text; empty if nothing is missing.
    """
    numbers_of_series: dict[tuple[str, str, str], set[int]] = {}
    for found in filter(None, map(_NUMBERED_NAME.fullmatch, names)):
        numbers_of_series.setdefault((found[1], found[3], found[4]), set()).add(int(found[2]))
    for (prefix, count, suffix), numbers in numbers_of_series.items():
        missing = sorted(set(range(int(count))) - numbers) if int(count) < 1 << 20 else []
        if missing:
            return (
                f"must hold {int(count)} files by their names, but holds {len(numbers)}; the first "
                f"that is not there is '{prefix}-{missing[0]:05}-of-{count}{suffix}'"
            )
    return ""


def has_table_suffix(name: str) -> bool:
    """Return whether a file's name ends as one of Arrow, Feather or Parquet does."""
    return name.lower().endswith(SUFFIXES)


def is_data_file(name: str) -> bool:
    """Return whether a file with this name is opened as part of its folder.

    One that begins with ``_`` is not: Spark and Hadoop, as PyArrow, take it for a note of theirs.
    """
    return has_table_suffix(name) and not name.startswith((".", "_"))


def parse_dataset_state(location: str, state: bytes, existing: Iterable[str]) -> list[str]:
    """Return the names in the state of a saved dataset; none if there is no saved dataset.

    Args:
        location: Of the folder, for messages.
        state: Its ``state.json``, which may be of another program.
        existing: All names in it.

    Raises:
        CorruptShardError: If there is one, and its state does not name plain files.
        DataError: If it is a selection of the rows of its files.
    """
    try:
        parsed = json.loads(state.decode("utf-8"))
        names = [entry["filename"] for entry in parsed["_data_files"]]
        selection = parsed.get("_indices_data_files")
        are_plain = all(isinstance(name, str) and is_plain_name(name) for name in names)
        if names and are_plain and len(set(names)) == len(names):
            _refuse_selection(location, selection)
            return names
        problem = "names a file twice" if are_plain else "names files outside of the folder"
        problem = problem if names else "names none"
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if _INFO_FILE not in existing:  # state.json of another program
            return []
        problem = f"cannot be read ({type(error).__name__})"
    raise DataLocation(dataset=location, file=STATE_FILE).make_error(
        CorruptShardError,
        f"must name the files of a saved dataset, but {problem}. Restore it, or save the dataset "
        "again; to open files without it, pass them by name",
    )


def _refuse_selection(location: str, selection: object) -> None:
    """Raise if a saved dataset has indices: which rows of its files it is, and in which order."""
    if selection:
        raise DataLocation(dataset=location, file=STATE_FILE).make_error(
            DataError,
            "must name all rows of its files, but selects some of them by indices, which are not "
            "read. Save the dataset again after `flatten_indices()`",
        )
