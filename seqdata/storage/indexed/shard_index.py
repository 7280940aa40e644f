"""The index of one file, the extents of the values of every sequence, and its file format.

An index file is a line of JSON, followed by arrays, with a digest. It is untrusted: extents are
checked against the file's size when it is loaded, and again by the kernel. Place in the flow:
indexing makes it, the store reads by it. Reads: an index file. Makes: arrays.

Generated ids of sequences: the name of their file, and a number.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import ConfigError, CorruptShardError, UnsafeContentError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.packing import NUMBER_DTYPES
from seqdata.storage.text_bytes import TextBytes, concat_texts

VERSION = 1
_MAGIC = b"seqdata index\n"
_SEAL = 64  # hex digits of the digest
_ALIGNED = 8
ENDS = 512
"""Bytes at each end of a file that are compared when it is opened."""
_DTYPES = ("|u1", "<u2", "<u4", "<i8")
INVALID_JSON = (
    ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""Errors of parsing untrusted JSON; infinite numbers and deep nesting are among its causes."""
Siblings = Mapping[str, tuple[int, str]]
"""Name -> (bytes, digest of both ends) of the sibling files that an index was built with."""


@dataclass(frozen=True, slots=True, eq=False)
class FieldIndex:
    """The values of one field in one file.

    Attributes:
        begins: int64 (sequences,): the first byte of each sequence's values; -1 if it has none.
        sizes: int64 (sequences,): sizes of the values in bytes.
        sums: uint32 (k,): checksums of the values, by blocks if they are long.
        firsts: int64 (sequences+1,): sequence -> its first checksum; None: one each.
        heads: Descriptions of the values, plain facts of the format.
        codes: uint16 (sequences,): index into ``heads``; None: the first, or none.
        numbers: int64 (sequences,): their timesteps or integer values, if the format keeps
            them.
        values: (sequences, *shape), the decoded values, if the format keeps them.
    """

    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    sums: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    firsts: NDArray[np.int64] | None = None
    heads: tuple[Mapping[str, Any], ...] = ()
    codes: NDArray[np.uint16] | None = None
    numbers: NDArray[np.int64] | None = None
    values: NDArray[Any] | None = None

    @property
    def extents(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Begins and ends of values, int64 (sequences,) each."""
        return self.begins, self.begins + self.sizes


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShardIndex:
    """The index of one file.

    Attributes:
        shard: Its name.
        bytes: Its size.
        sha256: Its digest.
        ends: Digest of its first bytes and of those at ``last``, which differs between files.
        last: Offset of the last bytes that are compared when it is opened.
        algorithm: Algorithm of the checksums.
        block: Bytes per checksum block.
        keys: The bytes of all ids, uint8.
        key_ends: int64 (sequences+1,).
        members: Field -> its values, in order of occurrence.
        declared: Field -> (name, dtype, shape, axis), if our writer wrote the file.
        format_identity: Identity of the format that built it; "": the suffix identifies it.
        is_numbered: Whether ids are generated from the file's name and a number.
        siblings: The files that it was built with, and which belong to it.
        table: The table of files of a catalog; see ``catalogs``. None: it is of one file.
    """

    shard: str
    bytes: int
    sha256: str
    ends: str
    last: int
    algorithm: str
    block: int
    keys: NDArray[np.uint8]
    key_ends: NDArray[np.int64]
    members: Mapping[str, FieldIndex]
    declared: Mapping[str, tuple[str, str, tuple[int, ...], str | None]]
    format_identity: str = ""
    is_numbered: bool = False
    siblings: Siblings = field(default_factory=dict)
    table: Mapping[str, NDArray[Any]] | None = None

    def __len__(self) -> int:
        return len(self.key_ends) - 1

    def id_of(self, number: int) -> str:
        """Return the id of a sequence."""
        if self.is_numbered:
            return f"{self.shard}/{number}"
        raw = self.keys[self.key_ends[number] : self.key_ends[number + 1]]
        return raw.tobytes().decode(errors="replace")


class FormatIdentity(Protocol):
    """The identity of a format, which checks its indexes and files."""

    @property
    def name(self) -> str:
        """Name of the format in messages."""
        ...

    @property
    def identity(self) -> str:
        """The recorded identity in its indexes; may be empty."""
        ...

    def check(self, index: ShardIndex) -> None:
        """Check the fields of an index that was read.

        Raises:
            ValueError: If they are invalid.
        """
        ...

    def is_header(self, block: bytes) -> bool:
        """Return whether bytes at a recorded offset may be a header of such a file."""
        ...


def digest_ends(content: Any, last: int) -> str:
    """Return the digest of a file's first bytes and of those at ``last``."""
    view = memoryview(content)
    return hashlib.sha256(bytes(view[:ENDS]) + bytes(view[last : last + ENDS])).hexdigest()


def digest_extents(index: ShardIndex) -> bytes:
    """Return the digest of the extents and ids of a file."""
    digest = hashlib.sha256(index.keys.tobytes())
    for name, members in index.members.items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(members.begins).data)
        digest.update(np.ascontiguousarray(members.sizes).data)
    return digest.digest()


