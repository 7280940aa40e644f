"""The sources of a store's fields, created from the indexes of files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DataError, DecodeError
from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import ShardLayout, narrow_lengths, quote
from seqdata.storage.fields import RAW, TEXT, ShardExtents
from seqdata.storage.indexed.catalogs import MANY, add_ids, join_ids
from seqdata.storage.indexed.decoded_values import DecodedValues
from seqdata.storage.indexed.field_axes import OpenedFiles, assign_axes
from seqdata.storage.indexed.indexed_format import IndexedField
from seqdata.storage.indexed.indexed_values import IndexedValues
from seqdata.storage.indexed.shard_index import FieldIndex, NumberedIds, ShardIndex
from seqdata.storage.integrity.verify import FieldChecksums
from seqdata.storage.remote.copy_repair import CopyRepair, RepairFn
from seqdata.storage.shared_memory import SharedBits
from seqdata.storage.store import FieldSource, StoreFields
from seqdata.storage.text_bytes import TextSource

Survey = Callable[[IndexedField, Callable[[int], DecodedValues], list[int]], NDArray[np.int64]]
"""Returns the timesteps of a field by decoding it: ``survey(field, source_of_file, counts)``."""
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FileFields:
    """The fields of a store of files, with their sources.

    Attributes:
        fields: Name -> field.
        layout: The files and lengths of sequences.
        sources: Field -> its source; empty if files are opened on demand.
        open_file: ``open_file(number, content, repair)`` returns the fields of one file.
            ``repair`` downloads ranges again, which are then verified whatever the bits say; None:
            the file was not read by ranges.
        ids: The ids of the sequences.
        indexes: Of the files.
        verify: When checksums are compared.
        bits: The bits of verified checksums, for first_read.
    """

    fields: Mapping[str, Field]
    layout: ShardLayout
    sources: Mapping[str, FieldSource]
    open_file: Callable[[int, NDArray[np.uint8], RepairFn | None], StoreFields]
    ids: TextSource
    indexes: Sequence[ShardIndex]
    verify: str
    bits: SharedBits | None


def make_file_fields(
    opened: OpenedFiles,
    indexed_fields: Sequence[IndexedField],
    bits: SharedBits | None,
    survey: Survey,
    digest: str,
) -> FileFields:
    """Return the sources of all fields.

    Args:
        opened: The files.
        indexed_fields: The fields.
        bits: The bits of the process that sent the store here.
        survey: Counts timesteps of values that must be decoded for it.
        digest: The digest that the bits belong to.

    Raises:
        DecodeError: If a sequence has no value of a field, or lengths do not fit together.
    """
    extents = {field.member: _make_extents(opened, field) for field in indexed_fields}
    checks, bits = _make_checks(opened, list(extents), bits, digest)
    bare = ShardLayout(
        opened.location, opened.names, opened.starts, {}, opened.file_of, _make_key_of(opened)
    )
    lengths = {
        field.name: _count_timesteps(opened, bare, field, extents[field.member], checks, survey)
        if field.lengths is None
        else field.lengths
        for field in indexed_fields
        if field.field.axis is not None
    }
    fields, lengths_of = assign_axes(opened, indexed_fields, lengths, bare)
    layout = replace(
        bare, lengths_of={axis: narrow_lengths(lengths) for axis, lengths in lengths_of.items()}
    )
    by_name = {field.name: replace(field, field=fields[field.name]) for field in indexed_fields}
    sources: dict[str, FieldSource] = {}
    if opened.content is not None:
        sources = {
            field.name: _make_source(opened, layout, field, extents[field.member], checks, 0)
            for field in by_name.values()
        }

    def open_file(shard: int, content: NDArray[np.uint8], again: RepairFn | None) -> StoreFields:
        file, where = _select_file(opened, layout, shard, content, again)
        sums = _get_checks(checks, shard)
        if again is not None:  # verify whatever the bits say
            sums = {member: replace(checksums, bits=None) for member, checksums in sums.items()}
        found = {
            name: _make_source(file, where, field, [extents[field.member][shard]], sums, shard)
            for name, field in by_name.items()
        }
        return StoreFields(where, found, None)

    return FileFields(
        fields=fields, layout=layout, sources=sources, open_file=open_file, ids=opened.ids,
        indexes=opened.indexes, verify=opened.verify, bits=bits,
    )  # fmt: skip


def _count_timesteps(
    opened: OpenedFiles,
    layout: ShardLayout,
    field: IndexedField,
    extents: Sequence[ShardExtents],
    checks: Mapping[str, FieldChecksums],
    survey: Survey,
) -> NDArray[np.int64]:
    """Return the timesteps of each sequence of a field, int64 (sequences,), by decoding it."""

    def open_values(shard: int) -> DecodedValues:
        content = opened.hold(shard, extents[shard])
        files, where = _select_file(opened, layout, shard, content)
        return _make_decoded(
            files, where, field, [extents[shard]], _get_checks(checks, shard), shard
        )

    return survey(field, open_values, [len(index) for index in opened.indexes])


def _select_file(
    opened: OpenedFiles,
    layout: ShardLayout,
    shard: int,
    content: NDArray[np.uint8],
    repair: RepairFn | None = None,
) -> tuple[OpenedFiles, ShardLayout]:
    """Return one file as a data set of its own; errors keep the store's numbers."""
    repair = repair or partial(opened.repair_copy, shard, content)
    first, stop = opened.starts[shard : shard + 2]
    place, key_of = opened.file_of(shard), layout.find_id
    opened_file = replace(
        opened, names=opened.names[shard : shard + 1], indexes=opened.indexes[shard : shard + 1],
        content=(content,), starts=[0, stop - first], file_of=lambda _: place,
    )  # fmt: skip
    lengths_of = {axis: lengths[first:stop] for axis, lengths in layout.lengths_of.items()}
    where = replace(
        layout,
        shards=opened_file.names,
        shard_offsets=opened_file.starts,
        lengths_of=lengths_of,
        first_sequence=first,
        locate_shard=opened_file.file_of,
        repair=CopyRepair([repair]),
        find_id=None if key_of is None else lambda number: key_of(first + number),
    )
    return opened_file, where


