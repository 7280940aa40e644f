"""Batches from very many small files: each is opened, read and closed for the current batch.

Too many files cannot be mapped. The values of a batch are read into one buffer, with a region for
each sequence, so that sources, checksums and errors are those of any store. They are verified each
time. Place in the flow: stores of many local files read through it. Reads: parts of files. Makes:
columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata.errors import CorruptShardError
from seqdata.storage.columns import BufferSource, IndexedValues
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.fields import RAW, field_width, kind_of
from seqdata.storage.indexed.file_fields import FileFields, make_decoded
from seqdata.storage.indexed.indexed_format import IndexedField
from seqdata.storage.indexed.opened_files import check_size
from seqdata.storage.indexed.shard_index import FieldIndex, join_fields
from seqdata.storage.indexed.shards import LocalShard
from seqdata.storage.integrity.verify import FieldChecksums
from seqdata.storage.local_files import open_file
from seqdata.storage.remote.range_cache import allocate_sparse
from seqdata.storage.store import LocalShards, check_request, make_full_spans
from seqdata.storage.text_bytes import TextBytes, TextSource, concat_texts

_ALIGNED = 8


@dataclass(frozen=True, slots=True, eq=False)
class _RowLayout(ShardLayout):
    """The layout of one batch: each sequence has a row of its own.

    Attributes:
        numbers: Row -> the sequence in the store.
        store_layout: The layout of the store.
        moved: Row -> offset in memory minus offset in its file.
    """

    numbers: NDArray[np.int64] | None = None
    store_layout: ShardLayout | None = None
    moved: NDArray[np.int64] | None = None

    def locate(
        self,
        number: int,
        field: str | None = None,
        offset: int | None = None,
        length: int | None = None,
    ) -> DataLocation:
        """Return the location of a row's sequence in its file, for an error."""
        if self.numbers is None or self.store_layout is None or self.moved is None:
            return DataLocation(dataset=self.location)
        at = None if offset is None else offset - int(self.moved[number])
        return self.store_layout.locate(int(self.numbers[number]), field, at, length)


@dataclass(frozen=True, slots=True, eq=False)
class _Needed:
    """The byte ranges of one field that a batch needs.

    Attributes:
        begins: Row -> first byte of the sequence's values in its file.
        sizes: Row -> their size in bytes.
        low: Row -> the first one that is read, relative to ``begins``.
        high: Row -> one past the last.
        bases: Row -> offset of the values in memory.
        room: Bytes of memory for all rows.
    """

    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    bases: NDArray[np.int64]
    room: int

    @property
    def table(self) -> list[list[int]]:
        """Row -> offset in the file, offset in memory, and size of the bytes to read."""
        places = (self.begins + self.low, self.bases + self.low, self.high - self.low)
        rows: list[list[int]] = np.stack(places, axis=1).tolist()
        return rows


