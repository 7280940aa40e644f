"""How long the sequences of each field are, and along which axes.

Place in the flow: opening asks, before sources are made. Reads: indexes. Makes: lengths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError
from seqdata.index import DEFAULT_AXIS
from seqdata.protocols import Field
from seqdata.storage.columns import Layout
from seqdata.storage.data_location import Place
from seqdata.storage.fields import field_width
from seqdata.storage.text_source import TextSource
from seqdata_webdataset.placed import Runs
from seqdata_webdataset.schema import Wanted
from seqdata_webdataset.shard_index import Members, ShardIndex

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Opened:
    """Shards and their indexes.

    Attributes:
        location: Where they lie.
        names: Of the shards.
        indexes: Of each.
        hold: Gives the bytes of a shard, uint8, in which at least those of some values are there.
        content: Of each, its bytes, uint8; None: they are asked for one by one.
        verify: When checksums are looked at: off, first_read or always.
        ids: The keys of all samples.
        starts: Shard -> its first sequence; one more than shards.
        file_of: Shard -> its place.
        mend: Looks whether the bytes of a shard are a copy that is damaged, and mends it.
    """

    location: str
    names: Sequence[str]
    indexes: Sequence[ShardIndex]
    hold: Callable[[int, Runs], NDArray[np.uint8]]
    content: tuple[NDArray[np.uint8], ...] | None
    verify: str
    ids: TextSource
    starts: list[int]
    file_of: Callable[[int], Place]
    mend: Callable[[int, NDArray[np.uint8]], bool]


def place_of(opened: Opened, shard: int, one: Members, name: str, at: int | None) -> Place:
    """Give the place of a member, for an error; of the first where none is told."""
    if at is None:
        at = int(np.argmax(one.begins >= 0)) if len(one.begins) else 0
    number = opened.starts[shard] + at
    key = opened.ids.take([number])[0] if len(one.begins) else None
    return replace(
        opened.file_of(shard), sequence=number, key=key, field=name,
        offset=int(one.begins[at]) if len(one.begins) else 0,
    )  # fmt: skip


def steps_of(opened: Opened, one: Wanted, runs: Runs) -> NDArray[np.int64] | None:
    """Give the timesteps of each sequence, int64; None where members must be decoded."""
    if one.how == "place" and not _headed(opened, one.extension):
        width = field_width(one.field)
        sizes = np.concatenate([_NONE, *runs.sizes])
        if len(sizes) and int(odd := (sizes % width != 0).argmax()) >= 0 and sizes[odd] % width:
            raise _of_number(opened, int(odd), one).error(
                DecodeError,
                f"has {sizes[odd]} bytes, must have a multiple of {width} for timesteps of "
                f"{one.field.dtype} {list(one.field.shape)}; correct `schema`",
            )
        return sizes // width
    if not _headed(opened, one.extension):
        return None
    counts = []
    for index in opened.indexes:
        members = index.members.get(one.extension)
        if members is None or members.codes is None:
            continue
        if any(head.kind == "flac" for head in members.heads) and members.numbers is not None:
            counts.append(members.numbers)
            continue
        widths = np.array([head.width for head in members.heads], dtype=np.int64)
        counts.append(members.sizes // widths[members.codes])
    return np.concatenate([_NONE, *counts])


def _headed(opened: Opened, extension: str) -> bool:
    return any(
        index.members[extension].heads for index in opened.indexes if extension in index.members
    )


def _of_number(opened: Opened, number: int, one: Wanted) -> Place:
    shard = int(np.searchsorted(np.array(opened.starts), number, side="right")) - 1
    index = opened.indexes[shard].members[one.extension]
    return place_of(opened, shard, index, one.name, number - opened.starts[shard])


def axes_of_fields(
    opened: Opened,
    wanted: Sequence[Wanted],
    counted: Mapping[str, NDArray[np.int64]],
    layout: Layout,
) -> tuple[dict[str, Field], dict[str, NDArray[np.int64]]]:
    """Give fields with their axes, and the lengths along each.

    Fields as long as the first one run on ``time``, one of other lengths on an axis of its own.
    """
    fields: dict[str, Field] = {}
    lengths_of: dict[str, NDArray[np.int64]] = {}
    for one in sorted(wanted, key=lambda one: not one.chosen):  # what was said comes first
        fields[one.name] = one.field
        if one.field.axis is None:
            if one.how == "place":
                _check_one_each(opened, one)
            continue
        lengths, axis = counted[one.name], one.field.axis
        if axis not in lengths_of:
            lengths_of[axis] = lengths
            continue
        other = np.flatnonzero(lengths_of[axis] != lengths)
        if len(other) and one.chosen:
            number = int(other[0])
            raise layout.place(number, one.name).error(
                DecodeError,
                f"has {lengths[number]} timesteps, must have {lengths_of[axis][number]} as another "
                f"field along axis {axis!r}; give it an axis of its own in `schema`",
                expected=int(lengths_of[axis][number]), found=int(lengths[number]),
            )  # fmt: skip
        if len(other):
            own = _axis_name(one.name, lengths_of)
            fields[one.name] = replace(one.field, axis=own)
            lengths_of[own] = lengths
    ordered = {one.name: fields[one.name] for one in wanted}
    if DEFAULT_AXIS in lengths_of:
        lengths_of = {DEFAULT_AXIS: lengths_of[DEFAULT_AXIS], **lengths_of}
    return ordered, lengths_of


def _axis_name(name: str, taken: Mapping[str, object]) -> str:
    """Give an axis a name after its field: ``text`` for ``text.npy``."""
    short = _NO_NAME.sub("_", name.rpartition(".")[0] or name)
    return _NO_NAME.sub("_", name) if short in taken else short


def _check_one_each(opened: Opened, one: Wanted) -> None:
    """Refuse arrays of a value per sequence that are not all of its size."""
    width = field_width(one.field)
    for i, index in enumerate(opened.indexes):
        members = index.members.get(one.extension)
        if members is None:
            continue
        bad = np.flatnonzero(members.sizes != width)
        if len(bad):
            at = int(bad[0])
            raise place_of(opened, i, members, one.name, at).error(
                DecodeError,
                f"has {members.sizes[at]} bytes, must have {width} for {one.field.dtype} "
                f"{list(one.field.shape)} per sequence; correct `schema`",
                expected=width, found=int(members.sizes[at]),
            )  # fmt: skip
