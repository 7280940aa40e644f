"""The fields of a store of files: their axes, lengths, checksums and sources, from the indexes.

Place in the flow: opening makes them, shards on demand ask them. Reads: indexes, files. Makes:
fields of all files, or of one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError
from seqdata.index import DEFAULT_AXIS
from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource, IndexedValues
from seqdata.storage.data_location import DropFn, ShardLayout, narrow_lengths, quote
from seqdata.storage.decoded_source import DecodedColumn, DecodedSource, UnitCache
from seqdata.storage.fields import RAW, TEXT, ShardExtents, field_width
from seqdata.storage.indexed.indexed_format import IndexedField
from seqdata.storage.indexed.opened_files import OpenedFiles, shard_offsets_of
from seqdata.storage.indexed.shard_index import (
    FieldIndex,
    NumberedIds,
    ShardIndex,
    add_ids,
    join_ids,
)
from seqdata.storage.indexed.shards import MANY
from seqdata.storage.integrity.verify import FieldChecksums
from seqdata.storage.shared_memory import SharedBits
from seqdata.storage.store import FieldSource, StoreFields
from seqdata.storage.text_bytes import TextSource

CACHED_BYTES = 32 << 20
"""Maximum decoded bytes to keep per field; a single value may be larger."""
CACHED = 256
"""Maximum number of decoded values to keep per field."""
MeasureLengths = Callable[
    [IndexedField, Callable[[int], Callable[[int], int]], list[int]], NDArray[np.int64]
]
"""``measure(field, open_file, counts)`` returns the timesteps of values, by decoding them.

