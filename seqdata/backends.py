"""The interface for authors of backends: formats of files, and the parts of whole stores.

Most backends write a ``FileFormat``: it says where the values of each sequence are in a file, and
the core does the rest. ``docs/how-to/own-format.md`` has a complete one. What extents cannot
express (compressed chunks, a database) implements ``seqdata.protocols.Store``.
"""

from __future__ import annotations

from seqdata.hookspecs import hookimpl
from seqdata.index import DEFAULT_AXIS
from seqdata.protocols import Column, Field, Opener, Store
from seqdata.readers.source import ReadOptions, SourceFile
from seqdata.storage.array_column import ArrayColumn
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.arrow.shuffled import open_shuffled
from seqdata.storage.data_location import DataLocation, quote
from seqdata.storage.digest_trailer import add_digest, read_with_digest
from seqdata.storage.fields import (
    FIELD_DTYPES,
    MAX_WIDTH,
    TEXT,
    ShardExtents,
    default_axis,
    extents_of,
    field_width,
    find_key,
    kind_of,
    make_packer,
    make_unknown_name_error,
)
from seqdata.storage.hashing import check_unique_ids, hash_texts
from seqdata.storage.indexed.audit import audit_files
from seqdata.storage.indexed.backend import FormatBackend, index_files
from seqdata.storage.indexed.build_index import build, compute_checksums, compute_sha256
from seqdata.storage.indexed.field_axes import OpenedFiles
from seqdata.storage.indexed.file_fields import make_ids
from seqdata.storage.indexed.file_format import Extents, FileFormat, FileIndex, RandomAccessFile
from seqdata.storage.indexed.find_files import Location, find_shards, format_location
from seqdata.storage.indexed.index_storage import INDEX_FOLDER, INDEX_SUFFIX, find_index, read_index
from seqdata.storage.indexed.indexed_format import IndexedField, IndexedFormat
from seqdata.storage.indexed.opening import open_files, open_once
from seqdata.storage.indexed.remote_shards import RemoteShard
from seqdata.storage.indexed.shard_index import (
    FieldIndex,
    ShardIndex,
    digest_ends,
    dump_index,
    load_index,
)
from seqdata.storage.indexed.shard_list import SHARD_LIST, dump_list, load_list
from seqdata.storage.inputs import normalize_sequences
from seqdata.storage.integrity.audit import AuditReport
from seqdata.storage.integrity.checksums import CHECKSUM_BYTES
from seqdata.storage.integrity.checksums import choose_algorithm as checksum_algorithm
from seqdata.storage.limits import check_size
from seqdata.storage.limits import raise_limit_error as refuse_size
from seqdata.storage.local_files import (
    has_digest,
    is_remote,
    local_path,
    refuse_remote,
    sync_file,
    write_atomically,
    write_synced,
)
from seqdata.storage.packing import NUMBER_DTYPES, Packer, pack_sequence
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.remote_files import RemoteFiles, WritableFiles
from seqdata.storage.remote.transport import make_remote_files
from seqdata.storage.remote.upload import upload_store
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.schema import check_axis_lengths, infer_fields
from seqdata.storage.store import ShardStore
from seqdata.storage.wav import WavHeader, is_nist, is_wav, widen_24_bit
from seqdata.storage.writing.bounded_executor import bounded_executor
from seqdata.storage.writing.finished_shards import FinishedShard, ResumeKey
from seqdata.storage.writing.progress import ProgressBar, ProgressFn
from seqdata.storage.writing.progress import progress_bar as progress_bar
from seqdata.storage.writing.shard_format import PackedShard, PackFn, ShardFormat
from seqdata.storage.writing.sharded_writer import ShardedWriter, is_part_list, open_sharded_writer
from seqdata.storage.writing.staging_dir import FACTS_SUFFIX, StoreFiles
from seqdata.storage.writing.writer_lock import find_staging_dirs

__all__ = [  # the first block is for authors of formats and stores, the rest for the engine
    "CHECKSUM_BYTES",
    "DEFAULT_AXIS",
    "FACTS_SUFFIX",
    "FIELD_DTYPES",
    "INDEX_FOLDER",
    "INDEX_SUFFIX",
    "MANIFEST",
    "MAX_WIDTH",
    "NUMBER_DTYPES",
    "SHARD_LIST",
    "TEXT",
    "ArrayColumn",
    "AuditReport",
    "Column",
    "DataLocation",
    "Extents",
    "Field",
    "FieldIndex",
    "FileFormat",
    "FileIndex",
    "FinishedShard",
    "FormatBackend",
    "IndexedField",
    "IndexedFormat",
    "Location",
    "OpenedFiles",
    "Opener",
    "PackFn",
    "PackedShard",
    "Packer",
    "ProgressBar",
    "ProgressFn",
    "RandomAccessFile",
    "ReadOptions",
    "Remote",
    "RemoteFiles",
    "RemoteShard",
    "ResumeKey",
    "ShardExtents",
    "ShardFormat",
    "ShardIndex",
    "ShardStore",
    "ShardedWriter",
    "SourceFile",
    "Store",
    "StoreFiles",
    "WavHeader",
    "WritableFiles",
    "add_digest",
    "audit_files",
    "bounded_executor",
    "build",
    "check_axis_lengths",
    "check_size",
    "check_unique_ids",
    "checksum_algorithm",
    "compute_checksums",
    "compute_sha256",
    "default_axis",
    "digest_ends",
    "dump_index",
    "dump_list",
    "extents_of",
    "field_width",
    "find_index",
    "find_key",
    "find_shards",
    "find_staging_dirs",
    "format_location",
    "has_digest",
    "hash_texts",
    "hookimpl",
    "index_files",
    "infer_fields",
    "is_nist",
    "is_part_list",
    "is_remote",
    "is_wav",
    "kind_of",
    "load_index",
    "load_list",
    "local_path",
    "make_ids",
    "make_packer",
    "make_remote_files",
    "make_unknown_name_error",
    "normalize_sequences",
    "open_files",
    "open_once",
    "open_sharded_writer",
    "open_shuffled",
    "pack_sequence",
    "progress_bar",
    "quote",
    "read_index",
    "read_with_digest",
    "redact_url",
    "refuse_remote",
    "refuse_size",
    "resolve_remote",
    "sync_file",
    "upload_store",
    "widen_24_bit",
    "write_atomically",
    "write_synced",
]  # fmt: skip
