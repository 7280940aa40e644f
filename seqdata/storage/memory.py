"""A store of sequences that are in memory already.

Place in the flow: made from arrays or dicts by the user or by opening. Reads: sequences. Makes: a
store.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import LimitError
from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import ShardLayout, narrow_lengths
from seqdata.storage.fields import find_key, make_packer
from seqdata.storage.inputs import normalize_sequences
from seqdata.storage.limits import free_memory
from seqdata.storage.packing import Packer, pack_sequence
from seqdata.storage.schema import (
    PackedFields,
    check_axis_lengths,
    check_packed_ids,
    infer_fields,
)
from seqdata.storage.store import ShardStore, StoreFields, StoreInfo

_SHARD_NAME = "memory"


class MemoryStore(ShardStore):
    """Sequences in memory, behind the same interface as stored ones. Made by ``from_sequences``.

    Args:
        fields: Name -> field.
        packed: Name -> (values, offsets or None) of all sequences.
        lengths_of: Axis -> number of timesteps of each sequence.
        key: The ``str`` field of ids; None: a sequence is named by its number.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        packed: PackedFields,
        lengths_of: Mapping[str, NDArray[Any]],
        key: str | None,
    ) -> None:
        count = len(next(iter(lengths_of.values())))
        layout = ShardLayout("memory", (_SHARD_NAME,), [0, count], dict(lengths_of))

        def make_source(name: str, layout: ShardLayout) -> BufferSource:
            values, offsets = packed[name]
            each = None if offsets is None else [offsets]
            return BufferSource.from_arrays(name, fields[name], layout, [values], each)

        info = StoreInfo(
            label="MemoryStore", location=None, fields=dict(fields), is_copied=True,
            make_fingerprint=lambda: _digest(dict(fields), packed, key),
            reopen=lambda _: (MemoryStore, (dict(fields), packed, dict(lengths_of), key)),
        )  # fmt: skip
        super().__init__(info, StoreFields.from_sources(layout, fields, key, make_source))

    @classmethod
    def from_sequences(
        cls,
        sequences: Iterable[Any],
        axes: Mapping[str, str | None] | None = None,
        key: str = "id",
    ) -> MemoryStore:
        """Return a store of sequences, which are copied.

        Args:
            sequences: Dicts of arrays, numbers, ``str`` or ``bytes``; plain arrays, which become
                the field ``x``; or a pandas, Polars or Arrow table, a row per sequence.
            axes: Field -> axis; None: a vector per sequence. Other arrays run along ``time``.
            key: The ``str`` field of ids, if there is one.

        Raises:
            ConfigError: If there is no sequence, or ``axes`` does not fit.
            DataError: If a sequence is not like the first one, or two have the same id; the message
                names them.
            LimitError: If they come from an iterator and do not fit into memory.

        Examples:
            >>> store = MemoryStore.from_sequences([[1, 2, 3], [4]])
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
                    "more may follow. Write them once with write_store(location, sequences) and "
                    "open that, or pass a list; if they never end, cut them with itertools.islice"
                )
        packed = {name: packer.take() for name, packer in packers.items()}
        found = check_axis_lengths(fields, packed, 0, key)
        lengths_of = {axis: narrow_lengths(lengths) for axis, lengths in found.items()}
        check_packed_ids(fields, packed, key, 0)
        return cls(fields, packed, lengths_of, find_key(fields, key))

    of = from_sequences  # its earlier name


def _digest(fields: dict[str, Field], packed: PackedFields, key: str | None) -> str:
    """Return the digest of schema and content: one pass over the data."""
    digest = hashlib.sha256(repr((fields, key)).encode())
    for values, offsets in packed.values():
        digest.update(np.ascontiguousarray(values).view(np.uint8).data)
        if offsets is not None:
            digest.update(offsets.data)
    return digest.hexdigest()[:32]


def _compute_memory_budget() -> float:
    """Return the bytes that sequences of an iterator may take: buffers are copied as they grow."""
    free = free_memory()
    return math.inf if free is None else free // 4
