"""A store of sequences that are in memory already.

Place in the flow: made from arrays or dicts by the user or by opening. Reads: sequences. Makes: a
store.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import LimitError
from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.fields import default_axis, find_key, make_packer
from seqdata.storage.inputs import normalize_sequences
from seqdata.storage.lengths import narrow_lengths
from seqdata.storage.limits import free_memory
from seqdata.storage.packing import Packer, pack_sequence
from seqdata.storage.schema import (
    PackedFields,
    check_axis_lengths,
    check_packed_ids,
    infer_fields,
)
from seqdata.storage.store_fields import StoreFields
from seqdata.storage.text_bytes import TextBytes
from seqdata.storage.views import SequenceStore

_SHARD_NAME = "memory"


class MemoryStore(SequenceStore):
    """Sequences in memory, behind the same interface as stored ones. Made by ``of``.

    Args:
        fields: Name -> field.
        packed: Name -> (values, offsets or None) of all sequences.
        lengths_of: Axis -> timesteps of each sequence.
        key: The ``str`` field of ids; None: a sequence is named by its number.
    """

    is_copied_to_workers = True

    def __init__(
        self,
        fields: Mapping[str, Field],
        packed: PackedFields,
        lengths_of: Mapping[str, NDArray[Any]],
        key: str | None,
    ) -> None:
        self._fields = dict(fields)
        self._packed = packed
        self._lengths_of = dict(lengths_of)
        self._key = key
        self._fingerprint: str | None = None
        count = len(next(iter(self._lengths_of.values())))
        layout = ShardLayout("memory", (_SHARD_NAME,), [0, count], self._lengths_of)

        def make_source(name: str, layout: ShardLayout) -> BufferSource:
            values, offsets = packed[name]
            each = None if offsets is None else [offsets]
            return BufferSource.of(name, self._fields[name], layout, [values], each)

        self._store_fields = StoreFields.of(layout, self._fields, key, make_source)

    @classmethod
    def of(
        cls,
        sequences: Iterable[Any],
        axes: Mapping[str, str | None] | None = None,
        key: str = "id",
    ) -> MemoryStore:
        """Make a store of sequences; they are copied.

        Args:
            sequences: Dicts of arrays, numbers, ``str`` or ``bytes``; plain arrays, which become
                the field ``x``; or a pandas, Polars or Arrow table, a row per sequence.
            axes: Field -> axis; None: a vector per sequence. Arrays that are not named run on
                ``time``.
            key: The ``str`` field that names a sequence, where there is one.

        Raises:
            ConfigError: If there is no sequence, or ``axes`` does not fit.
            DataError: If a sequence is not like the first one; naming it.
            LimitError: If they come from an iterator and do not fit into memory.

        Examples:
            >>> store = MemoryStore.of([[1, 2, 3], [4]])
            >>> len(store), store.lengths.tolist()
            (2, [3, 1])
        """
        fields: dict[str, Field] = {}
        packers: dict[str, Packer] = {}
        rows, axes = normalize_sequences(sequences, axes)
        used_bytes, max_bytes = (
            0,
            math.inf if isinstance(sequences, Sized) else _compute_memory_budget(),
        )
        for number, sequence in enumerate(rows):
            if not packers:
                fields = infer_fields(sequence, axes)
                packers = {
                    name: make_packer(field, is_key=name == key) for name, field in fields.items()
                }
            used_bytes += pack_sequence(packers, sequence, number, key)
            if used_bytes > max_bytes:
                raise LimitError(
                    f"memory: sequences of unknown number must fit into {int(max_bytes):,} bytes, "
                    "a "
                    f"quarter of the free memory, but the first {number + 1:,} take "
                    f"{used_bytes:,} and "
                    "more follow. Write them once with write_store(location, sequences) and open "
                    "that, or pass a list; if they never end, cut them with itertools.islice"
                )
        packed = {name: packer.take() for name, packer in packers.items()}
        found = check_axis_lengths(fields, packed, 0, key)
        lengths_of = {axis: narrow_lengths(lengths) for axis, lengths in found.items()}
        check_packed_ids(fields, packed, key, 0)
        return cls(fields, packed, lengths_of, find_key(fields, key))

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryStore, (self._fields, self._packed, self._lengths_of, self._key)

    def __len__(self) -> int:
        return len(self._store_fields.layout)

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._fields

    @property
    def lengths(self) -> NDArray[Any]:
        """Timesteps of each sequence along the default axis, integers (sequences,)."""
        return self._lengths_of[default_axis(self._lengths_of)]

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> timesteps of each sequence, integers (sequences,)."""
        return self._lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """One name: everything lies in memory."""
        return (_SHARD_NAME,)

    @property
    def fingerprint(self) -> str:
        """Digest of schema and content (32 hex digits): one pass over the data, made when asked."""
        if self._fingerprint is None:
            digest = hashlib.sha256(repr((self._fields, self._key)).encode())
            for values, offsets in self._packed.values():
                digest.update(np.ascontiguousarray(values).view(np.uint8).data)
                if offsets is not None:
                    digest.update(offsets.data)
            self._fingerprint = digest.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences."""
        return self._store_fields.keys(numbers)

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the bytes of ids or of a field of texts; see ``raw.SupportsRawTexts``."""
        return self._store_fields.raw_texts(name, numbers)

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same numbers: this store is no view."""
        return numbers

    def place(self, number: int) -> DataLocation:
        """Return place of a sequence, for an error; of one that is not there, the data set's."""
        return self._store_fields.place(number)

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``."""
        return self._store_fields.read(spans, fields, axis)


def _compute_memory_budget() -> float:
    """Return the bytes that sequences of an iterator may take: buffers are copied as they grow."""
    free = free_memory()
    return math.inf if free is None else free // 4