def _get_checks(checks: Mapping[str, FieldChecksums], shard: int) -> dict[str, FieldChecksums]:
    return {
        name: replace(
            checksums, values=(checksums.values[shard],), offsets=(checksums.offsets[shard],),
            files=(checksums.files[shard],), bit_offsets=(checksums.bit_offsets[shard],),
        )
        for name, checksums in checks.items()
    }  # fmt: skip


def _make_key_of(opened: OpenedFiles) -> Callable[[int], str | None]:
    def key_of(number: int) -> str | None:
        try:
            return str(opened.ids.take([number])[0]) if opened.ids.is_readable(number) else None
        except DataError:  # an error is being raised already; the id is optional
            return None

    return key_of


def _make_extents(opened: OpenedFiles, field: IndexedField) -> list[ShardExtents]:
    """Return the extents of a field.

    Raises:
        DecodeError: If a sequence has no value.
    """
    extents: list[ShardExtents] = []
    member = field.member
    for i, index in enumerate(opened.indexes):
        members = index.members.get(member)
        if (
            members is not None and len(members.begins) == 1 and members.begins[0] >= 0
        ):  # one of many files
            extents.append(members.extents)
            continue
        missing = np.ones(len(index), dtype=bool) if members is None else members.begins < 0
        if missing.any() and (members is None or members.values is None):
            number = opened.starts[i] + int(np.argmax(missing))
            key = opened.ids.take([number])[0]
            raise replace(opened.file_of(i), sequence=number, key=key).make_error(
                DecodeError,
                f"must have a value of field {quote(member)} as the others, but "
                f"{int(missing.sum())} sequences of the file have none. "
                f"{_advise_leaving_out(field)}, or write the file again",
            )
        extents.append((_NONE, _NONE) if members is None else members.extents)
    return extents


