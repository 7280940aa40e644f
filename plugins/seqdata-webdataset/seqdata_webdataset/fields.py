"""From the indexes of shards to the sources of a store's fields.

Place in the flow: opening makes it, the store reads by it. Reads: indexes, mapped shards. Makes:
lengths, sources, checks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DataError, DecodeError
from seqdata.index import DEFAULT_AXIS
from seqdata.protocols import Field
from seqdata.storage.checking.bits import SharedBits
from seqdata.storage.checking.verifying import Checks
from seqdata.storage.columns import Layout, Source
from seqdata.storage.places import Place, quoted
from seqdata.storage.schema import field_width
from seqdata.storage.texts import TextSource
from seqdata.storage.writing.lengths import narrow
from seqdata_webdataset.heads import Head
from seqdata_webdataset.placed import PlacedSource, PlacedTexts, Runs, doubled
from seqdata_webdataset.schema import Extension, Wanted
from seqdata_webdataset.shard_index import Members, ShardIndex
from seqdata_webdataset.whole import WholeSource

Survey = Callable[[Wanted, WholeSource, int], NDArray[np.int64]]
"""Gives the timesteps of each of so many sequences of a field that must be decoded for it."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Opened:
    """Shards and their indexes.

    Attributes:
        location: Where they lie.
        names: Of the shards.
        indexes: Of each.
        content: Of each, its bytes, uint8.
        verify: When checksums are looked at: off, first_read or always.
        ids: The keys of all samples.
        starts: Shard -> its first sequence; one more than shards.
        file_of: Shard -> its place.
    """

    location: str
    names: Sequence[str]
    indexes: Sequence[ShardIndex]
    content: tuple[NDArray[np.uint8], ...]
    verify: str
    ids: TextSource
    starts: list[int]
    file_of: Callable[[int], Place]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Made:
    """What a store consists of.

    Attributes:
        fields: Name -> field.
        layout: Where sequences lie, with lengths.
        sources: Field -> its source.
        ids: The keys.
        indexes: Of the shards.
        verify: When checksums are looked at.
        bits: Those that say what was found right, for first_read.
    """

    fields: Mapping[str, Field]
    layout: Layout
    sources: Mapping[str, Source | PlacedSource | PlacedTexts | WholeSource]
    ids: TextSource
    indexes: Sequence[ShardIndex]
    verify: str
    bits: SharedBits | None


def extensions_of(opened: Opened) -> list[Extension]:
    """Give what there is in shards, extension by extension, in the order in which it is met."""
    names = dict.fromkeys(name for index in opened.indexes for name in index.members)
    return [_extension(opened, name) for name in names]


def _extension(opened: Opened, name: str) -> Extension:
    having = [(i, one.members[name]) for i, one in enumerate(opened.indexes) if name in one.members]
    heads = dict.fromkeys(head for _, one in having for head in one.heads)
    shard, first = having[0]
    place = _place_of(opened, shard, first, name, None)
    for i, one in having:
        for code, head in enumerate(one.heads):
            if head.kind == "bad" and one.codes is not None:
                place = _place_of(opened, i, one, name, int(np.flatnonzero(one.codes == code)[0]))
    told = opened.indexes[shard].told.get(name)
    return Extension(
        name, tuple(heads), all(one.numbers is not None for _, one in having) and not heads, place,
        None if told is None else (told[0], Field(*told[1:])),
    )  # fmt: skip


def _place_of(opened: Opened, shard: int, one: Members, name: str, at: int | None) -> Place:
    if at is None:
        at = int(np.argmax(one.begins >= 0)) if len(one.begins) else 0
    number = opened.starts[shard] + at
    key = opened.ids.take([number])[0] if len(one.begins) else None
    return replace(
        opened.file_of(shard), sequence=number, key=key, field=name,
        offset=int(one.begins[at]) if len(one.begins) else 0,
    )  # fmt: skip


def make(
    opened: Opened, wanted: Sequence[Wanted], bits: SharedBits | None, survey: Survey, of: str
) -> Made:
    """Make the sources of all fields.

    Args:
        opened: The shards.
        wanted: The fields.
        bits: Those of the process that sent the store here.
        survey: Counts timesteps where members must be decoded for it.
        of: What the bits are about.

    Raises:
        DecodeError: If a sample has no member of a field, or lengths do not go together.
    """
    runs = {one.extension: _runs(opened, one.extension) for one in wanted}
    checks, bits = _checks(opened, list(runs), bits, of)
    bare = Layout(opened.location, opened.names, opened.starts, {}, opened.file_of, _keys(opened))
    total = opened.starts[-1]
    counted: dict[str, NDArray[np.int64]] = {}
    for one in wanted:
        if one.field.axis is not None:
            steps = _steps(opened, one, runs[one.extension])
            if steps is None:
                source = _whole(opened, one, bare, runs[one.extension], checks)
                steps = survey(one, source, total)
            counted[one.name] = steps
    fields, lengths_of = _axes(opened, wanted, counted, bare)
    layout = replace(bare, lengths_of={axis: narrow(one) for axis, one in lengths_of.items()})
    sources = {
        one.name: _source(
            opened, replace(one, field=fields[one.name]), layout, runs[one.extension], checks
        )
        for one in wanted
    }
    return Made(
        fields=fields, layout=layout, sources=sources, ids=opened.ids, indexes=opened.indexes,
        verify=opened.verify, bits=bits,
    )  # fmt: skip


