"""The index of one shard: where every value of every sample lies, and the file that keeps it.

A file is a line of JSON and arrays behind it, sealed by a digest. What it says is input, not truth:
places are looked at when it is loaded, and again by the kernel. Place in the flow: indexing makes
it, the store reads by it. Reads: an index file. Makes: arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError
from seqdata.storage.data_location import Place
from seqdata_webdataset.array_headers import Head, is_dtype

VERSION = 1
_MAGIC = b"seqdata index\n"
_SEAL = 64  # hex digits of the digest, and a line's end
_ALIGNED = 8


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The members of one extension in one shard.

    Attributes:
        begins: int64 (samples,): the first byte of each one's values; -1: it has none.
        sizes: int64 (samples,): bytes of the values.
        sums: uint32 (k,): checksums of the values, by blocks where they are long.
        firsts: int64 (samples+1,): sample -> its first checksum; None: one each.
        heads: What they hold, where that can be told.
        codes: uint16 (samples,): which of ``heads``; None: there are none.
        numbers: int64 (samples,): their values, where all are small texts of whole numbers; of
            FLAC their timesteps; None: neither.
    """

    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    sums: NDArray[np.uint32]
    firsts: NDArray[np.int64] | None = None
    heads: tuple[Head, ...] = ()
    codes: NDArray[np.uint16] | None = None
    numbers: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShardIndex:
    """All that is known of one shard.

    Attributes:
        shard: Its name.
        bytes: Its size.
        sha256: Its digest.
        ends: Digest of its first and last header, which is its own among all shards.
        last: Where the last header lies.
        algorithm: Of the checksums.
        block: Bytes of a block.
        keys: The bytes of all keys, uint8.
        key_ends: int64 (samples+1,).
        members: Extension -> members, in the order in which they were met.
        told: Extension -> (name, dtype, shape, axis) of the field, where our writer made it.
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
    members: Mapping[str, Members]
    told: Mapping[str, tuple[str, str, tuple[int, ...], str | None]]

    def __len__(self) -> int:
        return len(self.key_ends) - 1


def ends_of(content: Any, last: int) -> str:
    """Give the digest of a shard's first header and of the one at ``last``."""
    view = memoryview(content)
    return hashlib.sha256(bytes(view[:512]) + bytes(view[last : last + 512])).hexdigest()


def dump_index(index: ShardIndex) -> bytes:
    """Give the file of an index."""
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
    facts["keys"], facts["key_ends"] = put(index.keys), put(index.key_ends)
    facts["told"] = {name: list(one) for name, one in index.told.items()}
    facts["members"] = {
        name: {
            **{field: put(getattr(one, field)) for field in _ARRAYS},
            "heads": [asdict(head) for head in one.heads],
        }
        for name, one in index.members.items()
    }
    facts["arrays"] = [[array.dtype.str, len(array)] for array in arrays]
    text = json.dumps({"version": VERSION, **facts}).encode()
    text += b" " * (-(len(_MAGIC) + _SEAL + 1 + len(text) + 1) % _ALIGNED) + b"\n"
    body = bytearray(text)
    for array in arrays:
        body += array.tobytes() + bytes(-array.nbytes % _ALIGNED)
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + bytes(body)


_ARRAYS = ("begins", "sizes", "sums", "firsts", "codes", "numbers")


def load_index(content: bytes, place: Place) -> ShardIndex:
    """Read an index file.

    Args:
        content: All of it.
        place: The file's, for errors.

    Raises:
        CorruptShardError: If it is damaged, or cannot be true.
    """
    body = memoryview(content)[len(_MAGIC) + _SEAL + 1 :]
    seal = content[len(_MAGIC) : len(_MAGIC) + _SEAL]
    if not content.startswith(_MAGIC) or hashlib.sha256(body).hexdigest().encode() != seal:
        raise _damaged(place, "is damaged or no index")
    text, _, _ = content[len(_MAGIC) + _SEAL + 1 :].partition(b"\n")
    try:
        facts = json.loads(text)
        if facts["version"] != VERSION:
            raise _damaged(place, f"is of version {facts['version']!r}, not {VERSION}")
        arrays = list(_arrays(facts["arrays"], body, len(text) + 1))
        made = _index(facts, arrays)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise _damaged(place, f"cannot be true ({type(error).__name__}: {error})") from error
    return made