def _advise_leaving_out(field: IndexedField) -> str:
    """Return the advice to open files without a field; few formats take a `schema`."""
    if field.is_chosen_by_schema:
        return f"Leave the field out with `schema`={{{field.member!r}: None}}"
    return "Open it with a format that leaves the field out"


def _make_checks(
    opened: OpenedFiles, members: Sequence[str], bits: SharedBits | None, digest: str
) -> tuple[dict[str, FieldChecksums], SharedBits | None]:
    """Return the checksums of each field, and the bits of all."""
    if opened.verify == "off":
        return {}, None
    checks: dict[str, FieldChecksums] = {}
    count, first = 0, opened.indexes[0]
    for member in members:
        field_indexes = [index.members.get(member) for index in opened.indexes]
        sums = [
            np.empty(0, np.uint32) if members is None else members.sums for members in field_indexes
        ]
        firsts = [None if members is None else members.firsts for members in field_indexes]
        edges = [count, *itertools.accumulate(map(len, sums), initial=count)][1:]
        checks[member] = FieldChecksums(
            first.algorithm, first.block, tuple(sums), tuple(firsts),
            tuple(f"index of {name}" for name in opened.names), None, tuple(edges[:-1]), None,
        )  # fmt: skip
        count = edges[-1]
    if opened.verify == "always":
        return checks, None
    if bits is None or (bits.count, bits.fingerprint) != (count, digest):
        bits = SharedBits(count, digest)
    return {name: replace(checksums, bits=bits.buffer) for name, checksums in checks.items()}, bits


def _make_source(
    opened: OpenedFiles,
    layout: ShardLayout,
    field: IndexedField,
    extents: Sequence[ShardExtents],
    checks: Mapping[str, FieldChecksums],
    first: int,
) -> FieldSource:
    found, files = checks.get(field.member), opened.content or ()
    if field.access == "place":
        return BufferSource.over(field.name, field.field, layout, files, extents, found)
    if field.access == "decode":
        return _make_decoded(opened, layout, field, extents, checks, first)
    stored_field = field.field if field.access == "text" else RAW
    raw = BufferSource.over(field.name, stored_field, layout, files, extents, found)
    if field.access == "text":
        return raw if field.advice is None else replace(raw, advice=field.advice)
    field_indexes = [index.members.get(field.member) for index in opened.indexes]
    values = [_get_indexed_values(members) for members in field_indexes if members is not None]
    return IndexedValues.of(field.name, field.field, layout, values, raw)


def _get_indexed_values(members: FieldIndex) -> NDArray[Any]:
    if members.values is not None:
        return members.values
    return _NONE if members.numbers is None else members.numbers


def _make_decoded(
    opened: OpenedFiles,
    layout: ShardLayout,
    field: IndexedField,
    extents: Sequence[ShardExtents],
    checks: Mapping[str, FieldChecksums],
    first: int,
) -> DecodedValues:
    """Return the source of a field that is decoded; ``first`` is the first file's number."""
    files = opened.content or ()
    raw = BufferSource.over(field.name, RAW, layout, files, extents, checks.get(field.member))
    return DecodedValues(field, raw, first)


def shard_offsets_of(indexes: Sequence[ShardIndex]) -> list[int]:
    """Return file -> its first sequence, with the total at the end."""
    return [0, *itertools.accumulate(map(len, indexes))]


def make_ids(location: str, indexes: Sequence[ShardIndex], names: Sequence[str]) -> TextSource:
    """Return the ids of all sequences, from the indexes."""
    if all(index.is_numbered for index in indexes):
        return NumberedIds(location, names, shard_offsets_of(indexes))
    indexes = [add_ids(index) for index in indexes]
    if len(indexes) > MANY:
        keys, ends = join_ids(indexes)
        layout = ShardLayout(location, ("ids",), [0, len(ends) - 1], {})
        return BufferSource.of("__key__", TEXT, layout, [keys], [ends])
    layout = ShardLayout(location, names, shard_offsets_of(indexes), {})
    return BufferSource.of(
        "__key__", TEXT, layout, [index.keys for index in indexes],
        [index.key_ends for index in indexes],
    )  # fmt: skip
