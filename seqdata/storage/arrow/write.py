"""Writing a store: any iterable of sequences, shard by shard, all of it or nothing.

While one shard is digested and written, the next is packed. What was written before a failure is
gone on with by the next call. Place in the flow: the user's data becomes a store. Reads: sequences.
Makes: Arrow shards, lengths and a manifest.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seqdata.errors import ConfigError, DecodeError, IncompleteDatasetError
from seqdata.protocols import Field, Store
from seqdata.storage.arrow.finalize import finish
from seqdata.storage.arrow.store import open_local
from seqdata.storage.fields import infer_fields
from seqdata.storage.inputs import as_rows, is_frame
from seqdata.storage.integrity.checksums import algorithm
from seqdata.storage.local_files import local_path
from seqdata.storage.remote.options import Remote, refuse_remote
from seqdata.storage.remote.urls import is_remote
from seqdata.storage.writing.bounded_executor import running
from seqdata.storage.writing.parts import Part, Written, are_parts, write_part
from seqdata.storage.writing.progress import Bar, Progress, told
from seqdata.storage.writing.resume_key import Scheme, agree
from seqdata.storage.writing.split_shards import cut
from seqdata.storage.writing.staged_shards import Whole, facts_in, find_whole, write_load
from seqdata.storage.writing.staging_dir import aside, commit

SHARD_BYTES = 256 << 20
_UNDER_WAY = 1 << 30  # bytes of shards that an executor has at a time
_MOST_JOBS = 64


def write_arrow(  # noqa: PLR0913
    location: str | os.PathLike[str],
    sequences: Iterable[Any],
    *,
    axes: Mapping[str, str | None] | None = None,
    shard_bytes: int = SHARD_BYTES,
    key: str = "id",
    executor: Executor | None = None,
    resume: bool = True,
    progress: bool | Progress | None = None,
    overwrite: bool = False,
    remote: str | Remote | None = None,
) -> Store:
    """Write sequences as a store and open it; see ``opening.write_store``.

    The first sequence fixes the fields. The store is there when all of it is; an older one stays as
    it was until then. A writer that fails or is killed leaves its whole shards in a folder aside,
    and the same call goes on after them: what it writes is, byte for byte, what it would have been.

    Its arguments are those of ``opening.write_store``.

    Raises:
        ConfigError: If an argument cannot be meant, or does not fit what is there.
        DecodeError: If a sequence is not like the first one, or not what was written before.
        IncompleteDatasetError: If the disk is full.
        WorkerDiedError: If the executor broke.
    """
    _check(shard_bytes, executor)
    if is_remote(location):
        here = partial(
            write_arrow, sequences=sequences, axes=axes, shard_bytes=shard_bytes, key=key,
            executor=executor, resume=resume, progress=progress,
        )  # fmt: skip
        return _write_and_send(location, here, remote, resume=resume, overwrite=overwrite)
    refuse_remote(location, remote)
    root = local_path(location)
    parts = list(sequences) if are_parts(sequences) else None
    scheme = _scheme(axes, shard_bytes, key, parts)
    rows, axes = (iter(()), axes) if parts is not None else as_rows(sequences, axes)
    total = _count(sequences)
    with (
        aside(root, overwrite=overwrite, resume=resume) as folder,
        _noting(folder, counted=total is not None),
        told(progress, f"writing {root.name}", total) as bar,
    ):
        agree(root, folder, scheme)
        tell = _Teller(progress if callable(progress) else None, bar)
        there = folder.absolute()  # an executor may work in another folder
        if parts is None:
            fields, shards = _write_rows(there, rows, axes, scheme, executor, tell)
        else:
            fields, shards = _write_parts(there, parts, scheme, executor, tell)
        moves = finish(folder, fields, shards, scheme)
        tell(sum(one.shard.sequences for one in shards), sum(one.size for one in shards), total)
        commit(root, folder, moves)
    return open_local(root)


def _write_and_send(
    location: str | os.PathLike[str],
    here: Callable[..., Store],
    remote: str | Remote | None,
    *,
    resume: bool,
    overwrite: bool,
) -> Store:
    from seqdata.storage.arrow.write_remote import write_remote  # local stores do without

    def write(folder: Path, replaces: bool) -> object:
        return here(folder, overwrite=replaces)

    return write_remote(location, remote, write, resume=resume, overwrite=overwrite)


def _count(sequences: object) -> int | None:
    """Give how many sequences, or parts, there are; None where that is not known."""
    if not isinstance(sequences, Sized):
        return None
    if isinstance(sequences, Sequence) and sequences and is_frame(sequences[0]):
        return sum(map(len, sequences))
    return len(sequences)


def _scheme(
    axes: Mapping[str, str | None] | None,
    shard_bytes: int,
    key: str,
    parts: Sequence[Part] | None,
) -> Scheme:
    return Scheme(
        axes=None if axes is None else dict(axes),
        shard_bytes=shard_bytes,
        key=key,
        algorithm=algorithm(),
        parts=None if parts is None else len(parts),
    )


def _check(shard_bytes: int, executor: object) -> None:
    if shard_bytes < 1:
        raise ConfigError(f"`shard_bytes` is {shard_bytes!r}, must be at least 1; leave it out")
    if not isinstance(executor, Executor | None):
        raise ConfigError(
            f"`executor` is {executor!r}, must be a concurrent.futures.Executor; e.g. "
            "ThreadPoolExecutor(4)"
        )


Fields = Mapping[str, Field]


@dataclass(slots=True)
class _Teller:
    """Hands on how far writing is.

    Attributes:
        function: The user's; None: there is none.
        bar: What is shown; None: nothing is.
        before: Sequences that an earlier call wrote; the rate does not count them.
    """

    function: Progress | None
    bar: Bar | None
    before: int = 0

    def __call__(self, sequences: int, size: int, done: int | None = None) -> None:
        if self.function is not None:
            self.function(sequences, size)
        if self.bar is not None:
            if sequences <= self.before:
                self.bar.begin(sequences, sequences if done is None else done)
            self.bar.tell(sequences, size, done)


def _write_rows(
    folder: Path,
    rows: Iterator[Any],
    axes: Mapping[str, str | None] | None,
    scheme: Scheme,
    executor: Executor | None,
    tell: _Teller,
) -> tuple[Fields, list[Whole]]:
    """Pack sequences here, and write their shards on the executor."""
    first = next(rows)
    fields = infer_fields(first, axes)
    kept = find_whole(folder, 0)
    tell.before = sum(one.shard.sequences for one in kept.values())
    most = 1 if executor is None else max(1, min(_MOST_JOBS, _UNDER_WAY // scheme.shard_bytes) - 1)
    with running(executor, most) as jobs:
        for load in cut(itertools.chain([first], rows), fields, scheme, kept, 0, tell):
            jobs.add(write_load, folder, fields, load, scheme.algorithm)
            del load  # its memory is the job's from here on
        written = {one.number: one for one in jobs.results()}
    whole = {**kept, **written}
    return fields, [whole[number] for number in sorted(whole)]


def _write_parts(
    folder: Path,
    parts: Sequence[Part],
    scheme: Scheme,
    executor: Executor | None,
    tell: _Teller,
) -> tuple[Fields, list[Whole]]:
    """Write every part, packed and all, on the executor; here where there is none."""
    written: dict[int, Written] = {}
    with ExitStack() as stack:
        if executor is None:
            ended: Iterator[Written] = (
                write_part(folder, i, part, scheme) for i, part in enumerate(parts)
            )
        else:
            jobs = stack.enter_context(running(executor, None))
            for number, part in enumerate(parts):
                jobs.add(write_part, folder, number, part, scheme)
            ended = jobs.ended()
        count = size = 0
        for one in ended:
            written[one.part] = one
            count += sum(whole.shard.sequences for whole in one.shards)
            size += sum(whole.size for whole in one.shards)
            tell(count, size, len(written))
    ordered = [written[number] for number in range(len(parts))]
    fields = _fields_of_all(ordered)
    return fields, [whole for one in ordered for whole in one.shards]


def _fields_of_all(parts: Sequence[Written]) -> Fields:
    """Give the fields, which all parts with sequences must have alike."""
    filled = [one for one in parts if one.fields is not None]
    if not filled:
        raise ConfigError(
            "`sequences` has parts, but none of them gives a sequence, at least one must, which "
            "fixes the fields; check where they come from"
        )
    first = filled[0]
    for one in filled:
        if list((one.fields or {}).items()) != list((first.fields or {}).items()):
            raise DecodeError.at(
                f"part {one.part}: has fields {_described(one.fields)}, must have those of part "
                f"{first.part}: {_described(first.fields)}; give all parts the same",
                part=one.part,
            )
    return first.fields or {}


def _described(fields: Fields | None) -> str:
    every = (fields or {}).items()
    return ", ".join(f"{name} {one.dtype} {list(one.shape)} {one.axis}" for name, one in every)


@contextmanager
def _noting(folder: Path, *, counted: bool) -> Iterator[None]:
    """Note in an error what is kept, and what may not end."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, IncompleteDatasetError) and not counted:
            error.add_note(
                "it is not known how many sequences there are: if they never end, cut them with "
                "itertools.islice"
            )
        if kept := facts_in(folder):
            count = sum(one.shard.sequences for one in kept)
            error.add_note(
                f"{len(kept)} whole shards ({count} sequences) are kept: the same call goes on "
                "after them, or begins anew with `resume`=False"
            )
        raise
