"""Discovery of Arrow, Feather and Parquet files at a location."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from seqdata.errors import ConfigError, CorruptShardError, DataError, MissingShardError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.find_files import FoundFiles, find_files
from seqdata.storage.local_files import is_plain_name
from seqdata.storage.writing.table_files import TABLE_KINDS, find_table_kind

SUFFIXES = tuple(sorted(name for name, kind in TABLE_KINDS.items() if kind in ("arrow", "parquet")))
STATE_FILE = (
    "state.json"  # the datasets library writes it next to its files; it names the valid ones
)
_INFO_FILE = "dataset_info.json"  # next to it
MAX_STATE_BYTES = 1 << 24  # bytes
_NUMBERED_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")


def find_tables(location: str) -> FoundFiles:
    """Return the files to open at a location, in the order of their sequences.

    Of a folder that the datasets library saved these are the files that its ``state.json`` names;
    of others all files with a known suffix, except those whose name, or that of a folder above,
    begins with ``_``.

    Raises:
        ConfigError: If nothing is there, or files are of several splits.
        MissingShardError: If a named file does not exist.
        CorruptShardError: If the state of a saved dataset is damaged.
        DataError: If there is no such file, or Arrow and Parquet files are mixed.
    """
    found = find_files(location, is_data_file)
    if not (found.names or found.others or found.hidden or found.root.joinpath(location).exists()):
        raise ConfigError(
            f"{location}: must be an Arrow, Feather or Parquet file or a folder of them, but is "
            "not there. Check the path"
        )
    if len(found.names) == 1 and not found.others:  # a file by its name, whatever its suffix
        return found
    names = _apply_states(found) or found.names
    check_kind(location, names)
    return replace(found, names=names)


def _apply_states(found: FoundFiles) -> list[str]:
    """Return only the files that states of saved datasets name; none if there are no states."""
    folder_of = {name: name.rpartition("/")[0] for name in (*found.names, *found.others)}
    listed: dict[str, list[str]] = {}
    for name, folder in folder_of.items():
        state = found.root / name
        if state.name != STATE_FILE or state.stat().st_size > MAX_STATE_BYTES:
            continue
        path = str(state.parent)
        existing = [Path(each).name for each, its in folder_of.items() if its == folder]
        if names := parse_dataset_state(path, state.read_bytes(), existing):
            check_names(path, existing, names)
            listed[folder] = [f"{folder}/{each}" if folder else each for each in names]
    if not listed:
        return []
    folders = dict.fromkeys(folder_of[name] for name in found.names)
    return [
        name
        for folder in folders
        for name in listed.get(folder, [each for each in found.names if folder_of[each] == folder])
    ]


def check_names(location: str, existing: Iterable[str], names: Sequence[str]) -> None:
    """Raise if a file that the state of a saved dataset names does not exist.

    Args:
        location: The folder, for messages.
        existing: The names of its files.
        names: The names by the state.

    Raises:
        MissingShardError: If a file does not exist.
    """
    existing = set(existing)
    for number, name in enumerate(names):
        if name not in existing:
            raise DataLocation(dataset=location, shard=number, file=name).make_error(
                MissingShardError,
                f"must be in the folder, since {STATE_FILE!r} names it ({len(names)} files; "
                f"{len(existing & set(names))} exist), but is not. Restore it, or save the "
                "dataset again",
            )


def check_kind(location: str, names: Sequence[str]) -> None:
    """Raise if there are no files, or some of Parquet and some of Arrow.

    Raises:
        DataError: If there are no files, or Parquet and Arrow files are mixed.
    """
    if not names:
        raise DataLocation(dataset=location).make_error(
            DataError,
            f"must hold at least one file that ends with {', '.join(SUFFIXES)}, but holds none. "
            "Check the path",
        )
    parquet = [name for name in names if find_table_kind(name) == "parquet"]
    if parquet and len(parquet) < len(names):
        mismatched_file = next(name for name in names if name not in parquet)
        raise DataLocation(dataset=location, file=mismatched_file).make_error(
            DataError,
            f"must be of the same kind as {parquet[0]!r} next to it, but is not: they may be the "
            "same data. Open them by name",
        )


def describe_gaps(names: Sequence[str]) -> str:
    """Return the missing files of names with a total (``x-00000-of-00003``).

    Returns:
        A sentence; empty if nothing is missing.
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


def is_data_file(path: str) -> bool:
    """Return whether a file at this path is opened as part of its folder.

    One that begins with ``_``, or is below a folder that does, is not: Spark, Hadoop
    and PyArrow use such names for notes of their own.
    """
    parts = path.split("/")
    is_noted = any(part.startswith(("_", ".")) and "=" not in part for part in parts)
    return has_table_suffix(path) and not is_noted


def parse_dataset_state(location: str, state: bytes, existing: Iterable[str]) -> list[str]:
    """Return the names in the state of a saved dataset; none if there is no saved dataset.

    Args:
        location: The folder, for messages.
        state: The content of its ``state.json``, which may be of another program.
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
    """Raise if a saved dataset has indices, which select rows of its files."""
    if selection:
        raise DataLocation(dataset=location, file=STATE_FILE).make_error(
            DataError,
            "must name all rows of its files, but selects some of them by indices, which is not "
            "supported. Save the dataset again after `flatten_indices()`",
        )
