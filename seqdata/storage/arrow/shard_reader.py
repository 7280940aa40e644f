"""Single open shards, and batches that are assembled from several.

Shards that are opened and closed cannot share one source, so each has its own; a batch is filled
shard by shard. Place in the flow: the remote store reads through open shards. Reads: mapped shards.
Makes: columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DataError
from seqdata.storage.arrow.manifest import Manifest
from seqdata.storage.arrow.mapped_files import (
    MappedFiles,
    load_checksums,
    locate_shard,
    make_source,
)
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import ShardLayout
from seqdata.storage.integrity.verified_bitmap import SharedBits
from seqdata.storage.multi_shard_column import assign_owners, join_columns
from seqdata.storage.remote.copy_repair import CopyRepair, RepairFn
from seqdata.storage.store_fields import StoreFields


@dataclass(frozen=True, slots=True, eq=False)
class OpenArrowShard:
    """One shard.

    Attributes:
        number: Number of the shard.
        fields: Its fields; sequences are counted from its first one.
        content: Its bytes.
        checksums: The bytes of its checksums; None: they are not compared.
        repair: Repairs its copy after an error; see ``ShardLayout``.
    """

    number: int
    fields: StoreFields
    content: Any
    checksums: Any | None
    repair: Callable[[DataError], bool]


@dataclass(frozen=True, slots=True, eq=False)
class ShardReaderFactory:
    """Opens the shards of a store.

    Attributes:
        location: Of the store.
        manifest: What was written.
        lengths_of: Axis -> timesteps of each sequence of the store.
        shard_offsets: int64 (shards+1,): shard -> its first sequence.
        bits: Memory with one bit per checksum, set once it was verified; None: there is none.
        bit_offsets: Field -> per shard, the bit of its first checksum.
        repair_checksums: Compares the checksums of a shard with the source, and repairs them.
    """

    location: str
    manifest: Manifest
    lengths_of: Mapping[str, NDArray[Any]]
    shard_offsets: NDArray[np.int64]
    bits: Any | None
    bit_offsets: Mapping[str, Sequence[int]]
    repair_checksums: Callable[[int], bool]

    def open_shard(
        self,
        number: int,
        content: Any,
        checksum_bytes: Any | None,
        repair_content: RepairFn,
        *,
        is_unverified: bool = False,
    ) -> OpenArrowShard:
        """Open a shard over its bytes.

        Args:
            number: The shard.
            content: Its bytes.
            checksum_bytes: The bytes of its checksums; None: they are not compared.
            repair_content: Compares its bytes with the source, and repairs them.
            is_unverified: Whether to verify the bytes even if their bits are set.
        """
        shard = self.manifest.shards[number]
        first, stop = self.shard_offsets[number : number + 2].tolist()
        shard_manifest = replace(self.manifest, shards=(shard,), sequences=shard.sequences)
        lengths_of = {axis: lengths[first:stop] for axis, lengths in self.lengths_of.items()}
        location = locate_shard(self.location, number, shard)
        repair = CopyRepair([repair_content, partial(self.repair_checksums, number)])
        layout = ShardLayout(
            self.location, (shard.file,), [0, shard.sequences], lengths_of, lambda _: location,
            first_sequence=first, repair=repair,
        )  # fmt: skip
        checksums = {}
        if checksum_bytes is not None:
            checksums = (
                load_checksums(
                    shard_manifest, MappedFiles([content], lengths_of, [checksum_bytes]), None
                )
                or {}
            )
        if self.bits is not None and not is_unverified:
            checksums = {
                name: replace(one, bits=self.bits, bit_offsets=(self.bit_offsets[name][number],))
                for name, one in checksums.items()
            }

        def make(name: str, layout: ShardLayout) -> BufferSource:
            return make_source(name, shard_manifest, layout, [content], checksums)

        fields = StoreFields.of(layout, shard_manifest.fields, self.manifest.key, make)
        return OpenArrowShard(number, fields, content, checksum_bytes, repair)

    def open_all(
        self, open_shards: Sequence[OpenArrowShard], bits: SharedBits | None
    ) -> StoreFields:
        """Open all shards as one: batches need not be assembled then.

        Args:
            open_shards: All shards in order.
            bits: The bits of the store.
        """
        manifest, names = self.manifest, [shard.file for shard in self.manifest.shards]
        locations = [locate_shard(self.location, i, one) for i, one in enumerate(manifest.shards)]
        contents = [open_shard.content for open_shard in open_shards]
        checksum_bytes = [
            open_shard.checksums for open_shard in open_shards if open_shard.checksums is not None
        ]
        mapped = MappedFiles(
            contents,
            self.lengths_of,
            checksum_bytes if len(checksum_bytes) == len(open_shards) else None,
        )
        checksums = load_checksums(manifest, mapped, bits) or {}
        shard_offsets = self.shard_offsets.tolist()

        def repair(error: DataError) -> bool:
            return open_shards[int(error.facts["shard"] or 0)].repair(error)

        layout = ShardLayout(
            self.location,
            names,
            shard_offsets,
            self.lengths_of,
            locations.__getitem__,
            repair=repair,
        )

        def make(name: str, layout: ShardLayout) -> BufferSource:
            return make_source(name, manifest, layout, contents, checksums)

        return StoreFields.of(layout, manifest.fields, manifest.key, make)


def compute_bit_offsets(manifest: Manifest) -> dict[str, list[int]]:
    """Return, per field, the bit of each shard's first checksum."""
    bit_offsets: dict[str, list[int]] = {}
    bit_offset = 0
    for name in manifest.fields:
        bit_offsets[name] = []
        for shard in manifest.shards:
            bit_offsets[name].append(bit_offset)
            if shard.checksums is not None:
                bit_offset += shard.checksums.places[name][0][1] // 4
    return bit_offsets


def read_shards(
    open_shards: Sequence[OpenArrowShard],
    shards: NDArray[np.int64],
    spans: NDArray[np.int64],
    fields: Iterable[str],
    axis: str,
) -> dict[str, Any]:
    """Return the columns of spans.

    Args:
        open_shards: The shards of the spans, by number.
        shards: The shard of each span, integers (n,).
        spans: int64 (n, 3), sequences counted from the first one of their shard.
        fields: Names.
        axis: The axis that spans cut.

    Raises:
        ConfigError: If a field or the axis is not there.
    """
    names = list(fields)
    if len(open_shards) == 1:
        return open_shards[0].fields.read(spans, names, axis)
    owner, index, rows = assign_owners(shards)
    found = [
        open_shard.fields.read(spans[owned], names, axis)
        for open_shard, owned in zip(open_shards, rows, strict=True)
    ]
    return join_columns(found, names, owner, index)