def _keys(opened: Opened) -> Callable[[int], str | None]:
    def key_of(number: int) -> str | None:
        try:
            return str(opened.ids.take([number])[0])
        except DataError:  # an error is being made already, about more than its name
            return None

    return key_of


def _runs(opened: Opened, extension: str) -> Runs:
    """Give where the members of an extension lie.

    Raises:
        DecodeError: If a sample has none.
    """
    begins, sizes = [], []
    for i, index in enumerate(opened.indexes):
        one = index.members.get(extension)
        missing = np.ones(len(index), dtype=bool) if one is None else one.begins < 0
        if missing.any():
            number = opened.starts[i] + int(np.argmax(missing))
            key = opened.ids.take([number])[0]
            raise replace(opened.file_of(i), sequence=number, key=key).error(
                DecodeError,
                f"has no member of extension {quoted(extension)} ({int(missing.sum())} samples of "
                "the shard have none), must have one as the others; leave the extension out with "
                f"`schema`={{{extension!r}: None}}, or write the shard again",
            )
        begins.append(_NONE if one is None else one.begins)
        sizes.append(_NONE if one is None else one.sizes)
    return Runs(tuple(begins), tuple(sizes))


def _checks(
    opened: Opened, extensions: Sequence[str], bits: SharedBits | None, of: str
) -> tuple[dict[str, Checks], SharedBits | None]:
    """Give what each extension is verified by, and the bits of all."""
    if opened.verify == "off":
        return {}, None
    made: dict[str, Checks] = {}
    count = 0
    for extension in extensions:
        sums, firsts = [], []
        for index in opened.indexes:
            one = index.members.get(extension)
            sums.append(np.empty(0, np.uint32) if one is None else one.sums)
            firsts.append(None if one is None else one.firsts)
        first = opened.indexes[0]
        both = doubled(
            Checks(
                first.algorithm,
                first.block,
                tuple(sums),
                tuple(firsts),
                tuple(f"index of {name}" for name in opened.names),
                None,
                (),
                None,
            )
        )
        made[extension] = replace(both, begins=tuple(begin + count for begin in both.begins))
        count += sum(len(one) for one in both.sums)
    if opened.verify == "always":
        return made, None
    if bits is None or (bits.count, bits.of) != (count, of):
        bits = SharedBits(count, of)
    return {name: replace(one, bits=bits.buffer) for name, one in made.items()}, bits


def _steps(opened: Opened, one: Wanted, runs: Runs) -> NDArray[np.int64] | None:
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
    return _place_of(opened, shard, index, one.name, number - opened.starts[shard])


def _axes(
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
            raise _place_of(opened, i, members, one.name, at).error(
                DecodeError,
                f"has {members.sizes[at]} bytes, must have {width} for {one.field.dtype} "
                f"{list(one.field.shape)} per sequence; correct `schema`",
                expected=width, found=int(members.sizes[at]),
            )  # fmt: skip


def _source(
    opened: Opened, one: Wanted, layout: Layout, runs: Runs, checks: Mapping[str, Checks]
) -> Source | PlacedSource | PlacedTexts | WholeSource:
    if one.how == "number":
        dtype = np.dtype(one.field.dtype)
        values = [
            index.members[one.extension].numbers
            if one.extension in index.members
            else np.empty(0, dtype=np.int64)
            for index in opened.indexes
        ]
        there = [value.astype(dtype) for value in values if value is not None]
        return Source.of(one.name, one.field, layout, there)
    found = checks.get(one.extension)
    if one.how == "text":
        raw = PlacedSource.of(one.name, _BYTES, layout, opened.content, runs, found)
        return PlacedTexts(raw, one.field)
    aligned = one.how == "place" and not (
        runs.unit(field_width(one.field)) % np.dtype(one.field.dtype).itemsize
    )
    if aligned:
        return PlacedSource.of(one.name, one.field, layout, opened.content, runs, found)
    return _whole(opened, one, layout, runs, checks)


_BYTES = Field("bytes", (), None)


def _whole(
    opened: Opened, one: Wanted, layout: Layout, runs: Runs, checks: Mapping[str, Checks]
) -> WholeSource:
    raw = PlacedSource.of(one.name, _BYTES, layout, opened.content, runs, checks.get(one.extension))

    def head_of(number: int) -> Head | None:
        shard = layout.shard_of(number)
        members = opened.indexes[shard].members[one.extension]
        if members.codes is None:
            return None
        return members.heads[int(members.codes[number - opened.starts[shard]])]

    return WholeSource(one, raw, head_of)


def starts_of(indexes: Sequence[ShardIndex]) -> list[int]:
    """Give shard -> its first sequence; one more than shards."""
    return [0, *itertools.accumulate(map(len, indexes))]


def ids_of(location: str, indexes: Sequence[ShardIndex], names: Sequence[str]) -> TextSource:
    """Give the keys of all samples, from the indexes."""
    layout = Layout(location, names, starts_of(indexes), {})
    return TextSource.of(
        "__key__", Field("str", (), None), layout, [one.keys for one in indexes],
        [one.key_ends for one in indexes],
    )  # fmt: skip
