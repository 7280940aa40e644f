"""One shard by itself, and batches that are put together from several.

Shards that come and go cannot be laid under one source, so each has its own; a batch's pieces are
filled in run by run. Place in the flow: the remote store reads through parts. Reads: mapped shards.
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
from seqdata.storage.arrow.mapped_files import Mapped, checks_of, shard_place, source_over
from seqdata.storage.columns import Layout, Source
from seqdata.storage.integrity.verified_bitmap import SharedBits
from seqdata.storage.multi_shard_column import join_columns, owners_of
from seqdata.storage.remote.copy_repair import Look, Mending
from seqdata.storage.store_fields import Sources, keyed


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One shard.

    Attributes:
        number: Of the shard.
        sources: Its fields; sequences are counted from its first one.
        content: Its bytes.
        sums: Those of its checksums; None: they are not looked at.
        mend: What is done about an error of it; see ``Layout``.
    """

    number: int
    sources: Sources
    content: Any
    sums: Any | None
    mend: Callable[[DataError], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Parting:
    """Makes parts of a store.

    Attributes:
        location: Of the store.
        manifest: What was written.
        lengths_of: Axis -> timesteps of each sequence of the store.
        starts: int64 (shards+1,): shard -> its first sequence.
        bits: Memory with one bit per checksum that is set for what was found right; None: there
            are none.
        begins: Field -> per shard, the bit of its first checksum.
        mend_sums: Looks whether the checksums of a shard are as at their source, and mends them.
    """

    location: str
    manifest: Manifest
    lengths_of: Mapping[str, NDArray[Any]]
    starts: NDArray[np.int64]
    bits: Any | None
    begins: Mapping[str, Sequence[int]]
    mend_sums: Callable[[int], bool]

    def part(
        self, number: int, content: Any, sums: Any | None, look: Look, *, fresh: bool = False
    ) -> Part:
        """Lay the fields of a shard over its bytes.

        Args:
            number: The shard.
            content: Its bytes.
            sums: Those of its checksums; None: they are not looked at.
            look: Looks whether its bytes are as at their source, and mends them.
            fresh: Whether the bytes were found right by nobody yet, whatever the bits say.
        """
        shard = self.manifest.shards[number]
        first, stop = self.starts[number : number + 2].tolist()
        alone = replace(self.manifest, shards=(shard,), sequences=shard.sequences)
        lengths_of = {axis: lengths[first:stop] for axis, lengths in self.lengths_of.items()}
        place = shard_place(self.location, number, shard)
        mend = Mending([look, partial(self.mend_sums, number)])
        layout = Layout(
            self.location, (shard.file,), [0, shard.sequences], lengths_of, lambda _: place,
            first=first, mend=mend,
        )  # fmt: skip
        checks = {}
        if sums is not None:
            checks = checks_of(alone, Mapped([content], lengths_of, [sums]), None) or {}
        if self.bits is not None and not fresh:
            checks = {
                name: replace(one, bits=self.bits, begins=(self.begins[name][number],))
                for name, one in checks.items()
            }
        key = self.manifest.key
        if key is not None:
            ids = source_over(key, alone, replace(layout, mend=None), [content], checks)
            layout = layout if isinstance(ids, Source) else keyed(layout, ids)
        sources = {
            name: source_over(name, alone, layout, [content], checks) for name in alone.fields
        }
        return Part(number, Sources(layout, sources, key), content, sums, mend)

    def whole(self, parts: Sequence[Part], bits: SharedBits | None) -> Sources:
        """Lay the fields over all shards at once: what is read then is not put together.

        Args:
            parts: All of them, in their order.
            bits: Those of the store.
        """
        manifest, names = self.manifest, [shard.file for shard in self.manifest.shards]
        places = [shard_place(self.location, i, one) for i, one in enumerate(manifest.shards)]
        contents = [part.content for part in parts]
        sums = [part.sums for part in parts if part.sums is not None]
        mapped = Mapped(contents, self.lengths_of, sums if len(sums) == len(parts) else None)
        checks = checks_of(manifest, mapped, bits) or {}
        starts = self.starts.tolist()

        def mend(error: DataError) -> bool:
            return parts[int(error.facts["shard"] or 0)].mend(error)

        layout = Layout(
            self.location, names, starts, self.lengths_of, places.__getitem__, mend=mend
        )
        if manifest.key is not None:
            bare = replace(layout, mend=None)  # ids for messages: an error is being made already
            ids = source_over(manifest.key, manifest, bare, contents, checks)
            layout = layout if isinstance(ids, Source) else keyed(layout, ids)
        sources = {
            name: source_over(name, manifest, layout, contents, checks)
            for name in self.manifest.fields
        }
        return Sources(layout, sources, manifest.key)


def begins_of(manifest: Manifest) -> dict[str, list[int]]:
    """Give, field by field, the bit of each shard's first checksum."""
    found: dict[str, list[int]] = {}
    begin = 0
    for name in manifest.fields:
        found[name] = []
        for shard in manifest.shards:
            found[name].append(begin)
            if shard.checksums is not None:
                begin += shard.checksums.places[name][0][1] // 4
    return found


def read_parts(
    parts: Sequence[Part],
    shards: NDArray[np.int64],
    spans: NDArray[np.int64],
    fields: Iterable[str],
    axis: str,
) -> dict[str, Any]:
    """Give the columns of spans.

    Args:
        parts: All that they touch, by number.
        shards: The shard of each span, integers (n,).
        spans: int64 (n, 3), sequences counted from the first one of their shard.
        fields: Names.
        axis: The axis that spans cut.

    Raises:
        ConfigError: If a field or the axis is not there.
    """
    names = list(fields)
    if len(parts) == 1:
        return parts[0].sources.read(spans, names, axis)
    owner, index, rows = owners_of(shards)
    found = [
        part.sources.read(spans[mine], names, axis) for part, mine in zip(parts, rows, strict=True)
    ]
    return join_columns(found, names, owner, index)
