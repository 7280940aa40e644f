"""The files of a source of ``seqdata write``: a file, a folder or a glob."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from seqdata.errors import ConfigError, must_be
from seqdata.readers.missing import Missing
from seqdata.storage.compressed_files import (
    find_compression,
    refuse_repeated,
    strip_compression,
)
from seqdata.storage.fields import ID_FIELD
from seqdata.storage.find_files import (
    FoundFiles,
    PartitionValue,
    find_files,
    find_partitions,
    is_note,
    names_several,
)
from seqdata.storage.foreign.file_discovery import has_table_suffix, is_data_file
from seqdata.storage.local_copies import LocalCopies, fetch_copies
from seqdata.storage.local_files import is_remote
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.writing.table_files import find_table_kind

CSV_OPTIONS = ("delimiter", "decimal", "thousands", "comment")
"""Names of the options that are for CSV files only."""


_TEXT_TABLES = ("csv", "jsonl")  # kinds of tables whose files may be compressed


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read.

    Attributes:
        path: The path of the file.
        key: The path relative to the source, with ``/``, which names it in a store.
        partition: Column that a folder above it names (``label=0``) -> its value.
    """

    path: Path
    key: str
    partition: Mapping[str, PartitionValue] = field(default_factory=dict)


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
        decimal: Decimal point in a CSV file; None for ``.``.
        thousands: Separator of thousands in a CSV file; None: there is none.
        comment: Character that begins lines of a CSV file that are ignored; None: there are none.
        missing: Rule for missing values of a table that is grouped; None: NaN, with a warning.
    """

    field: str | None = None
    group: str | None = None
    id: str | None = None
    order: str | None = None
    per_sequence: tuple[str, ...] = ()
    delimiter: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    comment: str | None = None
    missing: Missing | None = None

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
        for name in ("group", "id", "order", "missing", *CSV_OPTIONS):
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


def find_source(
    source: str | os.PathLike[str], *, skip: str | os.PathLike[str] | None = None
) -> tuple[list[SourceFile], FoundFiles]:
    """Return the files of a source in natural order, and the skipped ones.

    Args:
        source: A file, a folder (with all below it), or a glob in which ``**`` is any depth. Hidden
            files and folders are skipped unless they are named, and notes such as ``_SUCCESS``.
        skip: A folder whose files are skipped.

    Raises:
        ConfigError: If ``source`` is a URL, there are no files, they are of several splits, or a
            file is there twice, also compressed.
        MissingShardError: If a file is a link to nothing.
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
    found = find_files(text, _is_data, skip=skip)
    if not found.names and not (os.path.isdir(text) or names_several(text)):
        raise ConfigError(
            f"source {text!r}: must be a file, a folder or a glob, but was not found. Check the "
            "path."
        )
    if not found.names:
        raise ConfigError(
            f"source {text!r}: must hold at least one file, but holds none. Check the path or the "
            "pattern."
        )
    refuse_repeated(f"source {text!r}", found.names)
    root = found.root if os.path.isabs(text) else Path(os.path.relpath(found.root))
    partitions = find_partitions(found.names)
    files = [
        SourceFile(root / name, name, partition)
        for name, partition in zip(found.names, partitions, strict=True)
    ]
    return files, found


def fetch_source(
    location: str | os.PathLike[str],
    remote: str | Remote | None = None,
    check: Callable[[list[SourceFile]], object] | None = None,
) -> LocalCopies | None:
    """Return copies of the files of a source at a URL; None if it is on this machine.

    Args:
        location: A file, folder or glob, or several.
        remote: How URLs are read.
        check: Called with the files before they are fetched, while they are empty; may raise.

    Raises:
        ConfigError: As ``find_source``.
        SeqDataError: As ``fetch_copies``.
    """

    def choose(path: str) -> list[Path]:
        files, _ = find_source(path)
        if check is not None:
            check(files)
        return [file.path for file in files]

    return fetch_copies(location, remote, choose)


def _is_data(path: str) -> bool:
    return is_data_file(path) if has_table_suffix(path) else not is_note(path)


def find_suffix(name: str | os.PathLike[str]) -> str:
    """Return the suffix of a name in lower case; of a compressed table of text both suffixes.

    Examples:
        >>> find_suffix("rows.CSV.gz"), find_suffix("archive.2024.gz"), find_suffix("rows.csv")
        ('.csv.gz', '.gz', '.csv')
    """
    text = os.fspath(name)
    compression = find_compression(text)
    if compression and find_file_kind(text) is not None:
        return Path(strip_compression(text)).suffix.lower() + compression
    return Path(text).suffix.lower()


def find_file_kind(name: str | os.PathLike[str]) -> str | None:
    """Return the kind of table that a file to read is, by its name; None if it is not one."""
    text = os.fspath(name)
    kind = find_table_kind(strip_compression(text))
    return None if find_compression(text) and kind not in _TEXT_TABLES else kind


def drop_suffixes(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Return files whose keys have no suffix, ``a/0`` for ``a/0.npy``.

    If two files would then have the same key, all files are returned unchanged.
    """
    files = list(files)
    keys = [file.key[: len(file.key) - len(find_suffix(file.key))] for file in files]
    if len(set(keys)) < len(keys):
        return files
    return [replace(file, key=key) for file, key in zip(files, keys, strict=True)]


def count_suffixes(files: Iterable[SourceFile]) -> dict[str, int]:
    """Return the number of files of each suffix (lower case, with its dot), most common first."""
    counts: dict[str, int] = {}
    for file in files:
        ending = find_suffix(file.path)
        counts[ending] = counts.get(ending, 0) + 1
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))
