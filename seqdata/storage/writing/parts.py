"""Parts: functions that give sequences, each written as shards of its own, wherever it runs.

Place in the flow: the writer hands parts to an executor. Reads: what a part gives. Makes: shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqdata.errors import SeqDataError
from seqdata.protocols import Field
from seqdata.storage.digest_trailer import add_digest, read_with_digest
from seqdata.storage.fields import infer_fields
from seqdata.storage.inputs import Axes, is_table, normalize_sequences
from seqdata.storage.writing.resume_key import ResumeKey
from seqdata.storage.writing.split_shards import check_first_sequence, split_into_shards
from seqdata.storage.writing.staged_shards import (
    FinishedShard,
    find_finished_shards,
    write_packed_shard,
)
from seqdata.storage.writing.staging_dir import write_atomically

Part = Callable[[], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart:
    """What became of a part.

    Attributes:
        part: Its number.
        fields: Name -> field; None: it gave no sequence.
        shards: All of its shards, in their order.
    """

    part: int
    fields: Mapping[str, Field] | None
    shards: tuple[FinishedShard, ...]


def is_part_list(sequences: Any) -> bool:
    """Return whether sequences are given as a list of functions."""
    is_list = isinstance(sequences, Sequence) and not isinstance(sequences, str | bytes)
    return is_list and len(sequences) > 0 and all(map(callable, sequences))


def write_part(folder: Path, number: int, part: Part, scheme: ResumeKey) -> WrittenPart:
    """Write the sequences of a part, after those of its shards that are whole already.

    Of a part that was finished only the first sequence is drawn and compared.

    Args:
        folder: The folder aside.
        number: Of the part.
        part: Gives an iterable of sequences.
        scheme: How they become shards.

    Raises:
        SeqDataError: What is wrong with the sequences or the disk, naming the part.
    """
    try:
        return _write_shards(folder, number, part, scheme)
    except SeqDataError as error:
        facts = {name: fact for name, fact in error.facts.items() if name != "part"}
        raise type(error).at(f"part {number}, {error}", part=number, **facts) from error


def _write_shards(folder: Path, number: int, part: Part, scheme: ResumeKey) -> WrittenPart:
    done_file = folder / f"{number:05d}.done"
    finished = find_finished_shards(folder, number)
    rows, axes = _iter_part(part(), scheme.axes)
    first = next(rows, None)
    if first is None:
        write_atomically(done_file, add_digest(b"0", done_file.name))
        return WrittenPart(part=number, fields=None, shards=())
    fields = infer_fields(first, axes)
    shards = dict(finished)
    if int(read_with_digest(done_file) or -1) == len(finished):
        check_first_sequence(first, fields, scheme.key, finished[0])
    else:
        all_rows = itertools.chain([first], rows)
        for load in split_into_shards(all_rows, fields, scheme, finished, number, _ignore_progress):
            shards[load.number] = write_packed_shard(folder, fields, load, scheme.algorithm)
        write_atomically(done_file, add_digest(str(len(shards)).encode(), done_file.name))
    ordered = tuple(shards[i] for i in sorted(shards))
    return WrittenPart(part=number, fields=fields, shards=ordered)


def _iter_part(sequences: Iterable[Any], axes: Axes | None) -> tuple[Iterator[Any], Axes | None]:
    """Return a part's sequences as dicts; there may be none."""
    if is_table(sequences):
        return normalize_sequences(sequences, axes)
    iterator = iter(sequences)
    for first in iterator:
        return normalize_sequences(itertools.chain([first], iterator), axes)
    return iterator, axes


def _ignore_progress(sequences: int, size: int) -> None:
    del sequences, size  # a part tells when it is done
