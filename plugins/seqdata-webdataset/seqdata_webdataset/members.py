"""The headers and lengths of the members of each extension, over all shards."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from seqdata import DecodeError
from seqdata.backends import Field, FieldIndex, OpenedFiles, field_width
from seqdata_webdataset.array_headers import WHOLE_SOUND, ArrayHeader
from seqdata_webdataset.decoders import FieldSpec
from seqdata_webdataset.schema import Extension

_NONE = np.empty(0, dtype=np.int64)


def heads_of(members: FieldIndex) -> tuple[ArrayHeader, ...]:
    """Return the headers of members.

    Raises:
        ValueError, KeyError, TypeError: If their index is invalid.
    """
    return tuple(
        _parse_head(
            str(head["kind"]), str(head["descr"]), tuple(map(int, head["shape"])),
            bool(head["scalar"]), bool(head["fortran"]),
        )
        for head in members.heads
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _parse_head(
    kind: str, descr: str, shape: tuple[int, ...], scalar: bool, fortran: bool
) -> ArrayHeader:
    return ArrayHeader(kind, descr, shape, scalar, fortran)


def extensions_of(opened: OpenedFiles) -> list[Extension]:
    """Return the extensions of shards, in order of occurrence."""
    names = dict.fromkeys(name for index in opened.indexes for name in index.members)
    return [_describe_extension(opened, name) for name in names]


def _describe_extension(opened: OpenedFiles, name: str) -> Extension:
    having = [
        (i, index.members[name]) for i, index in enumerate(opened.indexes) if name in index.members
    ]
    heads = dict.fromkeys(head for _, members in having for head in heads_of(members))
    shard, first = having[0]
    place = opened.place(shard, first, name, None)
    for i, members in having:
        for code, head in enumerate(heads_of(members)):
            if head.kind == "bad" and members.codes is not None:
                place = opened.place(
                    i, members, name, int(np.flatnonzero(members.codes == code)[0])
                )
    declared = opened.indexes[shard].declared.get(name)
    are_numbers = not heads and all(members.numbers is not None for _, members in having)
    return Extension(
        name, tuple(heads), are_numbers, place,
        None if declared is None else (declared[0], Field(*declared[1:])),
    )  # fmt: skip


def steps_of(opened: OpenedFiles, spec: FieldSpec) -> NDArray[np.int64] | None:
    """Return the timesteps of each sequence, int64; None if members must be decoded.

    Raises:
        DecodeError: If a member holds an incomplete timestep.
    """
    having = [index.members.get(spec.extension) for index in opened.indexes]
    present = [members for members in having if members is not None]
    if any(members.heads for members in present):
        counts = [_count_steps(members) for members in present if members.codes is not None]
        return np.concatenate([_NONE, *counts])
    if spec.access != "place":
        return None
    width = field_width(spec.field)
    sizes = np.concatenate([_NONE, *(members.sizes for members in present)])
    if len(sizes) and int(odd := (sizes % width != 0).argmax()) >= 0 and sizes[odd] % width:
        raise opened.locate(int(odd), spec.extension, spec.name).make_error(
            DecodeError,
            f"must have a multiple of {width} bytes for timesteps of {spec.field.dtype} "
            f"{list(spec.field.shape)}, but has {sizes[odd]}. Correct `schema`",
        )
    return sizes // width


def _count_steps(members: FieldIndex) -> NDArray[np.int64]:
    heads = heads_of(members)
    if any(head.kind in WHOLE_SOUND for head in heads) and members.numbers is not None:
        return members.numbers
    widths = np.array([head.width for head in heads], dtype=np.int64)
    codes = np.zeros(len(members.sizes), np.uint16) if members.codes is None else members.codes
    steps: NDArray[np.int64] = members.sizes // widths[codes]
    return steps
