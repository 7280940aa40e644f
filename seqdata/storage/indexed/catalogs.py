"""Catalogs: one file for the indexes of very many files, which is faster to write than one each.

A catalog is an index of the concatenated sequences of many files, with a table of the files.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, DataError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.shard_index import (
    ENDS,
    INVALID_JSON,
    FieldIndex,
    FormatIdentity,
    ShardIndex,
    Siblings,
    check,
    dump_index,
    load_index,
    parse_siblings,
)
from seqdata.storage.indexed.shards import (
    INDEX_SUFFIX,
    LocalShard,
    Shard,
    index_files,
    put_file,
)
from seqdata.storage.local_files import read_small_file

MANY = 1024
"""Number of local files above which their indexes are kept in catalogs."""
_NAME = "catalog2-"
_OLD_NAME = "catalog-"  # of versions without siblings: they are not read, but removed
_DIGITS = 6  # of the number in a name: the greatest is the newest
_REMEDY = (
    "Rebuild it with `seqdata index --rebuild`, or remove it: it is built again when the files are "
    "opened"
)
_TABLE = ("names", "name_ends", "bytes", "counts", "sha256", "ends", "siblings")


@dataclass(frozen=True, slots=True)
class CatalogShard(LocalShard):
    """One of many local files.

    Attributes:
        catalog: Name -> its index, of the files that have one.
    """

    catalog: Mapping[str, ShardIndex] | None = None

    def has_index(self, dataset: str, number: int, file_format: FormatIdentity) -> bool:
        """Return whether there is an index."""
        return self.index(dataset, number, file_format) is not None

    def index(self, dataset: str, number: int, file_format: FormatIdentity) -> ShardIndex | None:
        """Return its index; see ``Shard``."""
        del dataset, number
        found = None if self.catalog is None else self.catalog.get(self.name)
        return (
            found if found is not None and found.format_identity == file_format.identity else None
        )

    def save_index(self, index: ShardIndex) -> str:
        """Write its index; return the folder."""
        return str(write_catalog(self.root, [index]).parent)


def has_many_files(shards: Sequence[Shard], file_format: FormatIdentity) -> bool:
    """Return whether the indexes of files are kept in catalogs."""
    plain = all(type(shard) in (LocalShard, CatalogShard) for shard in shards)
    return len(shards) > MANY and plain and bool(file_format.identity)


def attach_catalogs(shards: Sequence[Shard], file_format: FormatIdentity) -> list[Shard]:
    """Return files with their indexes from catalogs, if there are very many."""
    if not has_many_files(shards, file_format):
        return list(shards)
    catalogs: dict[Path, dict[str, ShardIndex]] = {}
    found: list[Shard] = []
    for shard in shards:
        if isinstance(shard, LocalShard):
            if shard.root not in catalogs:
                catalogs[shard.root] = read_catalogs(shard.root, file_format)
            found.append(CatalogShard(shard.root, shard.name, shard.listed, catalogs[shard.root]))
    return found


def read_catalogs(root: Path, file_format: FormatIdentity) -> dict[str, ShardIndex]:
    """Return the indexes of files below a folder by name, the newest of each.

    Raises:
        CorruptShardError: If a catalog is damaged.
    """
    found: dict[str, ShardIndex] = {}
    for path in _list_paths(root):
        catalog = _read_catalog(root, path, file_format)
        if catalog.table is not None and catalog.format_identity == file_format.identity:
            try:
                found.update((index.shard, index) for index in split_catalog(catalog))
            except INVALID_JSON as error:  # sealed, but not by us
                raise _locate_catalog(root, path).make_error(
                    CorruptShardError, f"must be a valid index, but is invalid ({error}). {_REMEDY}"
                ) from error
    return found


def read_names(root: Path) -> dict[str, str]:
    """Return the files of which catalogs next to the data hold an index -> the catalog's name."""
    found: dict[str, str] = {}
    for path in _list_paths(root):
        if path.parent != index_files(root / "x", root)[0].parent:
            continue  # in the cache: of what was there at this path once
        with suppress(DataError, *INVALID_JSON):  # an error where it is used
            table = _read_catalog(root, path).table or {}
            found.update(dict.fromkeys(_split_names(table), path.name))
    return found


