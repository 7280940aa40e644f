"""The axes of fields, and the lengths of sequences along them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError
from seqdata.index import DEFAULT_AXIS
from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.fields import ShardExtents, field_width
from seqdata.storage.indexed.shard_index import FieldIndex, ShardIndex
from seqdata.storage.text_bytes import TextSource

if TYPE_CHECKING:
    from seqdata.storage.indexed.indexed_format import IndexedField

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OpenedFiles:
    """Open files and their indexes.

    Attributes:
        location: Their location.
        names: Of the files.
        indexes: Of each.
        hold: Returns the bytes of a file, uint8, in which at least the given extents are present.
        content: The bytes of each file, uint8; None: files are opened on demand.
        verify: When checksums are compared: off, first_read or always.
        ids: The ids of all sequences.
        starts: File -> its first sequence, with the total at the end.
        file_of: File -> its location.
        repair_copy: Compares the local copy of a file with its source, and repairs it.
    """

    location: str
    names: Sequence[str]
    indexes: Sequence[ShardIndex]
    hold: Callable[[int, ShardExtents], NDArray[np.uint8]]
    content: tuple[NDArray[np.uint8], ...] | None
    verify: str
    ids: TextSource
    starts: list[int]
    file_of: Callable[[int], DataLocation]
    repair_copy: Callable[[int, NDArray[np.uint8]], bool]

    def place(self, shard: int, members: FieldIndex, name: str, at: int | None) -> DataLocation:
        """Return the location of a value for an error; of the first one if ``at`` is None.

        Args:
            shard: Number of the file.
            members: The index of the field in it.
            name: Name of the field.
            at: Number of the sequence in the file.
        """
        if at is None:
            at = int(np.argmax(members.begins >= 0)) if len(members.begins) else 0
        number = self.starts[shard] + at
        key = self.ids.take([number])[0] if len(members.begins) else None
        offset = int(members.begins[at]) if len(members.begins) else 0
        return replace(self.file_of(shard), sequence=number, key=key, field=name, offset=offset)

    def locate(self, number: int, member: str, name: str) -> DataLocation:
        """Return the location of a sequence's value for an error."""
        shard = int(np.searchsorted(np.array(self.starts), number, side="right")) - 1
        members = self.indexes[shard].members[member]
        return self.place(shard, members, name, number - self.starts[shard])


def assign_axes(
    opened: OpenedFiles,
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
    for field in sorted(indexed_fields, key=lambda field: not field.is_named):
        fields[field.name] = field.field
        if field.field.axis is None:
            if field.access == "place":
                _check_one_each(opened, field)
            continue
        lengths, axis = counted[field.name], field.field.axis
        if axis not in lengths_of:
            lengths_of[axis] = lengths
            continue
        differing = np.flatnonzero(lengths_of[axis] != lengths)
        if len(differing) and field.is_named:
            number = int(differing[0])
            raise layout.locate(number, field.name).make_error(
                DecodeError,
                f"must have {lengths_of[axis][number]} timesteps as another field along axis "
                f"{axis!r}, but has {lengths[number]}. Give it an axis of its own: "
                f"axis={_make_axis_name(field.name, lengths_of)!r}; or, if it has one value per "
                "sequence, none: axis=None",
                expected=int(lengths_of[axis][number]), found=int(lengths[number]),
            )  # fmt: skip
        if len(differing):
            own = _make_axis_name(field.name, lengths_of)
            fields[field.name] = replace(field.field, axis=own)
            lengths_of[own] = lengths
    ordered = {field.name: fields[field.name] for field in indexed_fields}
    if DEFAULT_AXIS in lengths_of:
        lengths_of = {DEFAULT_AXIS: lengths_of[DEFAULT_AXIS], **lengths_of}
    return ordered, lengths_of


def _make_axis_name(name: str, existing: Mapping[str, object]) -> str:
    """Return a name for an axis after its field: ``text`` for ``text.npy``."""
    short = _NO_NAME.sub("_", name.rpartition(".")[0] or name)
    return _NO_NAME.sub("_", name) if short in existing else short


def _check_one_each(opened: OpenedFiles, field: IndexedField) -> None:
    """Raise if the values of a field without an axis differ in size."""
    width = field_width(field.field)
    for i, index in enumerate(opened.indexes):
        members = index.members.get(field.member)
        if members is None:
            continue
        bad = np.flatnonzero(members.sizes != width)
        if len(bad):
            at = int(bad[0])
            raise opened.place(i, members, field.name, at).make_error(
                DecodeError,
                f"must have {width} bytes for {field.field.dtype} {list(field.field.shape)} per "
                f"sequence, but has {members.sizes[at]}. Correct `schema`",
                expected=width, found=int(members.sizes[at]),
            )  # fmt: skip
