"""From a location to a store: files and their indexes are found, compared, and mapped.

Place in the flow: backends of files with an index. Reads: index files, size and both ends of each
file. Makes: a store.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be
from seqdata.storage.data_location import DataLocation
from seqdata.storage.digest_trailer import read_with_digest
from seqdata.storage.fields import ShardExtents
from seqdata.storage.find_files import warn_left_out
from seqdata.storage.indexed.build_index import build
from seqdata.storage.indexed.catalogs import attach_catalogs, has_many_files
from seqdata.storage.indexed.decoded_values import DecodedValues
from seqdata.storage.indexed.field_axes import OpenedFiles
from seqdata.storage.indexed.file_fields import FileFields, make_file_fields, shard_offsets_of
from seqdata.storage.indexed.file_shards import FileShards, release_nothing
from seqdata.storage.indexed.find_files import (
    Location,
    find_shards,
    format_location,
    search_shards,
)
from seqdata.storage.indexed.indexed_format import IndexedField, IndexedFormat
from seqdata.storage.indexed.load_indexes import load_indexes, load_known_indexes, make_unique_ids
from seqdata.storage.indexed.shard_index import FormatIdentity, ShardIndex, digest_extents
from seqdata.storage.indexed.shards import LocalShard, Shard, save_sealed
from seqdata.storage.indexed.small_files import SmallFiles
from seqdata.storage.integrity.checksums import ChecksumSpec
from seqdata.storage.integrity.verify import check_verify_mode, resolve_verify_mode
from seqdata.storage.local_files import check_fingerprint
from seqdata.storage.remote.file_cache import CacheFullError
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.shards_on_demand import ShardsOnDemand
from seqdata.storage.shared_memory import SharedBits
from seqdata.storage.store import ShardReader, ShardStore, StoreFacts, StoreFields
from seqdata.storage.writing.progress import progress_bar

INDEX_MODES = (None, "build")
KEY_MODES = ("unique", "by_shard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a store is opened; all of it is pickled with it.

    Attributes:
        location: Where the files lie, with what may be secret.
        file_format: Of the files.
        verify: When checksums are compared; None: at the first read.
        keys: ``unique``, or ``by_shard``: an id is unique in its file only.
        remote: How URLs are read.
    """

    location: str = field(repr=False)
    file_format: IndexedFormat
    verify: str | None = None
    keys: str = "unique"
    remote: Remote | None = None


def open_files(
    location: Location,
    file_format: IndexedFormat,
    *,
    verify: str | None = None,
    index: str | None = None,
    keys: str = "unique",
    remote: str | Remote | None = None,
    progress: bool | None = None,
) -> ShardStore:
    """Open files of a format; see ``FormatBackend.__call__``.

    Raises:
        ConfigError: If the location means nothing, there is no index, or an argument is invalid.
        MissingShardError: If a file is not there.
        CorruptShardError: If a file is damaged or not as long as its index says.
        FingerprintMismatch: If a file is not the one that was indexed, or an index is not of
            the file that was written.
        IncompleteDatasetError: If writing was never finished.
        DataError: If files are not of the format.
    """
    text, remote = format_location(location, file_format), resolve_remote(remote)
    check_arguments(redact_url(text), verify, index, keys)
    found, places = search_shards(text, file_format, remote, probe=True)
    shards = attach_catalogs(found, file_format)
    known: list[ShardIndex | None] | None = None
    if index == "build" or not file_format.needs_command:
        known = load_known_indexes(redact_url(text), shards, file_format)
        have = None if known is None else [index is not None for index in known]
        if build(redact_url(text), shards, file_format, progress=progress, have=have):
            shards = attach_catalogs(shards, file_format)
    options = Options(
        location=text, file_format=file_format, verify=verify, keys=keys, remote=remote
    )
    store = open_shards(options, None, shards, progress, known)
    warn_left_out(places, (name for index in store.manifest for name in index.siblings))
    return store


def check_arguments(where: str, verify: str | None, index: str | None, keys: str) -> None:
    """Raise if an argument is invalid.

    Raises:
        ConfigError: If one is.
    """
    check_verify_mode(verify, where)
    if index not in INDEX_MODES:
        raise ConfigError(
            must_be(f"{where}: `index`", "'build' or None", repr(index), "Leave it out")
        )
    if keys not in KEY_MODES:
        needed = f"one of {', '.join(KEY_MODES)}"
        raise ConfigError(must_be(f"{where}: `keys`", needed, repr(keys), "Leave it out"))


def _reopen(options: Options, bits: SharedBits | None, fingerprint: str) -> ShardStore:
    file_format = options.file_format
    shards = attach_catalogs(
        find_shards(options.location, file_format, options.remote), file_format
    )
    store = open_shards(options, bits, shards, False)
    check_fingerprint(store.place(-1), store.fingerprint, fingerprint)
    return store