def _split_names(table: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the names of the files of a catalog, by its table."""
    names, edges = table["names"].tobytes(), table["name_ends"].tolist()
    return [names[first:stop].decode() for first, stop in itertools.pairwise(edges)]


def _read_catalog(root: Path, path: Path, file_format: FormatIdentity | None = None) -> ShardIndex:
    place = _locate_catalog(root, path)
    return load_index(read_small_file(path, place), place, file_format, _REMEDY)


def _locate_catalog(root: Path, path: Path) -> DataLocation:
    name = str(path.relative_to(root) if path.is_relative_to(root) else path)
    return DataLocation(dataset=str(root), file=name, file_kind="catalog of indexes")


def write_catalog(root: Path, indexes: Sequence[ShardIndex], *, alone: bool = False) -> Path:
    """Write a catalog of files below a folder.

    Args:
        root: The folder.
        indexes: The indexes of the files.
        alone: Whether existing catalogs are removed.

    Raises:
        OSError: If no folder is writable.
    """
    digest = hashlib.sha256("\n".join(index.shard for index in indexes).encode()).hexdigest()[:16]
    old = _list_paths(root)
    number = int(old[-1].name[len(_NAME) :][:_DIGITS]) + 1 if old else 0
    beside, cached = (
        path.with_name(f"{_NAME}{number:0{_DIGITS}d}-{digest}{INDEX_SUFFIX}")
        for path in index_files(root / "x", root)
    )
    content = dump_index(make_catalog(indexes))
    try:
        path = put_file(beside, content)
    except OSError:  # the folder is not writable, or the disk is full
        path = put_file(cached, content)
    for outdated in [*_list_paths(root, _OLD_NAME), *(old if alone else [])]:
        with suppress(OSError):
            outdated.unlink()
    return path


def _list_paths(root: Path, name: str = _NAME) -> list[Path]:
    """Return the catalogs of a folder, next to it and in the cache, the newest last."""
    folders = [path.parent for path in index_files(root / "x", root)]
    pattern = f"{name}{'[0-9]' * _DIGITS}-*{INDEX_SUFFIX}"
    paths = [path for folder in folders for path in folder.glob(pattern)]
    return sorted(paths, key=lambda path: path.name)


def group_alike(indexes: Sequence[ShardIndex]) -> list[list[ShardIndex]]:
    """Return indexes grouped by their fields: a catalog stores these once for all of its files."""
    groups: dict[str, list[ShardIndex]] = {}
    for index in indexes:
        fields = [
            (name, [dict(head) for head in member.heads], member.numbers is None,
             None if member.values is None else (member.values.dtype.name, member.values.shape[1:]))
            for name, member in index.members.items()
        ]  # fmt: skip
        groups.setdefault(repr(fields), []).append(index)
    return list(groups.values())


def make_catalog(indexes: Sequence[ShardIndex]) -> ShardIndex:
    """Return the catalog of many files of one format with the same fields."""
    first = indexes[0]
    names = [index.shard.encode() for index in indexes]
    table: dict[str, NDArray[Any]] = {
        "names": np.frombuffer(b"".join(names), dtype=np.uint8),
        "name_ends": np.array([0, *itertools.accumulate(map(len, names))], dtype=np.int64),
        "bytes": np.array([index.bytes for index in indexes], dtype=np.int64),
        "counts": np.array([len(index) for index in indexes], dtype=np.int64),
        "sha256": _pack_digests([index.sha256 for index in indexes]),
        "ends": _pack_digests([index.ends for index in indexes]),
        "siblings": _pack_siblings([index.siblings for index in indexes]),
    }
    members = {
        name: join_fields([index.members[name] for index in indexes]) for name in first.members
    }
    keys, key_ends = join_ids(indexes)
    return replace(
        first, shard="", bytes=int(table["bytes"].max()), last=0, keys=keys, key_ends=key_ends,
        members=members, table=table, sha256="", ends="", is_numbered=False, siblings={},
    )  # fmt: skip


def join_ids(
    indexes: Sequence[ShardIndex],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the concatenated ids of many files, and their offsets."""
    indexes = [add_ids(index) for index in indexes]
    sizes = np.concatenate([np.diff(index.key_ends) for index in indexes])
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=ends[1:])
    return np.concatenate([index.keys for index in indexes]), ends


