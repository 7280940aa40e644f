"""The index of one file: the extents of the values of every sequence; and of many files, joined.

Place in the flow: indexing makes it, the store reads by it; ``index_file`` stores it. Reads:
nothing. Makes: arrays.

Generated ids of sequences: the name of their file, and a number.
"""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import ConfigError
from seqdata.storage.text_bytes import TextBytes, concat_texts

ENDS = 512
"""Bytes at each end of a file that are compared when it is opened."""
VERSION = " version "
"""The part of a format's identity before its version."""
Siblings = Mapping[str, tuple[int, str]]
"""Name -> (bytes, digest of both ends) of the sibling files that an index was built with."""
MissingValues = Mapping[str, tuple[int, Sequence[int]]]
"""Value that only some sequences of a file have -> number and some indices of the others."""
DeclaredFields = Mapping[str, tuple[str, str, tuple[int, ...], str | None]]
"""Field -> (name, dtype, shape, axis), as its writer declared it."""


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
        missing: Values that only some sequences have, so that they do not become fields.
        modified: When the file was last written to, in nanoseconds since 1970; 0: not recorded.
            A file of another time may be the same: it is a hint to compare it again.
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
    declared: DeclaredFields
    format_identity: str = ""
    is_numbered: bool = False
    siblings: Siblings = field(default_factory=dict)
    missing: MissingValues = field(default_factory=dict)
    modified: int = 0

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


@dataclass(frozen=True, slots=True, eq=False)
class ListedShard:
    """The entry of one file in the list of its writer.

    Attributes:
        sha256: Digest of the file.
        declared: Member -> (name, dtype, shape, axis) of its field.
    """

    sha256: str
    declared: DeclaredFields


def check(is_valid: bool, name: str) -> None:
    """Raise ValueError if a check of an index fails."""
    if not is_valid:
        raise ValueError(f"invalid {name}")


@dataclass(frozen=True, slots=True)
class NumberedIds:
    """The ids of all sequences of files, created on demand.

    Attributes:
        location: The dataset, for messages.
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
                f"{self.location}: the index of a sequence must be in [0, {self.starts[-1]}), but "
                f"is {number}. Use a plan that was made for this data."
            )
        shard = bisect_right(self.starts, number) - 1
        return f"{self.names[shard]}/{number - self.starts[shard]}"


def join_ids(
    indexes: Sequence[ShardIndex],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the concatenated ids of many files, and their offsets."""
    indexes = [add_ids(index) for index in indexes]
    sizes = join_key_sizes(indexes)
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=ends[1:])
    return np.concatenate([index.keys for index in indexes]), ends


def join_key_sizes(indexes: Sequence[ShardIndex]) -> NDArray[np.int64]:
    """Return the bytes of the id of each sequence of many files, int64 (sequences,)."""
    ends = np.concatenate([index.key_ends for index in indexes])
    firsts = np.cumsum([len(index.key_ends) for index in indexes[:-1]], dtype=np.int64)
    return np.delete(np.diff(ends), firsts - 1)


def add_ids(index: ShardIndex) -> ShardIndex:
    """Return an index with the ids of its sequences."""
    if not index.is_numbered:
        return index
    raw = [index.id_of(number).encode() for number in range(len(index))]
    ends = np.array([0, *itertools.accumulate(map(len, raw))], dtype=np.int64)
    keys = np.frombuffer(b"".join(raw), dtype=np.uint8)
    return replace(index, keys=keys, key_ends=ends, is_numbered=False)


def join_fields(parts: Sequence[FieldIndex]) -> FieldIndex:
    """Return the concatenated index of one field of many files with the same heads."""
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
        codes=_concat_arrays([part.codes for part in parts]),
        numbers=_concat_arrays([part.numbers for part in parts]),
        values=_concat_arrays([part.values for part in parts]),
    )


def _concat_arrays(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present and len(present) == len(parts) else None


def slice_field(members: FieldIndex, first: int, stop: int) -> FieldIndex:
    """Return the index of a field for a range of sequences."""
    sums, firsts = members.sums[first:stop], None
    if members.firsts is not None:
        firsts = members.firsts[first : stop + 1] - members.firsts[first]
        sums = members.sums[members.firsts[first] : members.firsts[stop]]
        firsts = None if len(sums) == stop - first else firsts
    return FieldIndex(
        members.begins[first:stop], members.sizes[first:stop], sums, firsts, members.heads,
        None if members.codes is None else members.codes[first:stop],
        None if members.numbers is None else members.numbers[first:stop],
        None if members.values is None else members.values[first:stop],
    )  # fmt: skip