def open_shards(
    options: Options,
    bits: SharedBits | None,
    shards: Sequence[Shard],
    progress: bool | None,
    known: Sequence[ShardIndex | None] | None = None,
) -> ShardStore:
    """Open files that were found; raises as ``open_files`` does.

    Args:
        options: How.
        bits: Those of the process that sent the store here.
        shards: The files.
        progress: Whether to show bars.
        known: Indexes that were read already.
    """
    location, file_format = redact_url(options.location), options.file_format
    indexes = load_indexes(location, shards, file_format, known)
    names = [shard.name for shard in shards]
    remote = options.remote or Remote()
    files = FileShards.of(location, shards, indexes, file_format, remote)

    def hold_some(shard: int, extents: ShardExtents) -> NDArray[np.uint8]:
        if files.file(shard) is None:
            return files.content(shard)
        if remote.how == "cache":
            with suppress(CacheFullError):
                return files.content(shard, release_nothing)
        return files.read_extents(shard, extents)

    def repair_copy(shard: int, content: NDArray[np.uint8]) -> bool:
        return shards[shard].repair_copy(content, indexes[shard], files.locate(shard))

    local, many = all(shard.is_local for shard in shards), has_many_files(shards, file_format)
    content = tuple(map(files.content, range(len(shards)))) if local and not many else None
    spec = ChecksumSpec(algorithm=indexes[0].algorithm, bytes_per_checksum=indexes[0].block)
    opened = OpenedFiles(
        location=location, names=names, indexes=indexes, hold=hold_some, content=content,
        verify=resolve_verify_mode(options.verify, spec, location),
        ids=make_unique_ids(location, names, indexes, options.keys),
        starts=shard_offsets_of(indexes), file_of=files.locate, repair_copy=repair_copy,
    )  # fmt: skip
    indexed_fields = file_format.fields(opened)
    digest = _digest(indexes, indexed_fields)

    survey = partial(_count, shards[0], digest, progress)
    fields = make_file_fields(opened, indexed_fields, bits, survey, digest)
    reader: ShardReader = StoreFields(fields.layout, fields.sources, fields.ids)
    if many:
        reader = SmallFiles(fields, shards, indexed_fields)
    elif not local:
        reader = ShardsOnDemand(replace(files, file_fields=fields))
    return ShardStore(_describe(location, options, fields), reader)


def _describe(location: str, options: Options, fields: FileFields) -> StoreFacts:
    """Return what a store of files is, besides its data."""
    return StoreFacts(
        label="IndexedStore", location=location, fields=fields.fields, verify=fields.verify,
        bits=fields.bits, manifest=fields.indexes,
        make_fingerprint=lambda: _make_fingerprint(fields, options.keys),
        reopen=lambda store: (_reopen, (options, fields.bits, store.fingerprint)),
    )  # fmt: skip


def _make_fingerprint(fields: FileFields, keys: str) -> str:
    """Return the digest of schema and content, from the indexes."""
    text = repr((sorted(fields.fields.items()), keys))
    digest = hashlib.sha256(text.encode())
    for index in fields.indexes:
        digest.update(f"{index.sha256}\n".encode())
        if index.format_identity:  # the same bytes may be divided in another way
            digest.update(digest_extents(index))
    return digest.hexdigest()[:32]


def _digest(indexes: Sequence[ShardIndex], indexed_fields: Sequence[IndexedField]) -> str:
    facts = [
        (field.name, field.member, field.field, field.access, field.is_named)
        for field in indexed_fields
    ]
    digest = hashlib.sha256(repr(facts).encode())
    for index in indexes:
        digest.update(f"{index.sha256}{index.format_identity}\n".encode())
    return digest.hexdigest()[:32]


def _count(
    shard: Shard,
    digest: str,
    progress: bool | None,
    field: IndexedField,
    source_of: Callable[[int], DecodedValues],
    counts: list[int],
) -> NDArray[np.int64]:
    """Return the timesteps of values that must be decoded for it, counted once and kept."""
    name = hashlib.sha256(f"{digest}\n{field.name}".encode()).hexdigest()[:32]
    places, count = shard.list_side_files(f"lengths-{name}.npy"), sum(counts)
    for content in filter(None, map(read_with_digest, places)):
        with suppress(ValueError, EOFError):
            saved: NDArray[np.int64] = np.load(io.BytesIO(content), allow_pickle=False)
            if (
                saved.shape == (count,)
                and saved.dtype == np.int64
                and int(saved.min(initial=0)) >= 0
            ):
                return saved
    found: list[int] = []
    with progress_bar(progress, f"measuring {field.name}", count) as bar:
        for number, many in enumerate(counts):
            source = source_of(number)
            for at in range(many):
                found.append(source.length(at))
                if bar is not None and at % 256 == 0:
                    bar.update(len(found), 0)
    lengths = np.array(found, dtype=np.int64)
    file = io.BytesIO()
    np.save(file, lengths, allow_pickle=False)
    save_sealed(places, file.getvalue())
    return lengths


def open_once(path: Path, file_format: IndexedFormat) -> ShardStore:
    """Open a local file with an index that is built now and not written.

    Raises:
        DataError: If it is damaged, or not of the format.
    """
    shard = _FileWithoutIndex(path.parent, path.name, file_format=file_format)
    return open_shards(Options(location=str(path), file_format=file_format), None, [shard], False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileWithoutIndex(LocalShard):
    file_format: IndexedFormat

    def has_index(self, dataset: str, number: int, file_format: FormatIdentity) -> bool:
        del dataset, number, file_format
        return True

    def index(self, dataset: str, number: int, file_format: FormatIdentity) -> ShardIndex | None:
        del file_format
        place = DataLocation(dataset=dataset, shard=number, file=self.name)
        content = self.content(place, ahead=True)
        return self.file_format.make_index(content, self.name, place, self.read_sibling)

    def list_side_files(self, name: str) -> list[Path]:
        del name
        return []
