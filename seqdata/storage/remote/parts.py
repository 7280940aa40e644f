"""One shard by itself, and batches that are put together from several.

Shards that come and go cannot be laid under one source, so each has its own; a batch's pieces are
filled in run by run. Place in the flow: the remote store reads through parts. Reads: mapped shards.
Makes: columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.storage.checking.bits import SharedBits
from seqdata.storage.columns import Layout, Source, SpanColumn
from seqdata.storage.manifest import Manifest
from seqdata.storage.mapped import Mapped, checks_of, shard_place, source_over
from seqdata.storage.sources import Sources, keyed


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One shard.

    Attributes:
        number: Of the shard.
        sources: Its fields; sequences are counted from its first one.
        content: Its bytes.
        sums: Those of its checksums; None: they are not looked at.
    """

    number: int
    sources: Sources
    content: Any
    sums: Any | None


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
    """

    location: str
    manifest: Manifest
    lengths_of: Mapping[str, NDArray[Any]]
    starts: NDArray[np.int64]
    bits: Any | None
    begins: Mapping[str, Sequence[int]]

    def part(self, number: int, content: Any, sums: Any | None, *, fresh: bool = False) -> Part:
        """Lay the fields of a shard over its bytes.

        Args:
            number: The shard.
            content: Its bytes.
            sums: Those of its checksums; None: they are not looked at.
            fresh: Whether the bytes were found right by nobody yet, whatever the bits say.
        """
        shard = self.manifest.shards[number]
        first, stop = self.starts[number : number + 2].tolist()
        alone = replace(self.manifest, shards=(shard,), sequences=shard.sequences)
        lengths_of = {axis: lengths[first:stop] for axis, lengths in self.lengths_of.items()}
        place = shard_place(self.location, number, shard)
        layout = Layout(
            self.location, (shard.file,), [0, shard.sequences], lengths_of, lambda _: place,
            first=first,
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
            ids = source_over(key, alone, layout, [content], checks)
            layout = layout if isinstance(ids, Source) else keyed(layout, ids)
        sources = {
            name: source_over(name, alone, layout, [content], checks) for name in alone.fields
        }
        return Part(number, Sources(layout, sources, key), content, sums)

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
        layout = Layout(self.location, names, starts, self.lengths_of, places.__getitem__)
        if manifest.key is not None:
            ids = source_over(manifest.key, manifest, layout, contents, checks)
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


class JoinedColumn:
    """One field of spans of several shards: a ``Column``.

    Args:
        columns: One per shard, with its pieces in the order of the batch.
        owner: Which of them has each piece, integers (n,).
        index: Its number there, integers (n,).
    """

    __slots__ = ("_columns", "_index", "_owner")

    def __init__(
        self,
        columns: Sequence[SpanColumn],
        owner: NDArray[np.int64],
        index: NDArray[np.int64],
    ) -> None:
        self._columns = columns
        self._owner = owner
        self._index = index

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of one element."""
        return self._columns[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one timestep."""
        return self._columns[0].shape

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Timesteps of each piece, int64 (n,)."""
        lengths = np.empty(len(self._owner), dtype=np.int64)
        for number, column in enumerate(self._columns):
            lengths[self._owner == number] = column.lengths
        return lengths

    def __len__(self) -> int:
        return len(self._owner)

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Give one piece, (length, *shape): a view, not for writing."""
        return self._columns[int(self._owner[number])][int(self._index[number])]

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all pieces into place and pad; see ``protocols.Column.fill``."""
        edges = np.flatnonzero(np.diff(self._owner)) + 1
        for first, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(self)], strict=True):
            if first < stop:
                at = int(self._index[first])
                column = self._columns[int(self._owner[first])].part(at, at + stop - first)
                column.fill(out, bounds[first : stop + 1], padding)


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
    owner = np.searchsorted([one.number for one in parts], shards)
    index = np.empty(len(spans), dtype=np.int64)
    found = []
    for number, part in enumerate(parts):
        rows = np.flatnonzero(owner == number)
        index[rows] = np.arange(len(rows))
        found.append(part.sources.read(spans[rows], names, axis))
    joined: dict[str, Any] = {}
    for name in names:
        columns = [one[name] for one in found]
        if isinstance(columns[0], SpanColumn):
            joined[name] = JoinedColumn(columns, owner, index)
        else:
            joined[name] = [
                columns[which][at] for which, at in zip(owner.tolist(), index.tolist(), strict=True)
            ]
    return joined