def dump_index(index: ShardIndex) -> bytes:
    """Return the content of an index file."""
    arrays: list[NDArray[Any]] = []

    def put(array: NDArray[Any] | None) -> int | None:
        if array is None:
            return None
        arrays.append(array)
        return len(arrays) - 1

    facts: dict[str, Any] = {
        name: getattr(index, name)
        for name in ("shard", "bytes", "sha256", "ends", "last", "algorithm", "block")
    }
    if index.format_identity:
        facts["kind"] = index.format_identity
    if index.siblings:
        facts["siblings"] = {name: list(sibling) for name, sibling in index.siblings.items()}
    if index.table is not None:
        facts["table"] = {name: put(column) for name, column in index.table.items()}
    if index.is_numbered:
        facts["numbered"] = len(index)
    else:
        facts["keys"], facts["key_ends"] = put(index.keys), put(index.key_ends)
    facts["told"] = {name: list(declared) for name, declared in index.declared.items()}
    facts["members"] = {
        name: {
            **{field: put(getattr(member, field)) for field in _ARRAYS},
            "heads": [dict(head) for head in member.heads],
            **_dump_values(member, put),
        }
        for name, member in index.members.items()
    }
    facts["arrays"] = [[array.dtype.str, len(array)] for array in arrays]
    text = json.dumps({"version": VERSION, **facts}).encode()
    text += b" " * (-(len(_MAGIC) + _SEAL + 1 + len(text) + 1) % _ALIGNED) + b"\n"
    body = bytearray(text)
    for array in arrays:
        body += array.tobytes() + bytes(-array.nbytes % _ALIGNED)
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + bytes(body)


_ARRAYS = ("begins", "sizes", "sums", "firsts", "codes", "numbers")


def _dump_values(member: FieldIndex, put: Any) -> dict[str, Any]:
    if member.values is None:
        return {}
    raw = np.ascontiguousarray(member.values)
    shape = list(raw.shape[1:])
    return {"values": [put(raw.reshape(-1).view(np.uint8)), raw.dtype.name, shape]}


def load_index(
    content: bytes,
    place: DataLocation,
    file_format: FormatIdentity | None = None,
    remedy: str = "Rebuild it with `seqdata verify --repair-index`",
) -> ShardIndex:
    """Read an index file.

    Args:
        content: Its content.
        place: Its location, for errors.
        file_format: The format that checks its fields; None: they are not checked.
        remedy: What to do where it is damaged, for errors.

    Raises:
        CorruptShardError: If it is damaged or invalid.
    """
    body = memoryview(content)[len(_MAGIC) + _SEAL + 1 :]
    seal = content[len(_MAGIC) : len(_MAGIC) + _SEAL]
    if not content.startswith(_MAGIC) or hashlib.sha256(body).hexdigest().encode() != seal:
        raise _make_damage_error(place, "is damaged or not an index", remedy)
    try:
        begin = len(_MAGIC) + _SEAL + 1
        text = content[begin : content.index(b"\n", begin)]
        facts = json.loads(text)
        if facts["version"] != VERSION:
            problem = f"is of version {facts['version']!r}, not {VERSION}"
            raise _make_damage_error(place, problem, remedy)
        arrays = list(_iterate_arrays(facts["arrays"], body, len(text) + 1))
        found = _parse_index(facts, arrays)
        if file_format is not None and found.format_identity == file_format.identity:
            file_format.check(found)
    except INVALID_JSON as error:
        problem = f"is invalid ({type(error).__name__}: {error})"
        raise _make_damage_error(place, problem, remedy) from error
    return found


