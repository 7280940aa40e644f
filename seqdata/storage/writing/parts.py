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
from seqdata.storage.digest_trailer import read_sealed, sealed
from seqdata.storage.fields import infer_fields
from seqdata.storage.inputs import Axes, as_rows, is_frame
from seqdata.storage.writing.resume_key import Scheme
from seqdata.storage.writing.split_shards import compare_first, cut
from seqdata.storage.writing.staged_shards import Whole, find_whole, write_load
from seqdata.storage.writing.staging_dir import write_whole

Part = Callable[[], Iterable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of a part.

    Attributes:
        part: Its number.
        fields: Name -> field; None: it gave no sequence.
        shards: All of its shards, in their order.
    """

    part: int
    fields: Mapping[str, Field] | None
    shards: tuple[Whole, ...]


def are_parts(sequences: Any) -> bool:
    """Tell whether sequences are given as a list of functions."""
    is_list = isinstance(sequences, Sequence) and not isinstance(sequences, str | bytes)
    return is_list and len(sequences) > 0 and all(map(callable, sequences))


def write_part(folder: Path, number: int, part: Part, scheme: Scheme) -> Written:
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
        return _write(folder, number, part, scheme)
    except SeqDataError as error:
        facts = {name: fact for name, fact in error.facts.items() if name != "part"}
        raise type(error).at(f"part {number}, {error}", part=number, **facts) from error


def _write(folder: Path, number: int, part: Part, scheme: Scheme) -> Written:
    done = folder / f"{number:05d}.done"
    kept = find_whole(folder, number)
    rows, axes = _rows(part(), scheme.axes)
    first = next(rows, None)
    if first is None:
        write_whole(done, sealed(b"0", done.name))
        return Written(part=number, fields=None, shards=())
    fields = infer_fields(first, axes)
    shards = dict(kept)
    if int(read_sealed(done) or -1) == len(kept):
        compare_first(first, fields, scheme.key, kept[0])
    else:
        everything = itertools.chain([first], rows)
        for load in cut(everything, fields, scheme, kept, number, _nobody):
            shards[load.number] = write_load(folder, fields, load, scheme.algorithm)
        write_whole(done, sealed(str(len(shards)).encode(), done.name))
    ordered = tuple(shards[i] for i in sorted(shards))
    return Written(part=number, fields=fields, shards=ordered)


def _rows(given: Iterable[Any], axes: Axes | None) -> tuple[Iterator[Any], Axes | None]:
    """Give a part's sequences as dicts; there may be none."""
    if is_frame(given):
        return as_rows(given, axes)
    iterator = iter(given)
    for first in iterator:
        return as_rows(itertools.chain([first], iterator), axes)
    return iterator, axes


def _nobody(sequences: int, size: int) -> None:
    del sequences, size  # a part tells when it is done
