"""Loading of the indexes of files, and checks against the files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from seqdata.errors import (
    ConfigError,
    CorruptShardError,
    DataError,
    DecodeError,
    FingerprintMismatch,
    IncompleteDatasetError,
    MissingShardError,
)
from seqdata.storage.data_location import DataLocation, quote
from seqdata.storage.hashing import check_unique_ids, hash_texts
from seqdata.storage.indexed.build_index import map_usable
from seqdata.storage.indexed.file_fields import make_ids
from seqdata.storage.indexed.file_format import ABSENT, has_facts
from seqdata.storage.indexed.index_folder import LIST_FILE, DataIndex
from seqdata.storage.indexed.indexed_format import ComparesHeaders, IndexedFormat
from seqdata.storage.indexed.shard_index import (
    ListedShard,
    NumberedIds,
    ShardIndex,
    add_ids,
    join_ids,
)
from seqdata.storage.indexed.shards import LocalShard, Shard, map_shards
from seqdata.storage.text_bytes import TextSource

_ONE_BY_ONE = 256  # number of files up to which ids are hashed file by file
_AT_A_TIME = 1024  # indexes that are read between checks for missing files
_REMEDIES = {
    "unique": (
        "where they are unique only within each file, let them begin with its name: "
        "`open_webdataset(location, keys='by_shard')`, or `FormatBackend(format)(location, "
        "keys='by_shard')`"
    ),
    "by_shard": "rename files of one name",
}


def load_indexes(
    location: str,
    shards: Sequence[Shard],
    index: DataIndex,
    file_format: IndexedFormat,
    known: Sequence[ShardIndex | None] | None = None,
) -> list[ShardIndex]:
    """Return the indexes of files, which all must have one.

    Args:
        location: The location of the files, for errors.
        shards: The files.
        index: The index of the dataset.
        file_format: The format of the files.
        known: Indexes that were read already.

    Raises:
        ConfigError: If a file has none.
        MissingShardError: If a file, or the index of a listed file, is missing.
        IncompleteDatasetError: If the list of the files is missing.
        FingerprintMismatch: If an index is of another file.
        CorruptShardError: If an index is damaged, or has other checksums than the first.
        DataError: If files hold no sequences.
    """
    indexes: list[ShardIndex | None] = []

    def index_of(i: int) -> ShardIndex | None:
        found = None if known is None else known[i]
        return index.get(shards[i]) if found is None else found

    for first in range(0, len(shards), _AT_A_TIME):
        indexes += map_shards(shards, index_of, range(len(shards))[first : first + _AT_A_TIME])
        _check_exist(location, shards, indexes, first)
    for i, (shard, its_index) in enumerate(zip(shards, indexes, strict=True)):
        shard_location = DataLocation(dataset=location, shard=i, file=shard.name)
        check_listed(shard_location, index.listed(shard), its_index)
    unindexed = [shard for shard, found in zip(shards, indexes, strict=True) if found is None]
    if unindexed:
        raise ConfigError(
            f"{location}: all files must have an index, but {len(unindexed)} of {len(shards)} have "
            f"none ({unindexed[0].name}). Build it once with `seqdata index '{location}'`, or open "
            "with index='build'"
        )
    found = [its_index for its_index in indexes if its_index is not None]
    if not any(map(len, found)):
        only = shards[0].name if len(shards) == 1 else None
        raise DataLocation(dataset=location, file=only).make_error(
            DataError,
            f"must hold at least one {file_format.item}, but holds none. Check the location, or "
            "write it again",
        )
    _check_algorithms(location, found)
    return found


def _check_algorithms(location: str, found: Sequence[ShardIndex]) -> None:
    """Raise if an index has another kind of checksums than the first."""
    for i, each in enumerate(found):
        if (each.algorithm, each.block) != (found[0].algorithm, found[0].block):
            raise DataLocation(dataset=location, shard=i, file=each.shard).make_error(
                CorruptShardError,
                f"must have an index with {found[0].algorithm} of blocks of {found[0].block} bytes "
                f"like the first file, but has {each.algorithm} of {each.block}. Rebuild it with "
                "`seqdata index --rebuild`",
            )


def load_known_indexes(
    location: str, shards: Sequence[Shard], index: DataIndex, file_format: IndexedFormat
) -> list[ShardIndex | None] | None:
    """Return the usable indexes, None for each other file; None if a file is remote.

    Also None for a format without an identity, whose indexes are not compared with the files.

    There is a warning of those that are damaged. Files that were written to later are compared.

    Args:
        location: The location of the files, for the warning.
        shards: The files.
        index: The index of the dataset.
        file_format: The format of the files.

    Raises:
        FingerprintMismatch: If a sibling that one was built with no longer exists, or headers of a
            file were changed in place.
        DataError: If a sibling cannot be read.
    """
    if not file_format.identity or not all(shard.is_local for shard in shards):
        return None

    found = map_usable(location, shards, lambda i: index.get(shards[i]))
    known = [
        None if each is None or find_changed_sibling(shard, each) is not None else each
        for shard, each in zip(shards, found, strict=True)
    ]
    if isinstance(file_format, ComparesHeaders) and file_format.reads_only_headers:
        _compare_modified(location, shards, known, index, file_format)
    return known


def _compare_modified(
    location: str,
    shards: Sequence[Shard],
    known: list[ShardIndex | None],
    index: DataIndex,
    file_format: ComparesHeaders,
) -> None:
    """Compare the files of another time than their indexes with these, and record their times.

    A file that was only copied or touched is the same; values have checksums of their own.

    Raises:
        FingerprintMismatch: If the headers of one were changed in place.
    """
    same: list[tuple[Shard, ShardIndex]] = []
    for i, (shard, its_index) in enumerate(zip(shards, known, strict=True)):
        if its_index is None or not isinstance(shard, LocalShard):
            continue
        modified = shard.modified()
        if modified == its_index.modified or shard.size() != its_index.bytes:
            continue  # another size, or that it is not there, is an error when it is opened
        place = DataLocation(dataset=location, shard=i, file=shard.name)
        content = shard.content(place)
        if not file_format.has_same_headers(content, its_index, place, shard.read_sibling):
            raise place.make_error(
                FingerprintMismatch,
                "must have the ids, attributes and arrays that were indexed, but was changed in "
                "place. Restore it, or rebuild its index with `seqdata index --rebuild`",
            )
        renewed = known[i] = replace(its_index, modified=modified)
        same.append((shard, renewed))
    if same:
        with suppress(ConfigError):  # the index cannot be written: files are compared again
            index.save(same)


def find_changed_sibling(shard: Shard, index: ShardIndex) -> str | None:
    """Return the first sibling of a file that its index was not built with; None: all are as then.

    Args:
        shard: The file.
        index: Its index.

    Raises:
        FingerprintMismatch: If one of them no longer exists.
        DataError: If one of them cannot be read.
    """
    for name, details in index.siblings.items():
        location = DataLocation(dataset=shard.folder, file=name)
        try:
            content = shard.read_sibling(name, location)
        except MissingShardError as error:
            if details[1] == ABSENT:
                continue
            raise location.make_error(
                FingerprintMismatch,
                f"existed when {shard.name!r} was indexed, but is missing. Restore it, or, if "
                f"{shard.name!r} is read without it, run `seqdata index --rebuild`",
            ) from error
        if not has_facts(content, details):
            return name
    return None


def _check_exist(
    location: str, shards: Sequence[Shard], indexes: Sequence[ShardIndex | None], first: int
) -> None:
    """Raise if a file without an index does not exist: building an index would not help.

    Args:
        location: The location of the files, for errors.
        shards: All of them.
        indexes: The indexes so far.
        first: The first file that was not checked yet.

    Raises:
        MissingShardError: If one is missing.
    """
    unindexed = [i for i in range(first, len(indexes)) if indexes[i] is None]
    if not unindexed:
        return
    local = all(shard.is_local for shard in shards)
    for i in unindexed if local else unindexed[:1]:
        shard_location = DataLocation(dataset=location, shard=i, file=shards[i].name)
        if local:
            shards[i].content(shard_location)
        else:
            shards[i].check_exists(shard_location)


def check_listed(
    location: DataLocation, listed: ListedShard | None, index: ShardIndex | None
) -> None:
    """Compare an index with the list of its writer.

    Args:
        location: Location of the file, for errors.
        listed: Its entry in the list; None: there is no list.
        index: Its index; None: there is none.

    Raises:
        MissingShardError: If the index of a listed file is missing.
        IncompleteDatasetError: If the list is missing.
        FingerprintMismatch: If the index is of another file than the listed one.
    """
    if listed is None and not (index is not None and index.declared):
        return
    location = replace(location, file_kind=f"index of shard {location.shard}")
    if listed is None:
        raise location.make_error(
            IncompleteDatasetError,
            f"is from a writer that records all of its shards in {LIST_FILE}, but "
            "that list is missing: the write was not completed, or not everything was copied. "
            "Copy the list, or rebuild the index with `seqdata index --rebuild`",
        )
    if index is None:
        raise location.make_error(
            MissingShardError,
            "is not there. Rebuild it with `seqdata verify --repair-index`, or restore it",
        )
    if index.sha256 != listed.sha256:
        raise location.make_error(
            FingerprintMismatch,
            f"must be of the shard with sha256 {listed.sha256[:16]} that was written, but "
            f"is of {index.sha256[:16]}. Restore the index and its shard; or, if the shard was "
            f"replaced, remove {LIST_FILE} and rebuild the indexes with `seqdata index --rebuild`",
            expected=listed.sha256, found=index.sha256,
        )  # fmt: skip


def make_unique_ids(
    location: str, names: Sequence[str], indexes: Sequence[ShardIndex], keys: str
) -> TextSource:
    """Return the ids of all sequences.

    Raises:
        DecodeError: If an id occurs twice; the message names both sequences and their files.
    """
    if keys == "by_shard":
        indexes = [_add_prefix(index, name) for index, name in zip(indexes, names, strict=True)]
    ids = make_ids(location, indexes, names)
    if isinstance(ids, NumberedIds):
        return ids
    if len(indexes) > _ONE_BY_ONE:
        hashes = hash_texts(*join_ids(indexes))
    else:
        each = [add_ids(index) for index in indexes if len(index)]
        hashes = np.concatenate([hash_texts(index.keys, index.key_ends) for index in each])
    ends = np.cumsum([len(index) for index in indexes])

    def describe(number: int) -> str:
        name = names[int(np.searchsorted(ends, number, side="right"))]
        return f"sequence {number} ({quote(name)})"

    try:
        check_unique_ids(
            hashes,
            lambda number: str(ids.take([number])[0]),
            remedy=_REMEDIES[keys],
            describe=describe,
        )
    except DecodeError as error:
        raise DecodeError.at(f"{location}: {error}", **error.details) from error
    return ids


def _add_prefix(index: ShardIndex, name: str) -> ShardIndex:
    if index.is_numbered:
        return index
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
