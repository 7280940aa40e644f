"""The face for authors of backends: formats of files, and the parts of whole stores.

Most backends write a ``FileFormat``: it says where the values of each sequence lie in a file, and
the core does the rest. ``docs/how-to/own-format.md`` has a complete one. What extents cannot say
(compressed chunks, a database) implements ``seqdata.protocols.Store``. Place in the flow: plugins
import this, and no other module that is not public. Makes: nothing; it re-exports.
"""

from __future__ import annotations

from seqdata.hookspecs import hookimpl
from seqdata.protocols import Column, Field, Opener, Store
from seqdata.storage.array_column import PieceColumn
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.data_location import Place, quoted
from seqdata.storage.digest_trailer import read_sealed, sealed
from seqdata.storage.extents import ShardExtents, extents_of
from seqdata.storage.fields import (
    MAX_WIDTH,
    NUMBERS,
    default_axis,
    field_width,
    infer_fields,
    no_such,
)
from seqdata.storage.hashing import hash_texts
from seqdata.storage.indexed.auditing import audit as audit_files
from seqdata.storage.indexed.backend import FormatBackend, index_files
from seqdata.storage.indexed.fields import ids_of
from seqdata.storage.indexed.finding import Location, find_shards, text_of
from seqdata.storage.indexed.formats import Extents, FileFormat, FileIndex, RandomAccessFile
from seqdata.storage.indexed.indexing import build, digest_of, sums_of
from seqdata.storage.indexed.keeping import FOLDER, find_index, read_index
from seqdata.storage.indexed.keeping import SUFFIX as INDEX_SUFFIX
from seqdata.storage.indexed.kinds import FileKind, IndexedField
from seqdata.storage.indexed.lengths import OpenedFiles
from seqdata.storage.indexed.listing import LIST, dump_list, load_list
from seqdata.storage.indexed.opening import open_files
from seqdata.storage.indexed.remote_shards import RemoteShard
from seqdata.storage.indexed.shard_index import Members, ShardIndex, dump_index, ends_of, load_index
from seqdata.storage.indexed.store import IndexedStore
from seqdata.storage.indexed.unkept import open_once
from seqdata.storage.inputs import as_rows
from seqdata.storage.integrity.audit import Report
from seqdata.storage.integrity.checksums import BLOCK
from seqdata.storage.integrity.checksums import algorithm as checksum_algorithm
from seqdata.storage.limits import check_size
from seqdata.storage.limits import refuse as refuse_size
from seqdata.storage.local_files import local_path
from seqdata.storage.remote.options import Remote, refuse_remote, remote_of
from seqdata.storage.remote.transport import RemoteFiles, WritableFiles, remote_files
from seqdata.storage.remote.upload import send_store
from seqdata.storage.remote.urls import is_remote, shown
from seqdata.storage.unique_ids import check_ids
from seqdata.storage.writing.bounded_executor import running
from seqdata.storage.writing.packing import Packer, check_axes, make_packer, pack_one
from seqdata.storage.writing.parts import are_parts
from seqdata.storage.writing.progress import Bar, Progress
from seqdata.storage.writing.progress import told as progress_bar
from seqdata.storage.writing.staged_shards import room_for
from seqdata.storage.writing.staging_dir import (
    FACTS,
    aside,
    sync_file,
    unfinished,
    write_synced,
    write_whole,
)

__all__ = [  # authors of formats and stores need the first block, the rest is of the engine
    "BLOCK",
    "FACTS",
    "FOLDER",
    "INDEX_SUFFIX",
    "LIST",
    "MANIFEST",
    "MAX_WIDTH",
    "NUMBERS",
    "Bar",
    "Column",
    "Extents",
    "Field",
    "FileFormat",
    "FileIndex",
    "FileKind",
    "FormatBackend",
    "IndexedField",
    "IndexedStore",
    "Location",
    "Members",
    "OpenedFiles",
    "Opener",
    "Packer",
    "PieceColumn",
    "Place",
    "Progress",
    "RandomAccessFile",
    "Remote",
    "RemoteFiles",
    "RemoteShard",
    "Report",
    "ShardExtents",
    "ShardIndex",
    "Store",
    "WritableFiles",
    "are_parts",
    "as_rows",
    "aside",
    "audit_files",
    "build",
    "check_axes",
    "check_ids",
    "check_size",
    "checksum_algorithm",
    "default_axis",
    "digest_of",
    "dump_index",
    "dump_list",
    "ends_of",
    "extents_of",
    "field_width",
    "find_index",
    "find_shards",
    "hash_texts",
    "hookimpl",
    "ids_of",
    "index_files",
    "infer_fields",
    "is_remote",
    "load_index",
    "load_list",
    "local_path",
    "make_packer",
    "no_such",
    "open_files",
    "open_once",
    "pack_one",
    "progress_bar",
    "quoted",
    "read_index",
    "read_sealed",
    "refuse_remote",
    "refuse_size",
    "remote_files",
    "remote_of",
    "room_for",
    "running",
    "sealed",
    "send_store",
    "shown",
    "sums_of",
    "sync_file",
    "text_of",
    "unfinished",
    "write_synced",
    "write_whole",
]  # fmt: skip