def _make_damage_error(place: DataLocation, problem: str, remedy: str) -> CorruptShardError:
    return place.make_error(CorruptShardError, f"must be a valid index, but {problem}. {remedy}")


def _iterate_arrays(described: Any, body: memoryview, at: int) -> Iterator[NDArray[Any]]:
    for descr, count in described:
        if descr not in _DTYPES or type(count) is not int or count < 0:
            raise ValueError(f"an array of {count} {descr}")
        dtype = np.dtype(descr)
        yield np.frombuffer(body, dtype, count, at) if count else np.empty(0, dtype)
        at += dtype.itemsize * count + -(dtype.itemsize * count) % _ALIGNED


def _parse_index(facts: Any, arrays: list[NDArray[Any]]) -> ShardIndex:
    numbered = facts.get("numbered")
    if numbered is None:
        keys = _parse_array(arrays, facts["keys"], "|u1")
        key_ends = _parse_array(arrays, facts["key_ends"], "<i8")
    else:
        longest = max(map(len, arrays), default=0)  # of its fields: memory for more is not taken
        check(type(numbered) is int and 0 <= numbered <= longest, "numbers")
        keys, key_ends = np.empty(0, np.uint8), np.zeros(numbered + 1, np.int64)
    count = len(key_ends) - 1
    check(count >= 0 and key_ends[0] == 0 and key_ends[-1] == len(keys), "keys")
    check(bool((np.diff(key_ends) >= 0).all()), "keys")
    size, block = facts["bytes"], facts["block"]
    check(type(size) is int and type(block) is int and size >= 0 and block > 0, "sizes")
    check(type(facts["last"]) is int and 0 <= facts["last"] <= size, "last")
    texts = ("shard", "sha256", "ends", "algorithm")
    check(all(isinstance(facts[name], str) for name in texts), "texts")
    members = {
        name: _parse_members(member, arrays, count, size)
        for name, member in facts["members"].items()
    }
    declared = {
        name: (str(declared[0]), str(declared[1]), tuple(map(int, declared[2])), declared[3])
        for name, declared in facts["told"].items()
    }
    table = {name: arrays[number] for name, number in facts.get("table", {}).items()}
    return ShardIndex(
        shard=facts["shard"], bytes=size, sha256=facts["sha256"], ends=facts["ends"],
        last=facts["last"], algorithm=facts["algorithm"], block=block, keys=keys,
        key_ends=key_ends, members=members, declared=declared,
        format_identity=str(facts.get("kind", "")),
        is_numbered=numbered is not None, siblings=parse_siblings(facts.get("siblings", {})),
        table=table or None,
    )  # fmt: skip


def parse_siblings(facts: Any) -> Siblings:
    """Return the siblings of JSON that is untrusted; raise as ``INVALID_JSON`` says."""
    return {str(name): (int(size), str(ends)) for name, (size, ends) in facts.items()}


def _parse_members(facts: Any, arrays: list[NDArray[Any]], count: int, size: int) -> FieldIndex:
    begins, sizes = (_parse_array(arrays, facts[name], "<i8") for name in ("begins", "sizes"))
    sums, heads = _parse_array(arrays, facts["sums"], "<u4"), tuple(map(dict, facts["heads"]))
    firsts, codes, numbers = (
        None if facts[name] is None else _parse_array(arrays, facts[name], dtype)
        for name, dtype in (("firsts", "<i8"), ("codes", "<u2"), ("numbers", "<i8"))
    )
    check(len(begins) == len(sizes) == count, "places")
    check(bool((begins >= -1).all() and (begins <= size).all() and (sizes >= 0).all()), "places")
    check(bool((sizes <= size - begins).all()), "places")
    check(numbers is None or len(numbers) == count, "numbers")
    if codes is not None:
        check(len(codes) == count and int(codes.max(initial=0)) < max(1, len(heads)), "heads")
    if firsts is None:
        check(len(sums) == count, "checksums")
    else:
        check(len(firsts) == count + 1 and firsts[0] == 0 and firsts[-1] == len(sums), "checksums")
        check(bool((np.diff(firsts) >= 0).all()), "checksums")
    values = _parse_values(facts.get("values"), arrays, count)
    return FieldIndex(begins, sizes, sums, firsts, heads, codes, numbers, values)


