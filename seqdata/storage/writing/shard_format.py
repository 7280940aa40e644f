"""How sequences become the files of shards: what a format is asked, and the cutting into shards.

Sequences of shards that are written already are only compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from seqdata.errors import DecodeError, must_be
from seqdata.storage.writing.finished_shards import (
    RESTART_HINT,
    FilesT,
    FinishedShard,
    explain_full_disk,
    write_facts,
)
from seqdata.storage.writing.progress import ProgressFn

_EXHAUSTED = object()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedShard:
    """The sequences of one shard, packed.

    Attributes:
        sequences: How many.
        size: What they count as, in bytes; a shard is closed by it.
        content: What the format writes.
        part: The number of the part that they are of.
        number: Of the shard, in its part.
    """

    sequences: int
    size: int
    content: Any
    part: int = 0
    number: int = 0

    @property
    def stem(self) -> str:
        """What the names of its files begin with in the staging directory."""
        return f"{self.part:05d}-{self.number:05d}"


PackFn = Callable[[Iterator[Any], int, ProgressFn], tuple[int, int, Any] | None]
"""``pack(rows, first, on_progress)`` takes the rows of one more shard, of which the first has the
number ``first``, and returns how many, the bytes they count as, and what is written; None if there
are no rows left."""


class ShardFormat(Protocol[FilesT]):
    """How sequences become the files of a shard; goes through pickle to an executor."""

    @property
    def suffix(self) -> str:
        """What the name of a shard ends with."""
        ...

    def make_packer(self) -> PackFn:
        """Return what packs one shard after the other."""
        ...

    def digest(self, sequence: Any, number: int) -> str:
        """Return the digest of a sequence, by which a later call knows it.

        Raises:
            DecodeError: If it is not like the first one.
        """
        ...

    def write(self, folder: Path, packed: PackedShard) -> tuple[FilesT, str, str]:
        """Write the files of a shard, flushed to the disk; their names begin with its stem.

        Returns:
            The files, and the digests of the first and the last sequence.
        """
        ...

    def parse(self, facts: dict[str, Any]) -> FilesT:
        """Return the files of a shard from the JSON that they became."""
        ...

    def is_intact(self, folder: Path, files: FilesT) -> bool:
        """Return whether the files in a folder are as they were written."""
        ...


def write_packed_shard(
    folder: Path, shard_format: ShardFormat[FilesT], packed: PackedShard
) -> FinishedShard[FilesT]:
    """Write a shard and its facts into a staging directory, all flushed to the disk.

    Raises:
        IncompleteDatasetError: If the disk is full.
    """
    with explain_full_disk(folder / f"{packed.stem}{shard_format.suffix}", packed.size):
        files, first, last = shard_format.write(folder, packed)
        finished = FinishedShard(
            part=packed.part, number=packed.number, size=packed.size, first=first, last=last,
            shard=files,
        )  # fmt: skip
        write_facts(folder, packed.stem, finished)
    return finished


def pack_shards(
    rows: Iterator[Any],
    shard_format: ShardFormat[FilesT],
    limit: int,
    finished: Mapping[int, FinishedShard[FilesT]],
    part: int,
    on_progress: ProgressFn,
) -> Iterator[PackedShard]:
    """Yield the shards of a part that are still to be written.

    Args:
        rows: The sequences of the part.
        shard_format: Packs them.
        limit: The size from which on a shard is closed, in bytes.
        finished: Number -> shard that is written: its first and last sequence are compared.
        part: The number of the part.
        on_progress: Called now and then with (sequences, bytes), those that are compared included.

    Raises:
        DecodeError: If a sequence is not like the first one, or not the one that was written.
    """
    pack = shard_format.make_packer()
    count = total = 0

    def report(sequences: int, size: int) -> None:
        on_progress(sequences, total + size)

    for number in itertools.count():
        shard = finished.get(number)
        if shard is not None:
            _skip_finished(rows, shard_format, shard, count)
            count += shard.shard.sequences
            total += shard.size
            on_progress(count, total)
            continue
        packed = pack(rows, count, report)
        if packed is None:
            _check_end(finished, number, count)
            return
        _check_last_shard(finished.get(number - 1), limit, count)
        sequences, size, content = packed
        count, total = count + sequences, total + size
        shard_list = [
            PackedShard(sequences=sequences, size=size, content=content, part=part, number=number)
        ]
        del packed, content  # its memory is the caller's from here on
        yield shard_list.pop()


def _skip_finished(
    rows: Iterator[Any],
    shard_format: ShardFormat[FilesT],
    finished: FinishedShard[FilesT],
    first: int,
) -> None:
    """Take the sequences of a shard that is written, if they are the same."""
    count = finished.shard.sequences
    check_same(next(rows, _EXHAUSTED), shard_format, first, finished.first)
    if count == 1:
        return
    between = sum(1 for _ in itertools.islice(rows, count - 2))
    if between < count - 2:
        raise _make_missing_error(first + 1 + between)
    check_same(next(rows, _EXHAUSTED), shard_format, first + count - 1, finished.last)


def check_same(sequence: Any, shard_format: ShardFormat[FilesT], number: int, digest: str) -> None:
    """Raise if a sequence is not the one that was written before.

    Args:
        sequence: The sequence.
        shard_format: Computes its digest.
        number: Its number.
        digest: That of the one that was written.

    Raises:
        DecodeError: If it is another one, or like none of the others.
    """
    if sequence is _EXHAUSTED:
        raise _make_missing_error(number)
    if shard_format.digest(sequence, number) != digest:
        raise DecodeError.at(
            must_be(
                f"sequence {number}:",
                "the one that was written before the interruption",
                "another one",
                f"Pass the same sequences in the same order, or {RESTART_HINT}",
            ),
            sequence=number,
        )


def _make_missing_error(number: int) -> DecodeError:
    return DecodeError.at(
        must_be(
            f"sequence {number}:",
            "there, as it was written before the interruption",
            "missing",
            f"Pass the same sequences, or {RESTART_HINT}",
        ),
        sequence=number,
    )


def _check_end(finished: Mapping[int, FinishedShard[Any]], number: int, count: int) -> None:
    """Raise if finished shards are left over where the sequences end."""
    if any(finished_number > number for finished_number in finished):
        raise _make_missing_error(count)


def _check_last_shard(before: FinishedShard[Any] | None, limit: int, number: int) -> None:
    """Raise if sequences follow a shard that was the last one when it was written."""
    if before is not None and before.size < limit:
        raise DecodeError.at(
            f"sequence {number}: must not be there, but follows what was the last sequence before "
            f"the interruption. Pass the same sequences, or {RESTART_HINT}.",
            sequence=number,
        )