def _damaged(place: Place, what: str) -> CorruptShardError:
    return place.error(
        CorruptShardError, f"{what}, must be as it was made; make it anew with `--repair-index`"
    )


def _arrays(told: Any, body: memoryview, at: int) -> Iterator[NDArray[Any]]:
    for descr, count in told:
        if descr not in ("|u1", "<u2", "<u4", "<i8") or type(count) is not int or count < 0:
            raise ValueError(f"an array of {count} {descr}")
        dtype = np.dtype(descr)
        yield np.frombuffer(body, dtype, count, at) if count else np.empty(0, dtype)
        at += dtype.itemsize * count + -(dtype.itemsize * count) % _ALIGNED


def _index(facts: Any, arrays: list[NDArray[Any]]) -> ShardIndex:
    keys, key_ends = _array(arrays, facts["keys"], "|u1"), _array(arrays, facts["key_ends"], "<i8")
    count = len(key_ends) - 1
    _check(count >= 0 and key_ends[0] == 0 and key_ends[-1] == len(keys), "keys")
    _check(bool((np.diff(key_ends) >= 0).all()), "keys")
    size, block = facts["bytes"], facts["block"]
    _check(type(size) is int and type(block) is int and size >= 0 and block > 0, "sizes")
    _check(type(facts["last"]) is int and 0 <= facts["last"] <= size, "last")
    texts = ("shard", "sha256", "ends", "algorithm")
    _check(all(isinstance(facts[name], str) for name in texts), "texts")
    members = {name: _members(one, arrays, count, size) for name, one in facts["members"].items()}
    told = {
        name: (str(one[0]), str(one[1]), tuple(map(int, one[2])), one[3])
        for name, one in facts["told"].items()
    }
    return ShardIndex(
        shard=facts["shard"], bytes=size, sha256=facts["sha256"], ends=facts["ends"],
        last=facts["last"], algorithm=facts["algorithm"], block=block, keys=keys,
        key_ends=key_ends, members=members, told=told,
    )  # fmt: skip


def _members(facts: Any, arrays: list[NDArray[Any]], count: int, size: int) -> Members:
    begins, sizes = (_array(arrays, facts[name], "<i8") for name in ("begins", "sizes"))
    sums, heads = _array(arrays, facts["sums"], "<u4"), tuple(map(_head, facts["heads"]))
    firsts, codes, numbers = (
        None if facts[name] is None else _array(arrays, facts[name], dtype)
        for name, dtype in (("firsts", "<i8"), ("codes", "<u2"), ("numbers", "<i8"))
    )
    _check(len(begins) == len(sizes) == count, "places")
    _check(bool((begins >= -1).all() and (begins <= size).all() and (sizes >= 0).all()), "places")
    _check(bool((sizes <= size - begins).all()), "places")
    _check(numbers is None or len(numbers) == count, "numbers")
    flac = any(head.kind == "flac" for head in heads)
    _check(numbers is not None and bool((numbers >= 0).all()) if flac else True, "numbers")
    if codes is not None:
        _check(len(codes) == count and int(codes.max(initial=0)) < max(1, len(heads)), "heads")
    if firsts is None:
        _check(len(sums) == count, "checksums")
    else:
        _check(len(firsts) == count + 1 and firsts[0] == 0 and firsts[-1] == len(sums), "checksums")
        _check(bool((np.diff(firsts) >= 0).all()), "checksums")
    return Members(begins, sizes, sums, firsts, heads, codes, numbers)


def _head(facts: Any) -> Head:
    head = Head(
        str(facts["kind"]), str(facts["descr"]), tuple(map(int, facts["shape"])),
        bool(facts["scalar"]), bool(facts["fortran"]),
    )  # fmt: skip
    if head.kind != "bad":
        _check(is_dtype(head.descr), "heads")
        _check(head.width > 0 and min(head.shape, default=1) > 0, "heads")
    return head


def _array(arrays: list[NDArray[Any]], number: Any, dtype: str) -> NDArray[Any]:
    _check(type(number) is int and number >= 0 and arrays[number].dtype.str == dtype, "arrays")
    found: NDArray[Any] = arrays[number]
    return found


def _check(good: bool, what: str) -> None:
    if not good:
        raise ValueError(f"its {what} are not so")