def _parse_values(facts: Any, arrays: list[NDArray[Any]], count: int) -> NDArray[Any] | None:
    if facts is None:
        return None
    number, dtype, shape = facts
    check(
        dtype in NUMBER_DTYPES and all(type(size) is int and size > 0 for size in shape), "values"
    )
    values: NDArray[Any] = _parse_array(arrays, number, "|u1").view(dtype).reshape(count, *shape)
    return values


def _parse_array(arrays: list[NDArray[Any]], number: Any, dtype: str) -> NDArray[Any]:
    check(type(number) is int and number >= 0 and arrays[number].dtype.str == dtype, "arrays")
    found: NDArray[Any] = arrays[number]
    return found


def check(is_valid: bool, name: str) -> None:
    """Raise ValueError if a check of an index fails."""
    if not is_valid:
        raise ValueError(f"invalid {name}")


@dataclass(frozen=True, slots=True)
class NumberedIds:
    """The ids of all sequences of files, created on demand.

    Attributes:
        location: The data set, for messages.
        names: Names of the files.
        starts: File -> its first sequence, with the total at the end.
    """

    location: str
    names: Sequence[str]
    starts: Sequence[int]

    def take(self, numbers: ArrayLike) -> list[Any]:
        """Return the ids of sequences.

        Raises:
            ConfigError: If there is no such sequence.
        """
        return [self._parse_id(number) for number in np.asarray(numbers, dtype=np.int64).tolist()]

    def read_bytes(self, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the concatenated bytes of ids; see ``text_bytes``."""
        return concat_texts(self.take(numbers))

    def is_readable(self, number: int) -> bool:
        """Return whether a sequence exists."""
        return 0 <= number < self.starts[-1]

    def _parse_id(self, number: int) -> str:
        if not self.is_readable(number):
            raise ConfigError(
                f"{self.location}: the sequence must be in [0, {self.starts[-1]}), but is "
                f"{number}. Was the plan made for other data?"
            )
        shard = bisect_right(self.starts, number) - 1
        return f"{self.names[shard]}/{number - self.starts[shard]}"


SHARD_LIST = "shards.json"
"""Name of the list in the folder of indexes."""
_VERSION = 1
_LEADS_ELSEWHERE = re.compile(r"(^|/)\.{0,2}(/|$)|^[A-Za-z]:|[\\\x00-\x1f\x7f-\x9f]")
DeclaredFields = Mapping[str, tuple[str, str, tuple[int, ...], str | None]]


@dataclass(frozen=True, slots=True, eq=False)
class ListedShard:
    """The entry of one shard in a list.

    Attributes:
        sha256: Digest of the shard.
        declared: Extension -> (name, dtype, shape, axis) of its field.
    """

    sha256: str
    declared: DeclaredFields


def dump_list(shards: Sequence[tuple[str, str]], declared: DeclaredFields) -> bytes:
    """Return the content of a list file.

    Args:
        shards: Name and sha256 of each, in order.
        declared: Extension -> (name, dtype, shape, axis) of its field.
    """
    fields = {name: list(facts_of_field) for name, facts_of_field in sorted(declared.items())}
    facts = {"version": _VERSION, "fields": fields, "shards": [list(shard) for shard in shards]}
    seal = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return json.dumps({"seal": seal, **facts}, indent=1).encode() + b"\n"


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
        facts = json.loads(content)
        declared = {
            name: _parse_field(facts_of_field) for name, facts_of_field in facts["fields"].items()
        }
        shards = [(str(name), str(sha256)) for name, sha256 in facts["shards"]]
        is_intact = dump_list(shards, declared) == content
        state = f"of version {facts['version']!r}" if facts["version"] != _VERSION else "damaged"
    except INVALID_JSON:
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
            "must name shards by their paths below the folder, without '..', '\\' and control "
            f"characters, but names {name!r}. Do not use this data, or remove the list",
        )
    return {name: ListedShard(sha256, declared) for name, sha256 in shards}


def _parse_field(facts: Any) -> tuple[str, str, tuple[int, ...], str | None]:
    name, dtype, shape, axis = facts
    return str(name), str(dtype), tuple(map(int, shape)), axis