class SmallFiles(LocalShards):
    """The files of a store, read batch by batch.

    Args:
        fields: The fields of the store.
    """

    def __init__(self, fields: FileFields) -> None:
        self.layout = fields.layout
        self.ids = fields.ids
        self._files = fields.files
        self._by_name = fields.indexed_fields
        self._fields = fields.fields
        self._shards = [each for each in fields.files.shards if isinstance(each, LocalShard)]
        self._starts = np.array(fields.layout.shard_offsets, dtype=np.int64)
        self._members: Mapping[str, FieldIndex] = {
            name: join_fields([index.members[name] for index in fields.files.indexes])
            for name in dict.fromkeys(indexed.member for indexed in self._by_name.values())
        }

    def texts(self, name: str) -> TextSource | None:
        """Return the strings of a field; None: there is no field of strings with this name."""
        field = self._fields.get(name)
        is_text = field is not None and not kind_of(field).is_array
        return _SmallTexts(self, name) if is_text else None

    def read(self, spans: NDArray[np.int64], fields: Iterable[str], axis: str) -> dict[str, Any]:
        """Return the columns of spans, int64 (n, 3), of existing sequences.

        Raises:
            MissingShardError: If a file is missing.
            CorruptShardError: If the size of a file differs from its index.
            CorruptSampleError: If a checksum differs.
            DecodeError: If a value cannot be decoded.
            ConfigError: If a span does not exist.
        """
        spans = np.ascontiguousarray(spans, dtype=np.int64)
        store_layout, names = self.layout, list(fields)
        check_request(store_layout, self._fields, spans, names, axis)
        numbers = np.ascontiguousarray(spans[:, 0])
        store_layout.check_numbers(numbers)
        needed = [self._find_needed(self._by_name[name], spans, axis) for name in names]
        memory = self._read_ranges(numbers, needed)
        along: dict[str | None, NDArray[np.int64]] = {axis: spans}
        columns: dict[str, Any] = {}
        for name, its_bytes in zip(names, needed, strict=True):
            field = self._fields[name]
            if field.axis not in along:
                along[field.axis] = make_full_spans(store_layout, numbers, field.axis)
            rows = along[field.axis].copy()
            rows[:, 0] = np.arange(len(rows))
            columns[name] = self._make_column(self._by_name[name], numbers, rows, memory, its_bytes)
        return columns

    def _find_needed(self, field: IndexedField, spans: NDArray[np.int64], axis: str) -> _Needed:
        members, numbers = self._members[field.member], spans[:, 0]
        sizes = members.sizes[numbers]
        low, high = np.zeros_like(sizes), sizes
        if field.access == "place" and field.field.axis == axis:
            width = field_width(field.field)
            low, high = spans[:, 1] * width, spans[:, 2] * width
            if self._files.verify != "off":  # only whole blocks can be verified
                block = self._files.indexes[0].block
                low, high = low // block * block, -(-high // block) * block
            low, high = np.clip(low, 0, sizes), np.clip(high, 0, sizes)
        elif field.access == "values" and self._files.verify == "off":
            high = low
        room = -(-sizes // _ALIGNED) * _ALIGNED
        bases = np.zeros(len(room), dtype=np.int64)
        np.cumsum(room[:-1], out=bases[1:])
        return _Needed(members.begins[numbers], sizes, low, high, bases, int(room.sum()))

    def _read_ranges(
        self, numbers: NDArray[np.int64], needed: Sequence[_Needed]
    ) -> NDArray[np.uint8]:
        """Read the ranges of each sequence; ``bases`` become offsets in the returned memory."""
        total = 0
        for field in needed:
            np.add(field.bases, total, out=field.bases)
            total += field.room
        raw = allocate_sparse(total)
        memory = memoryview(raw)
        shards = np.searchsorted(self._starts, numbers, side="right") - 1
        tables = [field.table for field in needed]
        for row, shard in enumerate(shards.tolist()):
            where = self._files.locate_shard(shard)
            with open_file(self._shards[shard].path, where) as (descriptor, size):
                check_size(size, self._files.indexes[shard], where)
                for table in tables:
                    at, base, count = table[row]
                    if count > 0:
                        _read_into(memory[base : base + count], descriptor, at, where)
        content = np.frombuffer(raw, dtype=np.uint8)
        content.flags.writeable = False
        return content

    def _make_column(
        self,
        field: IndexedField,
        numbers: NDArray[np.int64],
        rows: NDArray[np.int64],
        memory: NDArray[np.uint8],
        needed: _Needed,
    ) -> Any:
        store_layout = self.layout
        layout = _RowLayout(
            store_layout.location, ("",), [0, len(numbers)],
            {axis: lengths[numbers] for axis, lengths in store_layout.lengths_of.items()},
            numbers=numbers, store_layout=store_layout, moved=needed.bases - needed.begins,
        )  # fmt: skip
        extents = [(needed.bases, needed.bases + needed.sizes)]
        checks = self._make_checks(field.member, numbers)
        if field.access == "place":
            source = BufferSource.from_files(
                field.name, field.field, layout, [memory], extents, checks
            )
            return source.column(rows)
        stored_field = field.field if field.access == "text" else RAW
        raw = BufferSource.from_files(field.name, stored_field, layout, [memory], extents, checks)
        if field.access == "text":
            return (raw if field.advice is None else replace(raw, advice=field.advice)).column(rows)
        if field.access == "decode":
            shards = np.searchsorted(self._starts, numbers, side="right") - 1
            places = np.stack([shards, numbers - self._starts[shards]], axis=1)
            return make_decoded(field, raw, lambda row: tuple(places[row].tolist())).column(rows)
        members = self._members[field.member]
        values = members.numbers if members.values is None else members.values
        row_values = np.empty(0, np.int64) if values is None else values[numbers]
        return IndexedValues.from_index(field.name, field.field, layout, [row_values], raw).column(
            rows
        )

    def _make_checks(self, member: str, numbers: NDArray[np.int64]) -> FieldChecksums | None:
        """Return the checksums of the rows of a batch."""
        if self._files.verify == "off":
            return None
        first, members = self._files.indexes[0], self._members[member]
        firsts, which = None, numbers
        if members.firsts is not None:
            counts = np.diff(members.firsts)[numbers]
            firsts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            within = np.arange(int(firsts[-1])) - np.repeat(firsts[:-1], counts)
            which = np.repeat(members.firsts[numbers], counts) + within
        return FieldChecksums(
            first.algorithm, first.block, (members.sums[which],), (firsts,), ("the index",), None,
            (0,), None,
        )  # fmt: skip


def _read_into(memory: memoryview, descriptor: int, at: int, where: DataLocation) -> None:
    """Read all bytes of a range of a file; a system call returns 2 GiB at most.

    Raises:
        CorruptShardError: If the file ends before them.
    """
    done = 0
    while done < len(memory):
        count = os.preadv(descriptor, [memory[done:]], at + done)
        if count == 0:
            raise replace(where, offset=at, length=len(memory)).make_error(
                CorruptShardError,
                f"must have {len(memory)} bytes here as when it was indexed, but ends after "
                f"{done}. Restore it, or rebuild its index with `seqdata index --rebuild`",
                expected=len(memory), found=done,
            )  # fmt: skip
        done += count


@dataclass(frozen=True, slots=True, eq=False)
class _SmallTexts:
    """The strings of a field.

    Implements ``TextSource``.
    """

    reader: SmallFiles
    name: str

    def take(self, numbers: ArrayLike) -> list[Any]:
        layout = self.reader.layout
        spans = make_full_spans(layout, np.asarray(numbers, dtype=np.int64), None)
        texts: list[Any] = self.reader.read(spans, [self.name], next(iter(layout.lengths_of)))[
            self.name
        ]
        return texts

    def read_bytes(self, numbers: NDArray[np.int64]) -> TextBytes:
        return concat_texts(self.take(numbers))

    def is_readable(self, number: int) -> bool:
        return 0 <= number < len(self.reader.layout)
