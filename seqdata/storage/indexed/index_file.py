"""Index files: the indexes of many files in one; and the list of all files of a writer.

An index file is a line of JSON, followed by arrays, with a digest. Files whose fields are described
alike form a group: their sequences are concatenated, with a table of the files. It is untrusted:
extents are checked against the sizes of files when it is loaded, and again by the kernel. Place in
the flow: ``index_folder`` reads and writes these bytes. Reads: bytes. Makes: indexes, bytes.

Earlier releases wrote an index file for each file; those next to a list are read here, too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, UnsafeContentError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.shard_index import (
    DeclaredFields,
    FieldIndex,
    FormatIdentity,
    ListedShard,
    MissingValues,
    ShardIndex,
    Siblings,
    check,
    join_fields,
    join_key_sizes,
    slice_field,
)
from seqdata.storage.packing import NUMBER_DTYPES

REMEDY = "Rebuild it with `seqdata index --rebuild` or `seqdata verify --repair-index`"
"""Advice in messages about a damaged index."""
PIECE_BYTES = 16 << 20
"""Bytes of arrays at which indexes continue in another file."""
_VERSION = 2
_MAGIC = b"seqdata index\n"
_DIGEST = 64  # hex digits
_ALIGNED = 8
SHARD_LIST = "shards.json"
"""Name of the list of all files of a writer, next to their index."""
_DTYPES = ("|u1", "<u2", "<u4", "<i8")
_ARRAYS = ("begins", "sizes", "sums", "firsts", "codes", "numbers")
_TABLE = ("names", "name_ends", "bytes", "last", "counts", "sha256", "ends")
_MODIFIED = "modified"  # a column that is there only if a time was recorded
_INVALID_JSON = (
    ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""Errors of parsing untrusted JSON; infinite numbers and deep nesting are among its causes."""
