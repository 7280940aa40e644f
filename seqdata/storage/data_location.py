"""Locations in stored data, as text for messages and as details of errors.

Every error about data is created by a ``DataLocation``, so that all of them read alike: dataset,
shard and file, sequence and id, field, bytes, and, if there is one, the command that checks the
rest of the shard. A ``ShardLayout`` finds the location of a sequence, and has lengths in the
smallest integers that hold them.
"""

from __future__ import annotations

import json
import shlex
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import REMEDY, ConfigError, Detail, SeqDataError

_MAX_LOCATION_CHARS = 2_000  # characters in a message, of a dataset that may be very many files
_MAX_ID_CHARS = 80  # characters in a message; the details have all
ErrorT = TypeVar("ErrorT", bound=SeqDataError)
_UINT32_VALUES = 1 << 32
DropFn = Callable[[int], str | None]
"""Drops the fetched copy of a shard, which is damaged; returns a line about it for an error, or
None if the shard is not a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLocation:
    """A location in a dataset; None means unknown or not applicable.

    Attributes:
        dataset: Location of the dataset.
        shard: Index of the file in the dataset.
        file: Name of the file.
        file_kind: Role of a file that is not a shard, such as ``manifest``.
        axis: Axis of a file of lengths.
        unit: Index of a record batch or row group, if the file has several.
        sequence: Index of the sequence in the base store.
        key: Id of the sequence.
        field: Name of the field.
        offset: First byte, counted from the start of the file.
        length: Number of bytes.
        verify: Whether ``seqdata verify`` can audit the dataset.
    """

    dataset: str
    shard: int | None = None
    file: str | None = None
    file_kind: str | None = None
    axis: str | None = None
    unit: int | None = None
    sequence: int | None = None
    key: str | None = None
    field: str | None = None
    offset: int | None = None
    length: int | None = None
    verify: bool = False

    def __str__(self) -> str:
        words = [shorten_location(self.dataset) + self._format_file()]
        if self.sequence is not None:
            key = "" if self.key is None else f" ({quote(self.key)})"
            words.append(f"sequence {self.sequence}{key}")
        if self.field is not None:
            words.append(f"field {quote(self.field)}")
        if self.offset is not None:
            end = "" if self.length is None else f"..{self.offset + self.length}"
            words.append(f"{'bytes' if end else 'byte'} {self.offset}{end}")
        return ", ".join(words)

    def _format_file(self) -> str:
        role = self.file_kind
        if role is None and self.shard is not None:
            role = f"shard {self.shard}"
        if self.axis is not None:
            role = f"{role} of axis {quote(self.axis)}"
        file = [] if self.file is None else [quote(self.file)]
        if self.unit is not None:
            file.append(f"unit {self.unit}")
        shown = f" ({', '.join(file)})" if file else ""
        return (f" {role}" if role else "") + shown

    @property
    def details(self) -> dict[str, Detail]:
        """Name -> value, of plain types; names without a value are omitted."""
        strings = ("dataset", "file", "axis", "key", "field")
        integers = ("shard", "unit", "sequence", "offset", "length")
        details: dict[str, Detail] = {name: getattr(self, name) for name in strings}
        for name in integers:
            value = getattr(self, name)
            details[name] = None if value is None else int(value)  # NumPy's types are not JSON
        details["remedy"] = self.remedy
        return {name: value for name, value in details.items() if value is not None}

    @property
    def remedy(self) -> str | None:
        """The command that audits the shard or dataset; None if there is none."""
        if not self.verify or len(self.dataset) > _MAX_LOCATION_CHARS:
            return None
        shard = "" if self.shard is None else f" --shard {self.shard}"
        return f"seqdata verify {shlex.quote(self.dataset)}{shard}"

    def make_error(self, error_type: type[ErrorT], text: str, **details: Detail) -> ErrorT:
        """Return the error about this location.

        Args:
            error_type: Class of the error.
            text: Requirement, finding and remedy; the message begins with the location.
            details: Further details, such as ``expected`` and ``found``.
        """
        end = "" if self.remedy is None else f"{REMEDY}{self.remedy}."
        return error_type.at(f"{self}: {text}{end}", **{**self.details, **details})


@runtime_checkable
class SupportsLocation(Protocol):
    """A store that knows the locations of its sequences."""

    def locate(self, number: int, /) -> DataLocation:
        """Return the location of a sequence; of the dataset if there is no such sequence."""
        ...


def shorten_location(location: str) -> str:
    """Return a location for messages; a very long one is cut, and its length added."""
    if len(location) <= _MAX_LOCATION_CHARS:
        return location
    return f"{location[: _MAX_LOCATION_CHARS // 2]}… ({len(location):,} characters)"


def quote(text: str) -> str:
    """Return a name for messages: on one line, in double quotes, shortened if long."""
    shortened = text if len(text) <= _MAX_ID_CHARS else f"{text[:_MAX_ID_CHARS]}…"
    return json.dumps(shortened, ensure_ascii=False)


@dataclass(frozen=True, slots=True, eq=False)
class ShardLayout:
    """The shards, lengths and ids of the sequences of a dataset.

    Attributes:
        location: The dataset, for messages.
        shards: Names of the storage files.
        shard_offsets: Shard -> its first sequence, with the total at the end.
        lengths_of: Axis -> number of timesteps of each sequence.
        locate_shard: Shard -> its location; None: shards are not files.
        find_id: Sequence -> its id, or None if it cannot be read; None: there are no ids.
        first_sequence: Index of its first sequence in the dataset, for a part of a dataset.
        drop_copy: Drops the fetched copy of a shard; None: no shard is a copy.
    """

    location: str
    shards: Sequence[str]
    shard_offsets: list[int]
    lengths_of: Mapping[str, NDArray[Any]]
    locate_shard: Callable[[int], DataLocation] | None = None
    find_id: Callable[[int], str | None] | None = None
    first_sequence: int = 0
    drop_copy: DropFn | None = None

    def __len__(self) -> int:
        return self.shard_offsets[-1]

    def select(self, shards: range, drop_copy: DropFn | None = None) -> ShardLayout:
        """Return the layout of some shards; errors keep the indices of the dataset.

        Args:
            shards: Indices of the shards.
            drop_copy: Drops the fetched copy of a shard, by its index in the dataset.
        """
        first, stop = self.shard_offsets[shards.start], self.shard_offsets[shards.stop]
        find_id, start = self.find_id, shards.start
        return replace(
            self,
            shards=self.shards[start : shards.stop],
            shard_offsets=[at - first for at in self.shard_offsets[start : shards.stop + 1]],
            lengths_of={axis: lengths[first:stop] for axis, lengths in self.lengths_of.items()},
            locate_shard=lambda shard: self.locate_file(start + shard),
            find_id=None if find_id is None else lambda number: find_id(first + number),
            first_sequence=self.first_sequence + first,
            drop_copy=None if drop_copy is None else lambda shard: drop_copy(start + shard),
        )

    def explain_damage(self, error: ErrorT, shard: int) -> ErrorT:
        """Return the error about damaged bytes of a shard, whose fetched copy is dropped."""
        line = None if self.drop_copy is None else self.drop_copy(shard)
        return error if line is None else error.with_place(line)

    def find_shard(self, number: int) -> int:
        """Return the shard that holds a sequence.

        Raises:
            ConfigError: If there is no such sequence.
        """
        if not 0 <= number < self.shard_offsets[-1]:
            raise ConfigError(
                f"{self.location}: the index of a sequence must be in "
                f"[0, {self.shard_offsets[-1]}), but is {number}. Use a plan that was "
                "made for this data."
            )
        return bisect_right(self.shard_offsets, number) - 1

    def check_numbers(self, numbers: NDArray[np.int64]) -> None:
        """Raise if a sequence does not exist.

        Raises:
            ConfigError: If an index is negative, or not below the number of sequences.
        """
        outside = (numbers < 0) | (numbers >= len(self))
        if outside.any():
            self.find_shard(int(numbers[outside][0]))  # raises

    def locate_file(self, shard: int) -> DataLocation:
        """Return the location of a shard for an error, or of the dataset if there are no files."""
        if self.locate_shard is None:
            return DataLocation(dataset=self.location)
        return self.locate_shard(shard)

    def locate(
        self,
        number: int,
        field: str | None = None,
        offset: int | None = None,
        length: int | None = None,
    ) -> DataLocation:
        """Return the location of a sequence, or of bytes of a field of it, for an error.

        Raises:
            ConfigError: If there is no such sequence.
        """
        shard_location = self.locate_file(self.find_shard(number))
        key = None if self.find_id is None else self.find_id(number)
        return replace(
            shard_location,
            sequence=self.first_sequence + number,
            key=key,
            field=field,
            offset=offset,
            length=length,
        )


def narrow_lengths(lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return lengths in uint32, or in uint64 where they need it."""
    fits_uint32 = int(lengths.max(initial=0)) < _UINT32_VALUES
    return lengths.astype("<u4" if fits_uint32 else "<u8")
