"""The last step of writing: the lengths of all shards, unique ids and the manifest."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field
from seqdata.storage.arrow.lengths_file import LengthsFile, LengthsWriter
from seqdata.storage.arrow.manifest import MANIFEST, ArrowShard, Manifest, dump_manifest
from seqdata.storage.fields import find_key, list_axes
from seqdata.storage.hashing import check_unique_ids, hash_texts
from seqdata.storage.integrity.checksums import CHECKSUM_BYTES, ChecksumSpec
from seqdata.storage.local_files import write_synced
from seqdata.storage.writing.finished_shards import FinishedShard, ResumeKey, explain_full_disk
from seqdata.storage.writing.staging_dir import FACTS_SUFFIX

_LENGTH_BYTES = 8  # maximum bytes of a name
_MANIFEST_BYTES_PER_SHARD = 4096  # approximate bytes of a shard's entry in a manifest


def finalize(
    folder: Path,
    fields: Mapping[str, Field],
    shards: Sequence[FinishedShard[ArrowShard]],
    scheme: ResumeKey,
) -> dict[str, str]:
    """Write everything that a store needs in addition to its shards.

    Args:
        folder: The staging directory.
        fields: Name -> field.
        shards: All shards in order.
        scheme: The options that they were written by.

    Returns:
        Name of a file in the staging directory -> its name in the store.

    Raises:
        DecodeError: If two sequences have one id.
        IncompleteDatasetError: If the disk is full.
    """
    key = find_key(fields, scheme.key)
    if key is not None and len(shards) > 1:
        _check_unique_ids(folder, shards, key)
    count = sum(finished.shard.sequences for finished in shards)
    lengths = {}
    for axis in list_axes(fields):
        with explain_full_disk(folder / f"lengths-{axis}", count * _LENGTH_BYTES):
            lengths[axis] = _write_lengths(folder, axis, fields, shards)
    final_shards = [_rename_files(finished.shard, number) for number, finished in enumerate(shards)]
    manifest = Manifest(
        fields=fields,
        key=key,
        sequences=count,
        lengths=lengths,
        shards=tuple(final_shards),
        checksums=ChecksumSpec(algorithm=scheme.algorithm, bytes_per_checksum=CHECKSUM_BYTES),
    )
    with explain_full_disk(folder / MANIFEST, len(shards) * _MANIFEST_BYTES_PER_SHARD):
        write_synced(folder / MANIFEST, dump_manifest(manifest))
    pairs = zip(shards, final_shards, strict=True)
    moves = itertools.chain.from_iterable(_list_moves(finished.shard, to) for finished, to in pairs)
    return dict(moves) | {finished.file: finished.file for finished in lengths.values()}


def _rename_files(shard: ArrowShard, number: int) -> ArrowShard:
    """Return a shard's entry with the file names of the store."""
    name = f"part-{number:05d}"
    checksums = shard.checksums and replace(shard.checksums, file=f"{name}.crc")
    return replace(shard, file=f"{name}.arrow", checksums=checksums)


def _list_moves(shard: ArrowShard, target: ArrowShard) -> list[tuple[str, str]]:
    moves = [(shard.file, target.file)]
    if shard.checksums is not None and target.checksums is not None:
        moves.append((shard.checksums.file, target.checksums.file))
    return moves


def _write_lengths(
    folder: Path,
    axis: str,
    fields: Mapping[str, Field],
    shards: Sequence[FinishedShard[ArrowShard]],
) -> LengthsFile:
    """Write the lengths along an axis, by the offsets in the shards."""
    name = next(name for name, field in fields.items() if field.axis == axis)
    writer = LengthsWriter(folder, axis)
    for finished in shards:
        writer.add(np.diff(_read_offsets(folder, finished.shard, name)))
    return writer.finish()


def _check_unique_ids(folder: Path, shards: Sequence[FinishedShard[ArrowShard]], key: str) -> None:
    """Raise if an id occurs twice; no shard counts as finished then: one must be rewritten."""
    hashes = [hash_texts(*_read_texts(folder, finished.shard, key)) for finished in shards]
    shard_offsets = [0, *itertools.accumulate(finished.shard.sequences for finished in shards)]

    def id_for(number: int) -> str:
        at = int(np.searchsorted(shard_offsets, number, side="right")) - 1
        values, offsets = _read_texts(folder, shards[at].shard, key)
        first, stop = offsets[number - shard_offsets[at]], offsets[number - shard_offsets[at] + 1]
        return str(values[first:stop].tobytes(), "utf-8")

    try:
        check_unique_ids(np.concatenate(hashes), id_for)
    except BaseException:
        for path in folder.glob(f"*{FACTS_SUFFIX}"):
            path.unlink()
        raise


def _read_texts(
    folder: Path, shard: ArrowShard, name: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    at, size = shard.buffers[name][0]
    values: NDArray[Any] = np.fromfile(folder / shard.file, dtype=np.uint8, count=size, offset=at)
    return values, _read_offsets(folder, shard, name)


def _read_offsets(folder: Path, shard: ArrowShard, name: str) -> NDArray[np.int64]:
    at = shard.buffers[name][1][0]
    count = shard.sequences + 1
    return np.fromfile(folder / shard.file, dtype=np.int64, count=count, offset=at)