_LEADS_ELSEWHERE = re.compile(r"(^|/)\.{0,2}(/|$)|^[A-Za-z]:|[\\\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, eq=False)
class IndexGroup:
    """The indexes of files whose fields are described alike.

    Attributes:
        joined: The index of their concatenated sequences; it has no name.
        names: Names of the files.
        starts: File -> its first sequence, with the total at the end.
        bytes: File -> its size.
        last: File -> offset of the last bytes that are compared.
        sha256: File -> its digest.
        ends: File -> digest of both ends.
        modified: File -> its time; empty: none is recorded.
        siblings: File -> its siblings; empty: no file has any.
        missing: File -> the values that some of its sequences lack; empty: no file has any.
    """

    joined: ShardIndex
    names: Sequence[str]
    starts: Sequence[int]
    bytes: Sequence[int]
    last: Sequence[int]
    sha256: Sequence[str]
    ends: Sequence[str]
    modified: Sequence[int]
    siblings: Sequence[Siblings]
    missing: Sequence[MissingValues]

    def take(self, row: int) -> ShardIndex:
        """Return the index of one file."""
        joined, first, stop = self.joined, self.starts[row], self.starts[row + 1]
        ends = joined.key_ends[first : stop + 1]
        return ShardIndex(
            shard=self.names[row], bytes=self.bytes[row], sha256=self.sha256[row],
            ends=self.ends[row], last=self.last[row],
            algorithm=joined.algorithm, block=joined.block,
            keys=joined.keys[ends[0] : ends[-1]], key_ends=ends - ends[0],
            members={
                name: slice_field(member, first, stop) for name, member in joined.members.items()
            },
            declared=joined.declared, format_identity=joined.format_identity,
            is_numbered=joined.is_numbered, siblings=self.siblings[row] if self.siblings else {},
            missing=self.missing[row] if self.missing else {},
            modified=self.modified[row] if self.modified else 0,
        )  # fmt: skip


def dump_index_files(indexes: Iterable[ShardIndex]) -> Iterator[bytes]:
    """Yield the contents of index files; no two of the indexes are of the same file and format."""
    piece: list[ShardIndex] = []
    size = 0
    for index in indexes:
        added = _count_bytes(index)
        if piece and size + added > PIECE_BYTES:
            yield _dump(piece)
            piece, size = [], 0
        piece.append(index)
        size += added
    yield _dump(piece)


def _count_bytes(index: ShardIndex) -> int:
    arrays: list[NDArray[Any] | None] = [index.keys, index.key_ends]
    for member in index.members.values():
        arrays += (member.begins, member.sizes, member.sums, member.firsts, member.codes)
        arrays += (member.numbers, member.values)
    return sum([array.nbytes for array in arrays if array is not None])


def _dump(indexes: Sequence[ShardIndex]) -> bytes:
    arrays: list[NDArray[Any]] = []

    def put(array: NDArray[Any] | None) -> int | None:
        if array is None:
            return None
        arrays.append(array)
        return len(arrays) - 1

    ordered = sorted(indexes, key=lambda index: index.shard)
    header: dict[str, Any] = {"version": _VERSION}
    header["groups"] = [_dump_group(group, put) for group in _group_alike(ordered)]
    header["arrays"] = [[array.dtype.str, len(array)] for array in arrays]
    text = json.dumps(header).encode()
    body = bytearray(
        text + b" " * (-(len(_MAGIC) + _DIGEST + 1 + len(text) + 1) % _ALIGNED) + b"\n"
    )
    for array in arrays:
        body += array.tobytes() + bytes(-array.nbytes % _ALIGNED)
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + bytes(body)


def _group_alike(indexes: Sequence[ShardIndex]) -> list[list[ShardIndex]]:
    """Return indexes grouped by all that is stored once for the files of a group."""
    groups: dict[str, list[ShardIndex]] = {}
    shown: dict[int, tuple[object, str]] = {}  # by identity: many files share what describes them

    def show(described: object) -> str:
        if id(described) not in shown:
            shown[id(described)] = described, repr(described)
        return shown[id(described)][1]

    for index in indexes:
        common = (index.format_identity, index.algorithm, index.block, index.is_numbered)
        fields = [
            (name, show(member.heads), member.codes is None, member.numbers is None,
             None if member.values is None else (member.values.dtype.str, member.values.shape[1:]))
            for name, member in index.members.items()
        ]  # fmt: skip
        groups.setdefault(repr((common, show(index.declared), fields)), []).append(index)
    return list(groups.values())


def _dump_group(indexes: Sequence[ShardIndex], put: Any) -> dict[str, Any]:
    first = indexes[0]
    names = [index.shard.encode() for index in indexes]
    key_sizes = join_key_sizes(indexes)
    columns = {
        "names": np.frombuffer(b"".join(names), np.uint8),
        "name_ends": np.array([0, *itertools.accumulate(map(len, names))], np.int64),
        "bytes": np.array([index.bytes for index in indexes], np.int64),
        "last": np.array([index.last for index in indexes], np.int64),
        "counts": np.array([len(index) for index in indexes], np.int64),
        "sha256": _pack_digests([index.sha256 for index in indexes]),
        "ends": _pack_digests([index.ends for index in indexes]),
    }
    if any(index.modified for index in indexes):
        columns[_MODIFIED] = np.array([index.modified for index in indexes], np.int64)
    is_numbered = first.is_numbered
    missing = [dict(index.missing) for index in indexes]
    return {
        "format": first.format_identity, "algorithm": first.algorithm, "block": first.block,
        "declared": {name: list(declared) for name, declared in first.declared.items()},
        "table": {name: put(column) for name, column in columns.items()},
        "siblings": [dict(index.siblings) for index in indexes]
        if any(index.siblings for index in indexes)
        else [],
        "numbered": len(key_sizes) if is_numbered else None,
        "keys": None if is_numbered else put(np.concatenate([index.keys for index in indexes])),
        "key_ends": None
        if is_numbered
        else put(np.concatenate([[0], np.cumsum(key_sizes)]).astype(np.int64)),
        "members": {
            name: _dump_field(join_fields([index.members[name] for index in indexes]), put)
            for name in first.members
        },
        **({"missing": missing} if any(missing) else {}),
    }  # fmt: skip


def _pack_digests(texts: Sequence[str]) -> NDArray[np.uint8]:
    return np.frombuffer(bytes.fromhex("".join(texts)), dtype=np.uint8)


def _dump_field(member: FieldIndex, put: Any) -> dict[str, Any]:
    found = {name: put(getattr(member, name)) for name in _ARRAYS}
    found["heads"] = [dict(head) for head in member.heads]
    if member.values is not None:
        raw = np.ascontiguousarray(member.values)
        shape = list(raw.shape[1:])
        found["values"] = [put(raw.reshape(-1).view(np.uint8)), raw.dtype.name, shape]
    return found


def load_index_file(
    content: bytes, location: DataLocation, file_format: FormatIdentity | None = None
) -> list[IndexGroup]:
    """Read an index file.

    Args:
        content: Its content.
        location: Its location, for errors.
        file_format: The format that checks its fields; None if they are not checked.

    Raises:
        CorruptShardError: If it is damaged or invalid.
    """
    try:
        header, arrays = _open(content, _VERSION)
        groups = [_parse_group(info, arrays) for info in header["groups"]]
        for group in groups:
            _check_by_format(group.joined, file_format)
    except _INVALID_JSON as error:
        raise _make_invalid_error(location, error) from error
    return groups


class _DamagedError(ValueError):
    """The content of a file is damaged, or of another version."""


def _open(content: bytes, version: int) -> tuple[Any, list[NDArray[Any]]]:
    """Return the JSON and the arrays of an index file."""
    begin = len(_MAGIC) + _DIGEST + 1
    body = memoryview(content)[begin:]
    if content[:begin] != _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise _DamagedError("is damaged")
    text = content[begin : content.index(b"\n", begin)]
    header = json.loads(text)
    if header["version"] != version:
        raise _DamagedError(f"is of version {header['version']!r}, not {version}")
    return header, list(_iterate_arrays(header["arrays"], body, len(text) + 1))


def _check_by_format(index: ShardIndex, file_format: FormatIdentity | None) -> None:
    if file_format is not None and index.format_identity == file_format.identity:
        file_format.check(index)


def _make_invalid_error(location: DataLocation, error: Exception) -> CorruptShardError:
    problem = f"is invalid ({type(error).__name__}: {error})"
    problem = str(error) if isinstance(error, _DamagedError) else problem
    return location.make_error(CorruptShardError, f"must be a valid index, but {problem}. {REMEDY}")


def _iterate_arrays(described: Any, body: memoryview, at: int) -> Iterator[NDArray[Any]]:
    for descr, count in described:
        if descr not in _DTYPES or type(count) is not int or count < 0:
            raise ValueError(f"an array of {count} {descr}")
        dtype = np.dtype(descr)
        yield np.frombuffer(body, dtype, count, at) if count else np.empty(0, dtype)
        at += dtype.itemsize * count + -(dtype.itemsize * count) % _ALIGNED


def _parse_group(info: Any, arrays: list[NDArray[Any]]) -> IndexGroup:
    dtypes = {"names": "|u1", "sha256": "|u1", "ends": "|u1"}
    table = {
        name: _parse_array(arrays, info["table"][name], dtypes.get(name, "<i8"))
        for name in (*_TABLE, *({_MODIFIED} & info["table"].keys()))
    }
    sizes, last, counts = table["bytes"], table["last"], table["counts"]
    check(len(sizes) == len(last) == len(counts) and bool((counts >= 0).all()), "table")
    check(bool(((last >= 0) & (last <= sizes)).all()), "last")
    check(len(table.get(_MODIFIED, sizes)) == len(sizes), "table")
    check(
        all(len(table[name]) == _DIGEST // 2 * len(sizes) for name in ("sha256", "ends")), "table"
    )
    edges, names = table["name_ends"].tolist(), table["names"].tobytes()
    is_rising = sorted(edges) == edges and edges[:1] == [0] and edges[-1] == len(names)
    check(is_rising and len(edges) == len(sizes) + 1, "table")
    siblings = [_parse_siblings(each) for each in info["siblings"]]
    check(len(siblings) in (0, len(sizes)), "siblings")
    told = info.get("missing", [])  # earlier releases did not tell
    check(len(told) in (0, len(sizes)), "missing")
    missing = list(map(_parse_missing, told, counts.tolist()))
    starts = [0, *itertools.accumulate(counts.tolist())]
    check(starts[-1] <= max(map(len, arrays)), "table")  # before memory is taken for them
    joined = _parse_index(info, arrays, sizes if len(sizes) == 1 else np.repeat(sizes, counts))
    check(starts[-1] == len(joined), "table")
    return IndexGroup(
        joined, [names[first:stop].decode() for first, stop in itertools.pairwise(edges)], starts,
        sizes.tolist(), last.tolist(), _unpack_digests(table["sha256"]),
        _unpack_digests(table["ends"]), table[_MODIFIED].tolist() if _MODIFIED in table else [],
        siblings, missing,
    )  # fmt: skip


def _unpack_digests(raw: NDArray[np.uint8]) -> list[str]:
    text = raw.tobytes().hex()
    return [text[at : at + _DIGEST] for at in range(0, len(text), _DIGEST)]


def _parse_siblings(info: Any) -> Siblings:
    return {str(name): (int(size), str(ends)) for name, (size, ends) in info.items()}


def _parse_missing(info: Any, sequences: int) -> MissingValues:
    found = {str(name): (many, tuple(some)) for name, (many, some) in info.items()}
    numbers = [number for many, some in found.values() for number in (many, *some)]
    check(all(type(number) is int and 0 <= number < sequences for number in numbers), "missing")
    return found


def _parse_index(info: Any, arrays: list[NDArray[Any]], sizes: NDArray[np.int64]) -> ShardIndex:
    """Return an index of sequences without the entries of each file.

    Args:
        info: Its JSON.
        arrays: All arrays of the file.
        sizes: Bytes of the file of each sequence; or of the only file, int64 (1,).
    """
    numbered = info.get("numbered")
    if numbered is None:
        keys = _parse_array(arrays, info["keys"], "|u1")
        key_ends = _parse_array(arrays, info["key_ends"], "<i8")
    else:
        longest = max(map(len, arrays), default=0)  # of its fields: memory for more is not taken
        check(type(numbered) is int and 0 <= numbered <= longest, "numbers")
        keys, key_ends = np.empty(0, np.uint8), np.zeros(numbered + 1, np.int64)
    count = len(key_ends) - 1
    check(count >= 0 and key_ends[0] == 0 and key_ends[-1] == len(keys), "keys")
    check(bool((np.diff(key_ends) >= 0).all()), "keys")
    check(len(sizes) in (1, count), "table")
    check(type(info["block"]) is int and info["block"] > 0, "sizes")
    check(isinstance(info["algorithm"], str), "algorithm")
    members = {
        name: _parse_field(member, arrays, count, sizes) for name, member in info["members"].items()
    }
    return ShardIndex(
        shard="", bytes=int(sizes.max(initial=0)), sha256="", ends="", last=0,
        algorithm=info["algorithm"], block=info["block"], keys=keys, key_ends=key_ends,
        members=members, declared=_parse_declared(info["declared"]),
        format_identity=str(info["format"]), is_numbered=numbered is not None,
    )  # fmt: skip


def _parse_declared(info: Any) -> DeclaredFields:
    return {
        name: (str(field), str(dtype), tuple(map(int, shape)), axis)
        for name, (field, dtype, shape, axis) in info.items()
    }


def _parse_field(
    info: Any, arrays: list[NDArray[Any]], count: int, file_sizes: NDArray[np.int64]
) -> FieldIndex:
    begins, sizes = (_parse_array(arrays, info[name], "<i8") for name in ("begins", "sizes"))
    sums, heads = _parse_array(arrays, info["sums"], "<u4"), tuple(map(dict, info["heads"]))
    firsts, codes, numbers = (
        None if info[name] is None else _parse_array(arrays, info[name], dtype)
        for name, dtype in (("firsts", "<i8"), ("codes", "<u2"), ("numbers", "<i8"))
    )
    check(len(begins) == len(sizes) == count, "places")
    check(begins.min(initial=0) >= -1 and sizes.min(initial=0) >= 0, "places")
    check(bool((sizes <= file_sizes - begins).all()), "places")  # which do not overflow now
    check(numbers is None or len(numbers) == count, "numbers")
    if codes is not None:
        check(len(codes) == count and int(codes.max(initial=0)) < max(1, len(heads)), "heads")
    if firsts is None:
        check(len(sums) == count, "checksums")
    else:
        check(len(firsts) == count + 1 and firsts[0] == 0 and firsts[-1] == len(sums), "checksums")
        check(bool((np.diff(firsts) >= 0).all()), "checksums")
    values = _parse_values(info.get("values"), arrays, count)
    return FieldIndex(begins, sizes, sums, firsts, heads, codes, numbers, values)


def _parse_values(info: Any, arrays: list[NDArray[Any]], count: int) -> NDArray[Any] | None:
    if info is None:
        return None
    number, dtype, shape = info
    check(
        dtype in NUMBER_DTYPES and all(type(size) is int and size > 0 for size in shape), "values"
    )
    values: NDArray[Any] = _parse_array(arrays, number, "|u1").view(dtype).reshape(count, *shape)
    return values


def _parse_array(arrays: list[NDArray[Any]], number: Any, dtype: str) -> NDArray[Any]:
    check(type(number) is int and number >= 0 and arrays[number].dtype.str == dtype, "arrays")
    found: NDArray[Any] = arrays[number]
    return found


def load_old_index(
    content: bytes, location: DataLocation, file_format: FormatIdentity | None = None
) -> ShardIndex:
    """Read the index of one file, which a writer of an earlier release has written.

    Raises:
        CorruptShardError: If it is damaged or invalid.
    """
    try:
        info, arrays = _open(content, 1)
        check(0 <= info["last"] <= info["bytes"], "last")
        info |= {"format": info.get("kind", ""), "declared": info["told"]}
        joined = _parse_index(info, arrays, np.array([info["bytes"]], np.int64))
        _check_by_format(joined, file_format)
        return replace(
            joined, shard=str(info["shard"]), sha256=str(info["sha256"]), ends=str(info["ends"]),
            last=int(info["last"]),
        )  # fmt: skip
    except _INVALID_JSON as error:
        raise _make_invalid_error(location, error) from error


def dump_list(shards: Sequence[tuple[str, str]], declared: DeclaredFields) -> bytes:
    """Return the content of a list file.

    Args:
        shards: Name and sha256 of each, in order.
        declared: Extension -> (name, dtype, shape, axis) of its field.
    """
    fields = {name: list(info) for name, info in sorted(declared.items())}
    listed = {"version": 1, "fields": fields, "shards": [list(shard) for shard in shards]}
    digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
    return json.dumps({"seal": digest, **listed}, indent=1).encode() + b"\n"


def load_list(content: bytes, dataset: str) -> dict[str, ListedShard]:
    """Parse a list file: name -> shard, in order.

    Args:
        content: Its content.
        dataset: The shards' folder, for errors.

    Raises:
        CorruptShardError: If it is damaged.
        UnsafeContentError: If a name leads out of the folder: indexes are written by that name.
    """
    try:
        listed = json.loads(content)
        declared = _parse_declared(listed["fields"])
        shards = [(str(name), str(sha256)) for name, sha256 in listed["shards"]]
        is_intact = dump_list(shards, declared) == content
        state = f"of version {listed['version']!r}" if listed["version"] != 1 else "damaged"
    except _INVALID_JSON:
        is_intact, state = False, "damaged"
    if not is_intact:
        raise DataLocation(dataset=dataset, file=SHARD_LIST).make_error(
            CorruptShardError,
            f"must be unchanged since it was written, but is {state}. Restore it, or, if shards "
            "were replaced, remove it and rebuild their indexes with `seqdata index --rebuild`",
        )
    for name in (name for name, _ in shards if _LEADS_ELSEWHERE.search(name)):
        raise DataLocation(dataset=dataset, file=SHARD_LIST).make_error(
            UnsafeContentError,
            "must name shards by their paths below the folder, without '..', '\\' or control "
            f"characters, but names {name!r}. The data may be malicious: do not use it. If you "
            "trust the files, remove the list and rebuild their indexes with "
            "`seqdata index --rebuild`",
        )
    return {name: ListedShard(sha256, declared) for name, sha256 in shards}