def add_ids(index: ShardIndex) -> ShardIndex:
    """Return an index with the ids of its sequences."""
    if not index.is_numbered:
        return index
    raw = [index.id_of(number).encode() for number in range(len(index))]
    ends = np.array([0, *itertools.accumulate(map(len, raw))], dtype=np.int64)
    keys = np.frombuffer(b"".join(raw), dtype=np.uint8)
    return replace(index, keys=keys, key_ends=ends, is_numbered=False)


def join_fields(parts: Sequence[FieldIndex]) -> FieldIndex:
    """Return the concatenated index of one field of many files."""
    firsts = None
    if any(part.firsts is not None for part in parts):
        counts = np.concatenate(
            [
                np.ones(len(part.begins), np.int64) if part.firsts is None else np.diff(part.firsts)
                for part in parts
            ]
        )
        firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return FieldIndex(
        begins=np.concatenate([part.begins for part in parts]),
        sizes=np.concatenate([part.sizes for part in parts]),
        sums=np.concatenate([part.sums for part in parts]),
        firsts=firsts,
        heads=parts[0].heads,
        numbers=_concat_arrays([part.numbers for part in parts]),
        values=_concat_arrays([part.values for part in parts]),
    )


def _concat_arrays(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present and len(present) == len(parts) else None


def _pack_digests(texts: Sequence[str]) -> NDArray[np.uint8]:
    return np.frombuffer(bytes.fromhex("".join(texts)), dtype=np.uint8)


def _pack_siblings(each: Sequence[Siblings]) -> NDArray[np.uint8]:
    """Return the siblings of each file as JSON, uint8; nothing if no file has any."""
    text = json.dumps([dict(siblings) for siblings in each]) if any(each) else ""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def _unpack_siblings(packed: NDArray[np.uint8], count: int) -> list[Siblings]:
    return list(map(parse_siblings, json.loads(packed.tobytes()))) if len(packed) else [{}] * count


def split_catalog(catalog: ShardIndex) -> Iterator[ShardIndex]:
    """Yield the index of each file of a catalog.

    Raises:
        ValueError, KeyError, TypeError: If its table is invalid; see ``INVALID_JSON``.
    """
    table = catalog.table or {}
    check(set(table) == set(_TABLE), "table")
    count = len(table["bytes"])
    edges = table["name_ends"].tolist()
    starts = [0, *itertools.accumulate(table["counts"].tolist())]
    digests = [table[name].tobytes().hex() for name in ("sha256", "ends")]
    is_rising = sorted(edges) == edges and sorted(starts) == starts and edges[:1] == [0]
    is_complete = len(edges) == count + 1 == len(starts) and edges[-1] == len(table["names"])
    check(is_rising and is_complete and starts[-1] == len(catalog), "table")
    siblings = _unpack_siblings(table["siblings"], count)
    check(all(len(digest) == 64 * count for digest in digests), "table")
    check(len(siblings) == count, "siblings")
    for row, (name, size, first, stop) in enumerate(
        zip(_split_names(table), table["bytes"].tolist(), starts[:-1], starts[1:], strict=True)
    ):
        ends = catalog.key_ends[first : stop + 1]
        yield ShardIndex(
            shard=name, bytes=size,
            sha256=digests[0][64 * row : 64 * row + 64], ends=digests[1][64 * row : 64 * row + 64],
            last=max(0, size - ENDS), algorithm=catalog.algorithm, block=catalog.block,
            keys=catalog.keys[ends[0] : ends[-1]], key_ends=ends - ends[0],
            members={
                field: slice_field(member, first, stop) for field, member in catalog.members.items()
            },
            declared={}, format_identity=catalog.format_identity, siblings=siblings[row],
        )  # fmt: skip


def slice_field(members: FieldIndex, first: int, stop: int) -> FieldIndex:
    """Return the index of a field for a range of sequences."""
    sums, firsts = members.sums[first:stop], None
    if members.firsts is not None:
        firsts = members.firsts[first : stop + 1] - members.firsts[first]
        sums = members.sums[members.firsts[first] : members.firsts[stop]]
        firsts = None if len(sums) == stop - first else firsts
    return FieldIndex(
        members.begins[first:stop], members.sizes[first:stop], sums, firsts, members.heads, None,
        None if members.numbers is None else members.numbers[first:stop],
        None if members.values is None else members.values[first:stop],
    )  # fmt: skip
