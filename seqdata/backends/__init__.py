"""The interface for authors of backends: formats of files, and the parts of whole stores.

Most backends write a ``FileFormat``: it returns the positions of each sequence's values in a file,
and the core does the rest. An ``IndexedFormat`` makes whole indexes, for values with headers of
their own. Other data (compressed chunks, a database) implements ``seqdata.protocols.Store``, and
finds its files by ``seqdata.backends.files``.
``docs/about/extend/backends.md`` has an example of each name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqdata.errors import warn
from seqdata.hookspecs import hookimpl
from seqdata.protocols import Field
from seqdata.readers.source import ReadOptions, SourceFile
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.data_location import DataLocation, quote
from seqdata.storage.fields import ID_FIELD, find_key, make_unknown_name_error
from seqdata.storage.indexed.build_index import make_shard_index
from seqdata.storage.indexed.file_format import Extents, FileFormat, FileIndex, RandomAccessFile
from seqdata.storage.indexed.find_files import Location
from seqdata.storage.indexed.indexed_format import IndexedField, IndexedFormat
from seqdata.storage.indexed.opened_files import OpenedFiles
from seqdata.storage.indexed.opening import FormatBackend, open_once
from seqdata.storage.indexed.shard_index import FieldIndex, ShardIndex
from seqdata.storage.limits import check_size
from seqdata.storage.packing import NUMBER_DTYPES
from seqdata.storage.store import ShardStore
from seqdata.storage.store_rows import iter_sequences
from seqdata.storage.wav import WavHeader
from seqdata.storage.write_files import ShardEncoder, write_files

__all__ = [
    "NUMBER_DTYPES",
    "ArrayColumn",
    "DataLocation",
    "Extents",
    "Field",
    "FieldIndex",
    "FileFormat",
    "FileIndex",
    "FormatBackend",
    "FormatReader",
    "IndexedField",
    "IndexedFormat",
    "Location",
    "OpenedFiles",
    "RandomAccessFile",
    "ShardEncoder",
    "ShardIndex",
    "ShardStore",
    "WavHeader",
    "check_size",
    "hookimpl",
    "make_shard_index",
    "make_unknown_name_error",
    "quote",
    "write_files",
]


@dataclass(frozen=True, slots=True)
class FormatReader:
    """Reader of the files of a format for ``seqdata write``, without an index.

    Each file is read once, and no index is written.

    Attributes:
        format: Format of the files.
    """

    format: FileFormat | IndexedFormat

    def __call__(
        self, files: Iterable[SourceFile], options: ReadOptions
    ) -> Iterator[dict[str, Any]]:
        """Yield the sequences of files, each with its ``id``; other suffixes are skipped.

        A field ``id`` is kept in place of ids, with a warning if it does not hold strings.

        Args:
            files: The files, in order.
            options: Empty options, since such files have none.

        Raises:
            ConfigError: If an option is given.
            DataError: If a file is damaged, or is not of the format.
        """
        backend = FormatBackend(self.format)
        options.one_field(backend.indexed_format.name)
        has_warned = False  # once, not for each file
        for file in files:
            if not file.path.name.lower().endswith(backend.indexed_format.suffixes):
                continue
            store = open_once(file.path, backend.indexed_format)
            if ID_FIELD in store.fields and find_key(store.fields, ID_FIELD) is None:
                if not has_warned:
                    _warn_of_lost_ids(file.path)
                has_warned = True
            yield from map(dict, iter_sequences(store))


def _warn_of_lost_ids(path: Path) -> None:
    """Warn that ids are dropped, as they are where a store with such a field is written."""
    warn(
        f"{path}: ids are dropped: its values {ID_FIELD!r} become the field {ID_FIELD!r}, which "
        "does not hold strings. To keep the ids, open the files, `rename` the field, and pass that "
        "to `write_store`",
    )