``open_file(shard)`` returns a function from the index of a sequence in the file to its timesteps.
"""
_NONE = np.empty(0, dtype=np.int64)
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FileFields:
    """The fields of a store of files: ``ShardFields``, where some are behind URLs.

    Attributes:
        files: The files.
        indexed_fields: The fields, with their axes.
        layout: The files and lengths of sequences.
        extents: Name of values in indexes -> their extents, for each file.
        checksums: Name of values in indexes -> their checksums.
        bits: The bits of verified checksums, for first_read.
    """

    files: OpenedFiles
    indexed_fields: Mapping[str, IndexedField]
    layout: ShardLayout
    extents: Mapping[str, Sequence[ShardExtents]]
    checksums: Mapping[str, FieldChecksums]
    bits: SharedBits | None

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return {name: indexed.field for name, indexed in self.indexed_fields.items()}

    @property
    def ids(self) -> TextSource:
        """The ids of sequences, from the indexes."""
        return self.files.ids

    def opens_for_texts(self, number: int) -> bool:
        """Return True: strings are read as any other field."""
        del number
        return True

    def build_fields(
        self, shards: range, contents: Sequence[Any], drop: DropFn, *, reuses_bits: bool = True
    ) -> StoreFields:
        """Return the fields over the bytes of some files; see ``ShardFields``."""
        layout = self.layout.select(shards, drop)
        checksums = {name: each.select(shards) for name, each in self.checksums.items()}
        if not reuses_bits:
            checksums = {name: replace(each, bits=None) for name, each in checksums.items()}
        sources = {
            name: _make_source(
                self.files, shards, layout, indexed, contents,
                self.extents[indexed.member][shards.start : shards.stop],
                checksums.get(indexed.member),
            )
            for name, indexed in self.indexed_fields.items()
        }  # fmt: skip
        return StoreFields(layout, sources, None)

    def map_all(self) -> StoreFields:
        """Return the fields over all files, which are mapped now."""
        files = range(len(self.files.shards))
        contents = list(map(self.files.content, files))
        return replace(self.build_fields(files, contents, self.files.drop_copy), ids=self.ids)


def make_file_fields(
    files: OpenedFiles,
    indexed_fields: Sequence[IndexedField],
    bits: SharedBits | None,
    measure_lengths: MeasureLengths,
    digest: str,
) -> FileFields:
    """Return the fields of files.

    Args:
        files: The files.
        indexed_fields: The fields, as the format gives them.
        bits: The bits of the process that sent the store here.
        measure_lengths: Counts timesteps of values that must be decoded for it.
        digest: The digest that the bits belong to.

    Raises:
        DecodeError: If a sequence has no value of a field, or lengths do not fit together.
    """
    extents = {indexed.member: _make_extents(files, indexed) for indexed in indexed_fields}
    checksums, bits = _make_checksums(files, list(extents), bits, digest)
    bare = ShardLayout(
        files.location, files.names, files.starts, {}, files.locate_shard, files.find_id
    )

    def open_values(indexed: IndexedField, shard: int) -> Callable[[int], int]:
        verified, one = checksums.get(indexed.member), range(shard, shard + 1)
        its_extents = extents[indexed.member][shard]
        source = _make_decoded(
            one, bare.select(one, files.drop_copy), indexed,
            (files.read_extents(shard, its_extents),), [its_extents],
            None if verified is None else verified.select(one),
        )  # fmt: skip
        return lambda at: len(source.decode(at).values)

    counts = [len(index) for index in files.indexes]
    lengths = {
        indexed.name: measure_lengths(indexed, partial(open_values, indexed), counts)
        if indexed.lengths is None
        else indexed.lengths
        for indexed in indexed_fields
        if indexed.field.axis is not None
    }
    fields, lengths_of = assign_axes(files, indexed_fields, lengths, bare)
    layout = replace(
        bare, lengths_of={axis: narrow_lengths(lengths) for axis, lengths in lengths_of.items()}
    )
    by_name = {
        indexed.name: replace(indexed, field=fields[indexed.name]) for indexed in indexed_fields
    }
    return FileFields(
        files=files, indexed_fields=by_name, layout=layout, extents=extents, checksums=checksums,
        bits=bits,
    )  # fmt: skip


def _make_extents(files: OpenedFiles, field: IndexedField) -> list[ShardExtents]:
    """Return the extents of a field.

    Raises:
        DecodeError: If a sequence has no value.
    """
    extents: list[ShardExtents] = []
    member = field.member
    for i, index in enumerate(files.indexes):
        members = index.members.get(member)
        if (
            members is not None and len(members.begins) == 1 and members.begins[0] >= 0
        ):  # one of many files
            extents.append(members.extents)
            continue
        missing = np.ones(len(index), dtype=bool) if members is None else members.begins < 0
        if missing.any() and (members is None or members.values is None):
            number = files.starts[i] + int(np.argmax(missing))
            key = files.ids.take([number])[0]
            raise replace(files.locate_shard(i), sequence=number, key=key).make_error(
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
        return f"Leave the field out with `schema={{{field.member!r}: None}}`"
    return "Open it with a format that leaves the field out"


def _make_checksums(
    files: OpenedFiles, members: Sequence[str], bits: SharedBits | None, digest: str
) -> tuple[dict[str, FieldChecksums], SharedBits | None]:
    """Return the checksums of each field, and the bits of all."""
    if files.verify == "off":
        return {}, None
    checksums: dict[str, FieldChecksums] = {}
    count, first = 0, files.indexes[0]
    for member in members:
        field_indexes = [index.members.get(member) for index in files.indexes]
        sums = [
            np.empty(0, np.uint32) if members is None else members.sums for members in field_indexes
        ]
        firsts = [None if members is None else members.firsts for members in field_indexes]
        edges = [count, *itertools.accumulate(map(len, sums), initial=count)][1:]
        checksums[member] = FieldChecksums(
            first.algorithm, first.block, tuple(sums), tuple(firsts),
            tuple(f"index of {name}" for name in files.names), None, tuple(edges[:-1]), None,
        )  # fmt: skip
        count = edges[-1]
    if files.verify == "always":
        return checksums, None
    bits = SharedBits.reuse(bits, count, digest)
    return {name: replace(each, bits=bits.buffer) for name, each in checksums.items()}, bits


def _make_source(
    files: OpenedFiles,
    shards: range,
    layout: ShardLayout,
    indexed: IndexedField,
    contents: Sequence[NDArray[np.uint8]],
    extents: Sequence[ShardExtents],
    checksums: FieldChecksums | None,
) -> FieldSource:
    """Return the source of a field over the bytes of some files."""
    if indexed.access == "decode":
        return _make_decoded(shards, layout, indexed, contents, extents, checksums)
    raw = BufferSource.from_files(
        indexed.name, RAW if indexed.access == "values" else indexed.field, layout, contents,
        extents, checksums,
    )  # fmt: skip
    if indexed.access != "values":
        return raw if indexed.advice is None else replace(raw, advice=indexed.advice)
    members = [files.indexes[shard].members.get(indexed.member) for shard in shards]
    values = [_get_indexed_values(member) for member in members if member is not None]
    return IndexedValues.from_index(indexed.name, indexed.field, layout, values, raw)


def _get_indexed_values(members: FieldIndex) -> NDArray[Any]:
    if members.values is not None:
        return members.values
    return _NONE if members.numbers is None else members.numbers


def _make_decoded(
    shards: range,
    layout: ShardLayout,
    indexed: IndexedField,
    contents: Sequence[NDArray[np.uint8]],
    extents: Sequence[ShardExtents],
    checksums: FieldChecksums | None,
) -> DecodedSource:
    """Return the source of a field that is decoded sequence by sequence."""
    raw = BufferSource.from_files(indexed.name, RAW, layout, contents, extents, checksums)
    starts = np.array(layout.shard_offsets)

    def find_file(number: int) -> tuple[int, int]:
        shard = int(np.searchsorted(starts, number, side="right")) - 1
        return shards[shard], number - int(starts[shard])

    return make_decoded(indexed, raw, find_file)


def make_decoded(
    indexed: IndexedField, raw: BufferSource, find_file: Callable[[int], tuple[int, int]]
) -> DecodedSource:
    """Return the source of values that are decoded from their bytes.

    Args:
        indexed: The field, with its decoder.
        raw: The source of the bytes.
        find_file: ``find_file(number)`` returns the file of a sequence, and its index in it.
    """

    def decode(number: int) -> DecodedColumn:
        content, _ = raw.read_bytes(np.array([number], dtype=np.int64))
        location = raw.layout.locate(number, indexed.name, raw.find(number)[1], len(content))
        if indexed.decode is None:
            raise location.make_error(
                DecodeError,
                "must have a decoder, but has none. Report it to the author of the format",
            )
        shard, at = find_file(number)
        values = indexed.decode(content, shard, at, location).view()
        values.flags.writeable = False  # it is kept, and pieces are views of it
        return DecodedColumn(values, np.array([0, len(values)]))

    return DecodedSource(
        indexed.name, indexed.field, raw.layout, decode, UnitCache(CACHED_BYTES, CACHED), raw
    )


def make_ids(location: str, indexes: Sequence[ShardIndex], names: Sequence[str]) -> TextSource:
    """Return the ids of all sequences, from the indexes."""
    if all(index.is_numbered for index in indexes):
        return NumberedIds(location, names, shard_offsets_of(indexes))
    indexes = [add_ids(index) for index in indexes]
    if len(indexes) > MANY:
        keys, ends = join_ids(indexes)
        layout = ShardLayout(location, ("ids",), [0, len(ends) - 1], {})
        return BufferSource.from_arrays("__key__", TEXT, layout, [keys], [ends])
    layout = ShardLayout(location, names, shard_offsets_of(indexes), {})
    return BufferSource.from_arrays(
        "__key__", TEXT, layout, [index.keys for index in indexes],
        [index.key_ends for index in indexes],
    )  # fmt: skip


def assign_axes(
    files: OpenedFiles,
    indexed_fields: Sequence[IndexedField],
    counted: Mapping[str, NDArray[np.int64]],
    layout: ShardLayout,
) -> tuple[dict[str, Field], dict[str, NDArray[np.int64]]]:
    """Return fields with their axes, and the lengths along each axis.

    Fields with the lengths of the first one run along ``time``, others along axes of their own.

    Raises:
        DecodeError: If fields with the same named axis have different lengths.
    """
    fields: dict[str, Field] = {}
    lengths_of: dict[str, NDArray[np.int64]] = {}
    # named axes come first
    for indexed in sorted(indexed_fields, key=lambda indexed: not indexed.is_named):
        fields[indexed.name] = indexed.field
        if indexed.field.axis is None:
            if indexed.access == "place":
                _check_one_each(files, indexed)
            continue
        lengths, axis = counted[indexed.name], indexed.field.axis
        if axis not in lengths_of:
            lengths_of[axis] = lengths
            continue
        differing = np.flatnonzero(lengths_of[axis] != lengths)
        if len(differing) and indexed.is_named:
            number = int(differing[0])
            raise layout.locate(number, indexed.name).make_error(
                DecodeError,
                f"must have {lengths_of[axis][number]} timesteps like another field along axis "
                f"{axis!r}, but has {lengths[number]}. Give it an axis of its own: "
                f"axis={_make_axis_name(indexed.name, lengths_of)!r}; or, if it has one value per "
                "sequence, none: axis=None",
                expected=int(lengths_of[axis][number]), found=int(lengths[number]),
            )  # fmt: skip
        if len(differing):
            own = _make_axis_name(indexed.name, lengths_of)
            fields[indexed.name] = replace(indexed.field, axis=own)
            lengths_of[own] = lengths
    ordered = {indexed.name: fields[indexed.name] for indexed in indexed_fields}
    if DEFAULT_AXIS in lengths_of:
        lengths_of = {DEFAULT_AXIS: lengths_of[DEFAULT_AXIS], **lengths_of}
    return ordered, lengths_of


def _make_axis_name(name: str, existing: Mapping[str, object]) -> str:
    """Return a name for an axis after its field: ``text`` for ``text.npy``."""
    short = _NO_NAME.sub("_", name.rpartition(".")[0] or name)
    return _NO_NAME.sub("_", name) if short in existing else short


def _check_one_each(files: OpenedFiles, field: IndexedField) -> None:
    """Raise if the values of a field without an axis differ in size."""
    width = field_width(field.field)
    for i, index in enumerate(files.indexes):
        members = index.members.get(field.member)
        if members is None:
            continue
        bad = np.flatnonzero(members.sizes != width)
        if len(bad):
            at = int(bad[0])
            raise files.place(i, members, field.name, at).make_error(
                DecodeError,
                f"must have {width} bytes for {field.field.dtype} {list(field.field.shape)} per "
                f"sequence, but has {members.sizes[at]}. Correct `schema`",
                expected=width, found=int(members.sizes[at]),
            )  # fmt: skip
