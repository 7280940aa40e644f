"""Sequences cut into shards, where those that are written already are only compared.

Place in the flow: the writer packs by it. Reads: sequences. Makes: packed sequences, a shard at a
time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from seqdata.errors import DecodeError
from seqdata.kernel.dispatch import get_kernel
from seqdata.protocols import Field
from seqdata.storage.writing.packing import (
    check_axis_lengths,
    check_packed_ids,
    make_packer,
    pack_sequence,
    pack_sequences,
)
from seqdata.storage.writing.resume_key import RESTART_HINT, ResumeKey
from seqdata.storage.writing.staged_shards import FinishedShard, PackedShard, digest_sequence

ProgressFn = Callable[[int, int], None]
_PROGRESS_SEQUENCES = 1024  # sequences between two calls of `on_progress`, at most
_PROGRESS_BYTES = 1 << 24
_EXHAUSTED = object()


def split_into_shards(
    rows: Iterator[Any],
    fields: Mapping[str, Field],
    scheme: ResumeKey,
    finished: Mapping[int, FinishedShard],
    part: int,
    on_progress: ProgressFn,
) -> Iterator[PackedShard]:
    """Yield the shards that are still to be written, of all sequences of a part.

    Args:
        rows: The sequences.
        fields: Name -> field.
        scheme: Where a shard ends.
        finished: Number -> shard that is written already: its first and last sequence are compared.
        part: Number of the part.
        on_progress: Called now and then with (sequences, bytes), those that are compared included.

    Raises:
        DecodeError: If a sequence is not like the first one, or not the one that was written.
    """
    packers = {name: make_packer(one, is_key=name == scheme.key) for name, one in fields.items()}
    key, limit, engine = scheme.key, scheme.shard_bytes, get_kernel()
    count = total = 0
    for number in itertools.count():
        finished_shard = finished.get(number)
        if finished_shard is not None:
            _skip_finished(rows, fields, key, finished_shard, count)
            count += finished_shard.shard.sequences
            total += finished_shard.size
            on_progress(count, total)
            continue
        first, size, stop = count, 0, min(limit, _PROGRESS_BYTES)
        unpacked: tuple[Any, ...] | None = ()
        while unpacked is not None and size < limit:
            most = _PROGRESS_SEQUENCES - count % _PROGRESS_SEQUENCES
            packed, bytes_, unpacked = pack_sequences(engine, packers, rows, most, stop - size)
            count, size = count + packed, size + bytes_
            if unpacked:  # not plain, or no room: by itself, and the next ones where none was plain
                next_rows = itertools.islice(rows, 0 if packed else most - 1)
                for sequence in itertools.chain(unpacked, next_rows):
                    size += pack_sequence(packers, sequence, count, key)
                    count += 1
                    if size >= stop:
                        break
            if count % _PROGRESS_SEQUENCES == 0 or size >= stop:
                on_progress(count, total + size)
                stop = min(limit, size + _PROGRESS_BYTES)
        if count == first:
            _check_end(finished, number, count)
            return
        _check_last_shard(finished.get(number - 1), limit, first)
        total += size
        yield _pack_shard(packers, fields, key, part, number, size, first)


def _pack_shard(
    packers: Mapping[str, Any],
    fields: Mapping[str, Field],
    key: str,
    part: int,
    number: int,
    size: int,
    first: int,
) -> PackedShard:
    packed = {name: packer.take() for name, packer in packers.items()}
    lengths = check_axis_lengths(fields, packed, first, key)
    check_packed_ids(fields, packed, key, first)
    timesteps = {axis: int(one.sum()) for axis, one in lengths.items()}
    return PackedShard(part=part, number=number, size=size, packed=packed, timesteps=timesteps)


def _skip_finished(
    rows: Iterator[Any],
    fields: Mapping[str, Field],
    key: str,
    finished_shard: FinishedShard,
    first: int,
) -> None:
    """Leave out the sequences of a shard that is written, where they are the same."""
    count = finished_shard.shard.sequences
    _check_same_sequence(next(rows, _EXHAUSTED), fields, key, first, finished_shard.first)
    if count == 1:
        return
    between = sum(1 for _ in itertools.islice(rows, count - 2))
    if between < count - 2:
        raise _make_missing_error(first + 1 + between)
    _check_same_sequence(
        next(rows, _EXHAUSTED), fields, key, first + count - 1, finished_shard.last
    )


def check_first_sequence(
    sequence: Any, fields: Mapping[str, Field], key: str, finished_shard: FinishedShard
) -> None:
    """Refuse a first sequence that is not the one of the first shard that was written.

    Raises:
        DecodeError: If it is another one.
    """
    _check_same_sequence(sequence, fields, key, 0, finished_shard.first)


def _check_same_sequence(
    sequence: Any, fields: Mapping[str, Field], key: str, number: int, digest: str
) -> None:
    if sequence is _EXHAUSTED:
        raise _make_missing_error(number)
    packers = {name: make_packer(field, is_key=name == key) for name, field in fields.items()}
    pack_sequence(packers, sequence, number, key)
    packed = {name: packer.take() for name, packer in packers.items()}
    if digest_sequence(fields, packed, 0) != digest:
        raise DecodeError.at(
            f"sequence {number}: is not the one that was written before writing stopped, must be, "
            f"for it to go on; give the same sequences in the same order, or {RESTART_HINT}",
            sequence=number,
        )


def _make_missing_error(count: int) -> DecodeError:
    return DecodeError.at(
        f"sequence {count}: is not there, must be, as it was written before writing stopped; give "
        f"the same sequences, or {RESTART_HINT}",
        sequence=count,
    )


def _check_end(finished: Mapping[int, FinishedShard], number: int, count: int) -> None:
    """Refuse that shards are left over where the sequences end."""
    if any(one > number for one in finished):
        raise _make_missing_error(count)


def _check_last_shard(before: FinishedShard | None, limit: int, number: int) -> None:
    """Refuse sequences after a shard that was the last one when it was written."""
    if before is not None and before.size < limit:
        raise DecodeError.at(
            f"sequence {number}: comes after the last one that was there before writing stopped, "
            f"must be none; give the same sequences, or {RESTART_HINT}",
            sequence=number,
        )
