"""Files and tables at a location, for backends that read whole files themselves.

``find_files`` searches a folder, a glob or several by the rules of all formats, ``find_tables``
those of Arrow and Parquet, also of a saved Hugging Face dataset; ``warn_left_out`` reports what
was there besides. ``RowTables`` reads tables with a row per timestep, part by part.
``open_decompressed`` opens a file whose name may end in ``.gz``, ``.bz2``, ``.xz`` or ``.zst``;
``refuse_repeated`` refuses one that is there compressed and not. ``cache_folder`` is the user's
cache, for what cannot be written next to the data. ``RemoteTree`` reads the files below a
URL, for formats whose data is many files. ``fetch_copies``
returns local copies of files at URLs, ``LocalCopies``.
"""

from __future__ import annotations

from seqdata.readers.row_tables import RowTables
from seqdata.storage.compressed_files import (
    find_compression,
    open_decompressed,
    refuse_repeated,
    strip_compression,
)
from seqdata.storage.find_files import find_files, warn_left_out
from seqdata.storage.foreign.file_discovery import find_tables
from seqdata.storage.indexed.shards import cache_folder
from seqdata.storage.local_copies import LocalCopies, fetch_copies
from seqdata.storage.remote.remote_tree import RemoteTree

__all__ = [
    "LocalCopies",
    "RemoteTree",
    "RowTables",
    "cache_folder",
    "fetch_copies",
    "find_compression",
    "find_files",
    "find_tables",
    "open_decompressed",
    "refuse_repeated",
    "strip_compression",
    "warn_left_out",
]
