"""From a location to a store: files and their indexes are found, compared, and mapped.

Place in the flow: backends of files with an index. Reads: index files, size and both ends of each
file. Makes: a store.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    DecodeError,
    FingerprintMismatch,
    IncompleteDatasetError,
    MissingShardError,
)
from seqdata.storage.arrow.manifest import ChecksumSpec
from seqdata.storage.data_location import DataLocation
from seqdata.storage.digest_trailer import read_with_digest
from seqdata.storage.extents import ShardExtents
from seqdata.storage.hashing import hash_texts
from seqdata.storage.indexed.batches import ShardsOnDemand
from seqdata.storage.indexed.checked import checked
from seqdata.storage.indexed.decoded import DecodedValues
from seqdata.storage.indexed.demand import ShardProvider
from seqdata.storage.indexed.fields import ids_of, starts_of, store_fields
from seqdata.storage.indexed.finding import Location, find_shards, text_of
from seqdata.storage.indexed.indexing import build, of_each
from seqdata.storage.indexed.keeping import FOLDER
from seqdata.storage.indexed.kinds import FileKind, IndexedField
from seqdata.storage.indexed.lengths import OpenedFiles
from seqdata.storage.indexed.listing import LIST
from seqdata.storage.indexed.ranged import RangedShards, RemoteShards
from seqdata.storage.indexed.remote_shards import RemoteShard
from seqdata.storage.indexed.shard_index import ShardIndex
from seqdata.storage.indexed.shards import Shard, keep
from seqdata.storage.indexed.store import IndexedStore, Options
from seqdata.storage.indexed.whole_shards import WholeShards
from seqdata.storage.integrity.verified_bitmap import SharedBits
from seqdata.storage.integrity.verify import check_verify_mode, resolve_verify_mode
from seqdata.storage.local_files import check_fingerprint
from seqdata.storage.remote.file_cache import CacheFullError
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.range_cache import RangeCache
from seqdata.storage.remote.thread_pool import ForkSafeThreadPool
from seqdata.storage.remote.transport import make_remote_files
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.text_source import TextSource
from seqdata.storage.unique_ids import check_unique_ids
from seqdata.storage.writing.progress import progress_bar

INDEX_MODES = (None, "build")
KEY_MODES = ("unique", "by_shard")

_AT_A_TIME = 1024  # indexes that are read before it is looked whether their files are there


def open_files(
    location: Location,
    kind: FileKind,
    *,
    verify: str | None = None,
    index: str | None = None,
    keys: str = "unique",
    remote: str | Remote | None = None,
    progress: bool | None = None,
) -> IndexedStore:
    """Open files of a kind; see ``Format.__call__``.

    Raises:
        ConfigError: If the location means nothing, there is no index, or an argument is invalid.
        MissingShardError: If a file is not there.
        CorruptShardError: If a file is damaged or not as long as its index says.
        FingerprintMismatch: If a file is not the one that was indexed, or an index is not of
            the file that was written.
        IncompleteDatasetError: If writing was never finished.
        DataError: If files are not of the kind.
    """
    text, how = text_of(location, kind), resolve_remote(remote)
    check_arguments(redact_url(text), verify, index, keys)
    shards = find_shards(text, kind, how, there=True)
    if index == "build" or not kind.needs_command:
        build(redact_url(text), shards, kind, progress=progress)
    options = Options(location=text, kind=kind, verify=verify, keys=keys, remote=how)
    return open_shards(options, None, shards, progress)


def check_arguments(where: str, verify: str | None, index: str | None, keys: str) -> None:
    """Refuse arguments that are invalid.

    Raises:
        ConfigError: If one is.
    """
    check_verify_mode(verify, where)
    if index not in INDEX_MODES:
        raise ConfigError(f"{where}: `index` is {index!r}, must be 'build' or None; leave it out")
    if keys not in KEY_MODES:
        raise ConfigError(
            f"{where}: `keys` is {keys!r}, must be one of {', '.join(KEY_MODES)}; leave it out"
        )


def _reopen(options: Options, bits: SharedBits | None, fingerprint: str) -> IndexedStore:
    shards = find_shards(options.location, options.kind, options.remote)
    store = open_shards(options, bits, shards, False)
    check_fingerprint(DataLocation(dataset=store.location), store.fingerprint, fingerprint)
    return store


def open_shards(
    options: Options, bits: SharedBits | None, shards: Sequence[Shard], progress: bool | None
) -> IndexedStore:
    """Open files that were found; raises as ``open_files`` does.

    Args:
        options: How.
        bits: Those of the process that sent the store here.
        shards: The files.
        progress: Whether to show bars.
    """
    location, kind = redact_url(options.location), options.kind
    indexes = _indexes(location, shards, kind)
    names = [shard.name for shard in shards]

    def file_of(shard: int) -> DataLocation:
        return DataLocation(dataset=location, shard=shard, file=names[shard], verify=True)

    def hold(shard: int, release: Callable[[], None] | None = None) -> NDArray[np.uint8]:
        return checked(shards[shard], indexes[shard], file_of(shard), kind, release)

    def hold_some(shard: int, extents: ShardExtents) -> NDArray[np.uint8]:
        if shard not in away.files:
            return hold(shard)
        if remote.how == "cache":
            with suppress(CacheFullError):
                return hold(shard, lambda: None)
        return away.some(shard, extents)

    def mend(shard: int, content: NDArray[np.uint8]) -> bool:
        return shards[shard].mend(content, indexes[shard], file_of(shard))

    local = all(one.here for one in shards)
    content = tuple(hold(shard) for shard in range(len(shards))) if local else None
    remote = options.remote or Remote()
    away = _away(shards, indexes, file_of, options)
    how = ChecksumSpec(algorithm=indexes[0].algorithm, bytes_per_checksum=indexes[0].block)
    opened = OpenedFiles(
        location=location, names=names, indexes=indexes, hold=hold_some, content=content,
        verify=resolve_verify_mode(options.verify, how, location),
        ids=_ids(location, names, indexes, options.keys), starts=starts_of(indexes),
        file_of=file_of, mend=mend,
    )  # fmt: skip
    wanted = kind.fields(opened)
    digest = _digest(indexes, wanted)

    def survey(
        one: IndexedField, source_of: Callable[[int], DecodedValues], counts: list[int]
    ) -> NDArray[np.int64]:
        return _count(shards[0], digest, one, source_of, counts, progress)

    fields = store_fields(opened, wanted, bits, survey, digest)
    if local:
        return IndexedStore(location, options, shards, fields, None, _reopen)
    ways: ShardProvider = RangedShards(fields, away, hold, RangeCache(remote.memory_bytes))
    if remote.how == "cache":
        ways = WholeShards(fields, remote.cache_bytes, hold, ways)
    return IndexedStore(location, options, shards, fields, ShardsOnDemand(fields, ways), _reopen)


def _away(
    shards: Sequence[Shard],
    indexes: Sequence[ShardIndex],
    place_of: Callable[[int], DataLocation],
    options: Options,
) -> RemoteShards:
    """Return the files that are not on this machine."""
    remote = options.remote or Remote()
    urls = {i: one.url for i, one in enumerate(shards) if isinstance(one, RemoteShard)}
    folders = {url: make_remote_files(url, remote) for url in urls.values()}
    files = {number: folders[url] for number, url in urls.items()}
    return RemoteShards(
        files, indexes, options.kind, place_of, ForkSafeThreadPool(remote.connections)
    )


def _indexes(location: str, shards: Sequence[Shard], kind: FileKind) -> list[ShardIndex]:
    indexes: list[ShardIndex | None] = []

    def index_of(i: int) -> ShardIndex | None:
        return shards[i].index(location, i, kind)

    for first in range(0, len(shards), _AT_A_TIME):
        indexes += of_each(shards, index_of, range(len(shards))[first : first + _AT_A_TIME])
        _check_there(location, shards, indexes, first)
    for i, (shard, one) in enumerate(zip(shards, indexes, strict=True)):
        _check_listed(DataLocation(dataset=location, shard=i, file=shard.name), shard, one)
    without = [shard for shard, index in zip(shards, indexes, strict=True) if index is None]
    if without:
        raise ConfigError(
            f"{location}: {len(without)} of {len(shards)} shards have no index "
            f"({without[0].name}), must have one, for samples to be read in place; make it once "
            f"with `seqdata index '{location}'`, or open with index='build'"
        )
    found = [index for index in indexes if index is not None]
    if not any(map(len, found)):
        only = shards[0].name if len(shards) == 1 else None
        raise DataLocation(dataset=location, file=only).make_error(
            DataError,
            f"holds no {kind.item}; check the location, or write it again",
        )
    for i, one in enumerate(found):
        if (one.algorithm, one.block) != (found[0].algorithm, found[0].block):
            raise DataLocation(dataset=location, shard=i, file=one.shard).make_error(
                CorruptShardError,
                f"has an index with {one.algorithm} by {one.block} bytes, must have "
                f"{found[0].algorithm} by {found[0].block} as the first shard; make it anew with "
                "`seqdata index --anew`",
            )
    return found


def _check_there(
    location: str, shards: Sequence[Shard], indexes: Sequence[ShardIndex | None], first: int
) -> None:
    """Compare whether files without an index are there at all: that is another matter.

    Args:
        location: Of all of them, for errors.
        shards: All of them.
        indexes: Those of files so far.
        first: The first one that was not looked at yet.

    Raises:
        MissingShardError: If one is not.
    """
    without = [i for i in range(first, len(indexes)) if indexes[i] is None]
    local = all(one.here for one in shards)
    for i in without if local else without[:1]:
        place = DataLocation(dataset=location, shard=i, file=shards[i].name)
        if local:
            shards[i].content(place)
        else:
            shards[i].look(place)


def _check_listed(place: DataLocation, shard: Shard, index: ShardIndex | None) -> None:
    """Compare an index with the list of its writer's files.

    Raises:
        MissingShardError: If it is not there.
        IncompleteDatasetError: If the list is not there.
        FingerprintMismatch: If it is of another file.
    """
    place = replace(place, file_kind=f"index of shard {place.shard}")
    if shard.listed is None and index is not None and index.told:
        raise place.make_error(
            IncompleteDatasetError,
            f"is of a writer that lists all of its shards ({FOLDER}/{LIST}), and there is no such "
            "list, must be; writing was never finished, or not all was copied: copy it, or make "
            "the index anew with `seqdata index --anew`",
        )
    if shard.listed is not None and index is None:
        raise place.make_error(
            MissingShardError,
            "is not there, must be; make it anew with `--repair-index`, or restore it",
        )
    if shard.listed is not None and index is not None and index.sha256 != shard.listed.sha256:
        raise place.make_error(
            FingerprintMismatch,
            f"is of a shard of sha256 {index.sha256[:16]}, must be of "
            f"{shard.listed.sha256[:16]} as when it was written; restore it and its shard; or, "
            f"if that was replaced, remove {FOLDER}/{LIST} and make indexes anew with `seqdata "
            "index --anew`",
            expected=shard.listed.sha256, found=index.sha256,
        )  # fmt: skip


def _ids(
    location: str, names: Sequence[str], indexes: Sequence[ShardIndex], keys: str
) -> TextSource:
    if keys == "by_shard":
        indexes = [_prefixed(index, name) for index, name in zip(indexes, names, strict=True)]
    ids = ids_of(location, indexes, names)
    hashes = [hash_texts(one.keys, one.key_ends) for one in indexes if len(one)]
    try:
        check_unique_ids(np.concatenate(hashes), lambda number: str(ids.take([number])[0]))
    except DecodeError as error:
        raise DecodeError.at(
            f"{location}: {error}. Where shards number their samples anew, open them with "
            "keys='by_shard'",
            **error.facts,
        ) from error
    return ids


def _prefixed(index: ShardIndex, name: str) -> ShardIndex:
    head = np.frombuffer(f"{name}/".encode(), dtype=np.uint8)
    sizes = np.diff(index.key_ends)
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes + len(head), out=ends[1:])
    keys = np.empty(int(ends[-1]), dtype=np.uint8)
    at = ends[:-1, None] + np.arange(len(head))
    keys[at] = head
    rest = np.ones(len(keys), dtype=bool)
    rest[at] = False
    keys[rest] = index.keys
    return replace(index, keys=keys, key_ends=ends)


def _digest(indexes: Sequence[ShardIndex], wanted: Sequence[IndexedField]) -> str:
    said = [(one.name, one.member, one.field, one.how, one.is_named) for one in wanted]
    digest = hashlib.sha256(repr(said).encode())
    for index in indexes:
        digest.update(f"{index.sha256}{index.kind}\n".encode())
    return digest.hexdigest()[:32]


def _count(
    shard: Shard,
    digest: str,
    one: IndexedField,
    source_of: Callable[[int], DecodedValues],
    counts: list[int],
    progress: bool | None,
) -> NDArray[np.int64]:
    """Return the timesteps of values that must be decoded for it, counted once and kept."""
    name = hashlib.sha256(f"{digest}\n{one.name}".encode()).hexdigest()[:32]
    places, count = shard.kept(f"lengths-{name}.npy"), sum(counts)
    for content in filter(None, map(read_with_digest, places)):
        with suppress(ValueError, EOFError):
            kept: NDArray[np.int64] = np.load(io.BytesIO(content), allow_pickle=False)
            if kept.shape == (count,) and kept.dtype == np.int64 and int(kept.min(initial=0)) >= 0:
                return kept
    found: list[int] = []
    with progress_bar(progress, f"measuring {one.name}", count) as bar:
        for number, many in enumerate(counts):
            source = source_of(number)
            for at in range(many):
                found.append(source.length(at))
                if bar is not None and at % 256 == 0:
                    bar.update(len(found), 0)
    lengths = np.array(found, dtype=np.int64)
    file = io.BytesIO()
    np.save(file, lengths, allow_pickle=False)
    keep(places, file.getvalue())
    return lengths
