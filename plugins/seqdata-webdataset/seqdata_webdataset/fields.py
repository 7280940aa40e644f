"""From the indexes of shards to the sources of a store's fields.

Place in the flow: opening makes it, the store reads by it. Reads: indexes, mapped shards. Makes:
lengths, sources, checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DataError, DecodeError
from seqdata.protocols import Field
from seqdata.storage.columns import Layout
from seqdata.storage.data_location import quoted
from seqdata.storage.fields import field_width
from seqdata.storage.integrity.verified_bitmap import SharedBits
from seqdata.storage.integrity.verify import Checks
from seqdata.storage.lengths import narrow
from seqdata.storage.remote.copy_repair import Look, Mending
from seqdata.storage.text_source import TextSource
from seqdata_webdataset.array_headers import Head
from seqdata_webdataset.kept_numbers import NumberSource
from seqdata_webdataset.lengths import Opened, axes_of_fields, place_of, steps_of
from seqdata_webdataset.placed import PlacedSource, PlacedTexts, Runs, doubled
from seqdata_webdataset.schema import Extension, Wanted
from seqdata_webdataset.shard_index import ShardIndex
from seqdata_webdataset.whole import WholeSource

Survey = Callable[[Wanted, Callable[[int], WholeSource], list[int]], NDArray[np.int64]]
"""Gives the timesteps of a field that must be decoded for it, of shards with so many sequences."""
FieldSource = NumberSource | PlacedSource | PlacedTexts | WholeSource
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Made:
    """What a store consists of.

    Attributes:
        fields: Name -> field.
        layout: Where sequences lie, with lengths.
        sources: Field -> its source; empty where shards are asked for one by one.
        part: Gives field -> its source of one shard: of its number, its bytes, the fields that
            are wanted (None: all), and what brings the bytes again that came by ranges (None: they
            came otherwise), which were found right by nobody yet.
        ids: The keys.
        indexes: Of the shards.
        verify: When checksums are looked at.
        bits: Those that say what was found right, for first_read.
    """

    fields: Mapping[str, Field]
    layout: Layout
    sources: Mapping[str, FieldSource]
    part: Callable[
        [int, NDArray[np.uint8], Iterable[str] | None, Look | None], Mapping[str, FieldSource]
    ]
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
    place = place_of(opened, shard, first, name, None)
    for i, one in having:
        for code, head in enumerate(one.heads):
            if head.kind == "bad" and one.codes is not None:
                place = place_of(opened, i, one, name, int(np.flatnonzero(one.codes == code)[0]))
    told = opened.indexes[shard].told.get(name)
    return Extension(
        name, tuple(heads), all(one.numbers is not None for _, one in having) and not heads, place,
        None if told is None else (told[0], Field(*told[1:])),
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
    counts = [len(index) for index in opened.indexes]
    counted: dict[str, NDArray[np.int64]] = {}
    for one in wanted:
        if one.field.axis is not None:
            steps = steps_of(opened, one, runs[one.extension])
            if steps is None:

                def alone(shard: int, one: Wanted = one) -> WholeSource:
                    mine = _runs_of(runs, one, shard)
                    few = _alone(opened, bare, shard, opened.hold(shard, mine))
                    return _whole(*few, one, mine, _checks_of(checks, shard))

                steps = survey(one, alone, counts)
            counted[one.name] = steps
    fields, lengths_of = axes_of_fields(opened, wanted, counted, bare)
    layout = replace(bare, lengths_of={axis: narrow(one) for axis, one in lengths_of.items()})
    settled = [replace(one, field=fields[one.name]) for one in wanted]
    by_name = {one.name: one for one in settled}
    sources: dict[str, FieldSource] = {}
    if opened.content is not None:
        sources = {
            one.name: _source(opened, layout, one, runs[one.extension], checks) for one in settled
        }

    def part(
        shard: int, content: NDArray[np.uint8], names: Iterable[str] | None, again: Look | None
    ) -> Mapping[str, FieldSource]:
        few, where = _alone(opened, layout, shard, content, again)
        mine = _checks_of(checks, shard)
        if again is not None:  # whatever the bits say
            mine = {extension: replace(one, bits=None) for extension, one in mine.items()}
        asked = settled if names is None else [by_name[name] for name in names]
        return {
            one.name: _source(few, where, one, _runs_of(runs, one, shard), mine) for one in asked
        }

    return Made(
        fields=fields, layout=layout, sources=sources, part=part, ids=opened.ids,
        indexes=opened.indexes, verify=opened.verify, bits=bits,
    )  # fmt: skip


def _alone(
    opened: Opened, layout: Layout, shard: int, content: NDArray[np.uint8], look: Look | None = None
) -> tuple[Opened, Layout]:
    """Give one shard as if it were all; errors count as before."""
    look = look or partial(opened.mend, shard, content)
    first, stop = opened.starts[shard : shard + 2]
    place, key_of = opened.file_of(shard), layout.key_of
    few = replace(
        opened, names=opened.names[shard : shard + 1], indexes=opened.indexes[shard : shard + 1],
        content=(content,), starts=[0, stop - first], file_of=lambda _: place,
    )  # fmt: skip
    lengths_of = {axis: one[first:stop] for axis, one in layout.lengths_of.items()}
    where = replace(
        layout, shards=few.names, starts=few.starts, lengths_of=lengths_of, first=first,
        file_of=few.file_of, mend=Mending([look]),
        key_of=None if key_of is None else lambda number: key_of(first + number),
    )  # fmt: skip
    return few, where


def _runs_of(runs: Mapping[str, Runs], one: Wanted, shard: int) -> Runs:
    whole = runs[one.extension]
    return Runs((whole.begins[shard],), (whole.sizes[shard],))


def _checks_of(checks: Mapping[str, Checks], shard: int) -> dict[str, Checks]:
    return {
        name: replace(
            one, sums=(one.sums[shard],), firsts=(one.firsts[shard],),
            files=(one.files[shard],), begins=(one.begins[shard],),
        )
        for name, one in checks.items()
    }  # fmt: skip


def _keys(opened: Opened) -> Callable[[int], str | None]:
    def key_of(number: int) -> str | None:
        try:
            return str(opened.ids.take([number])[0]) if opened.ids.is_there(number) else None
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


def _source(
    opened: Opened, layout: Layout, one: Wanted, runs: Runs, checks: Mapping[str, Checks]
) -> FieldSource:
    found = checks.get(one.extension)
    if one.how in ("number", "text"):
        raw = PlacedSource.of(one.name, _BYTES, layout, opened.content or (), runs, found)
        if one.how == "text":
            return PlacedTexts(raw, one.field)
        having = [index.members.get(one.extension) for index in opened.indexes]
        numbers = [_NONE if members is None else members.numbers for members in having]
        there = [each for each in numbers if each is not None]
        return NumberSource.of(one.name, one.field, layout, there, raw)
    aligned = one.how == "place" and not (
        runs.unit(field_width(one.field)) % np.dtype(one.field.dtype).itemsize
    )
    if aligned:
        return PlacedSource.of(one.name, one.field, layout, opened.content or (), runs, found)
    return _whole(opened, layout, one, runs, checks)


_BYTES = Field("bytes", (), None)


def _whole(
    opened: Opened, layout: Layout, one: Wanted, runs: Runs, checks: Mapping[str, Checks]
) -> WholeSource:
    raw = PlacedSource.of(
        one.name, _BYTES, layout, opened.content or (), runs, checks.get(one.extension)
    )

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
