"""The end of a writing: lengths of all shards put together, ids compared, the manifest.

Place in the flow: the writer's last step before the commit. Reads: whole shards. Makes: lengths
files and a manifest in the folder aside.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field
from seqdata.storage.arrow.manifest import (
    MANIFEST,
    Checking,
    LengthsFile,
    Manifest,
    Shard,
    dump_manifest,
)
from seqdata.storage.fields import axes_of
from seqdata.storage.hashing import hash_texts
from seqdata.storage.integrity.checksums import BLOCK
from seqdata.storage.lengths import LengthsWriter
from seqdata.storage.unique_ids import check_ids
from seqdata.storage.writing.resume_key import Scheme
from seqdata.storage.writing.staged_shards import Whole, room_for
from seqdata.storage.writing.staging_dir import FACTS, write_synced

_LENGTH = 8  # bytes of one, at most
_SHARD = 4096  # bytes of what a manifest says of one, about


def finish(
    folder: Path, fields: Mapping[str, Field], shards: Sequence[Whole], scheme: Scheme
) -> dict[str, str]:
    """Make everything that a store needs beside its shards.

    Args:
        folder: The folder aside.
        fields: Name -> field.
        shards: All of them, in their order.
        scheme: How they were made.

    Returns:
        Name of a file in the folder aside -> its name in the store.

    Raises:
        DecodeError: If two sequences have one id.
        IncompleteDatasetError: If the disk is full.
    """
    has_key = scheme.key in fields and fields[scheme.key].dtype == "str"
    if has_key and len(shards) > 1:
        _check_ids(folder, shards, scheme.key)
    count = sum(one.shard.sequences for one in shards)
    lengths = {}
    for axis in axes_of(fields):
        with room_for(folder / f"lengths-{axis}", count * _LENGTH):
            lengths[axis] = _write_lengths(folder, axis, fields, shards)
    final = [_named(one.shard, number) for number, one in enumerate(shards)]
    manifest = Manifest(
        fields=fields,
        key=scheme.key if has_key else None,
        sequences=count,
        lengths=lengths,
        shards=tuple(final),
        checksums=Checking(algorithm=scheme.algorithm, block=BLOCK),
    )
    with room_for(folder / MANIFEST, len(shards) * _SHARD):
        write_synced(folder / MANIFEST, dump_manifest(manifest))
    both = zip(shards, final, strict=True)
    moves = itertools.chain.from_iterable(_moves(one.shard, to) for one, to in both)
    return dict(moves) | {one.file: one.file for one in lengths.values()}


def _named(shard: Shard, number: int) -> Shard:
    """Give the facts of a shard with its files' names in the store."""
    name = f"part-{number:05d}"
    checksums = shard.checksums and replace(shard.checksums, file=f"{name}.crc")
    return replace(shard, file=f"{name}.arrow", checksums=checksums)


def _moves(shard: Shard, to: Shard) -> list[tuple[str, str]]:
    moves = [(shard.file, to.file)]
    if shard.checksums is not None and to.checksums is not None:
        moves.append((shard.checksums.file, to.checksums.file))
    return moves


def _write_lengths(
    folder: Path, axis: str, fields: Mapping[str, Field], shards: Sequence[Whole]
) -> LengthsFile:
    """Write the lengths along an axis, as the offsets in the shards have them."""
    name = next(name for name, field in fields.items() if field.axis == axis)
    writer = LengthsWriter(folder, axis)
    for one in shards:
        writer.add(np.diff(_offsets(folder, one.shard, name)))
    return writer.finish()


def _check_ids(folder: Path, shards: Sequence[Whole], key: str) -> None:
    """Refuse one id twice; no shard is whole then: one of them must be written again."""
    hashes = [hash_texts(*_texts(folder, one.shard, key)) for one in shards]
    starts = [0, *itertools.accumulate(one.shard.sequences for one in shards)]

    def name_of(number: int) -> str:
        at = int(np.searchsorted(starts, number, side="right")) - 1
        values, offsets = _texts(folder, shards[at].shard, key)
        first, stop = offsets[number - starts[at]], offsets[number - starts[at] + 1]
        return str(values[first:stop].tobytes(), "utf-8")

    try:
        check_ids(np.concatenate(hashes), name_of)
    except BaseException:
        for path in folder.glob(f"*{FACTS}"):
            path.unlink()
        raise


def _texts(folder: Path, shard: Shard, name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    at, size = shard.buffers[name][0]
    values: NDArray[Any] = np.fromfile(folder / shard.file, dtype=np.uint8, count=size, offset=at)
    return values, _offsets(folder, shard, name)


def _offsets(folder: Path, shard: Shard, name: str) -> NDArray[np.int64]:
    at = shard.buffers[name][1][0]
    count = shard.sequences + 1
    return np.fromfile(folder / shard.file, dtype=np.int64, count=count, offset=at)
