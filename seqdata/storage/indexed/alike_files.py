"""Indexes of many small files at once, computed with arrays over the sequences of all of them.

A file of one short sequence costs more in calls than in bytes. Place in the flow: formats of users
make indexes by it. Reads: nothing. Makes: indexes.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.indexed.build_index import compute_checksums, compute_sha256
from seqdata.storage.indexed.file_format import Extents, FileIndex, FileReader, sibling_facts
from seqdata.storage.indexed.shard_index import (
    ENDS,
    DeclaredFields,
    FieldIndex,
    ShardIndex,
    digest_ends,
    slice_field,
)
from seqdata.storage.integrity.checksums import CHECKSUM_BYTES, choose_algorithm

_DECODERS = (types.NoneType, types.MethodType, types.FunctionType)


def group_alike(found: Sequence[FileIndex]) -> list[list[int]]:
    """Return the numbers of files in groups that can be joined; any other file is alone.

    The files of a group have one sequence each, without an id, and fields of the same kinds.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, each in enumerate(found):
        groups.setdefault(_describe(each) or number, []).append(number)
    return list(groups.values())


def _describe(found: FileIndex) -> tuple[Hashable, ...] | None:
    """Return what files that are joined have in common; None: this one cannot be joined."""
    if found.ids is not None or found.missing:
        return None
    described: list[Hashable] = []
    for name, extents in found.fields.items():
        if not isinstance(extents, Extents) or not isinstance(extents.decoder, _DECODERS):
            return None
        described += (name, str(extents.dtype), str(extents.shape), extents.axis, extents.decoder)
        for array in (extents.begins, extents.ends, extents.lengths, extents.values):
            if array is None:
                described.append(None)
            elif isinstance(array, np.ndarray) and array.shape[:1] == (1,):
                described += (array.dtype, array.shape)
            else:
                return None
    return tuple(described)


def join_extents(found: Sequence[FileIndex]) -> FileIndex:
    """Return the values of the files of a group as if they were the sequences of one file."""
    fields: dict[str, Extents] = {}
    for name, first in found[0].fields.items():
        parts = [each.fields[name] for each in found]
        fields[name] = replace(
            first,
            begins=np.concatenate([part.begins for part in parts]),
            ends=np.concatenate([part.ends for part in parts]),
            lengths=_concatenate([part.lengths for part in parts]),
            values=_concatenate([part.values for part in parts]),
        )
    return FileIndex(fields)


def _concatenate(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None


def make_alike_indexes(
    files: Sequence[FileReader], members: Mapping[str, FieldIndex], identity: str
) -> Iterator[ShardIndex]:
    """Yield the index of each file of a group, with the checksums of all values.

    Args:
        files: The files; together, they are small.
        members: Field -> index of its values in all of them, without checksums.
        identity: Identity of the format.
    """
    using = choose_algorithm()
    content = np.concatenate([file.content for file in files])
    starts = np.cumsum([0, *(file.size for file in files[:-1])])
    places = [
        (np.where(member.begins < 0, -1, member.begins + starts), member.sizes)
        for member in members.values()
    ]
    sums = compute_checksums(content, places, using)
    joined = {
        name: replace(member, sums=values, firsts=firsts)
        for (name, member), (values, firsts) in zip(members.items(), sums, strict=True)
    }
    declared: DeclaredFields = {}
    for number, file in enumerate(files):
        key, last = file.name.encode(), max(0, file.size - ENDS)
        yield ShardIndex(
            shard=file.name, bytes=file.size, sha256=compute_sha256(file.content),
            ends=digest_ends(file.content, last), last=last, algorithm=using,
            block=CHECKSUM_BYTES, keys=np.frombuffer(key, np.uint8),
            key_ends=np.array([0, len(key)], np.int64),
            members={
                name: slice_field(member, number, number + 1) for name, member in joined.items()
            },
            declared=declared, format_identity=identity, siblings=sibling_facts(file),
        )  # fmt: skip
