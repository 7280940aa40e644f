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
from seqdata.storage.arrow.finalize import finalize
from seqdata.storage.arrow.store import open_local
from seqdata.storage.fields import infer_fields
from seqdata.storage.inputs import is_table, normalize_sequences
from seqdata.storage.integrity.checksums import choose_algorithm
from seqdata.storage.local_files import local_path
from seqdata.storage.remote.options import Remote, refuse_remote
from seqdata.storage.remote.urls import is_remote
from seqdata.storage.writing.bounded_executor import bounded_executor
from seqdata.storage.writing.parts import Part, WrittenPart, is_part_list, write_part
from seqdata.storage.writing.progress import ProgressBar, ProgressFn, progress_bar
from seqdata.storage.writing.resume_key import ResumeKey, check_resume_key
from seqdata.storage.writing.split_shards import split_into_shards
from seqdata.storage.writing.staged_shards import (
    FinishedShard,
    find_finished_shards,
    read_finished_shards,
    write_packed_shard,
)
from seqdata.storage.writing.staging_dir import commit, open_staging_dir

SHARD_BYTES = 256 << 20
_MAX_PENDING_BYTES = 1 << 30  # bytes of shards that an executor has at a time
_MAX_PENDING = 64


def write_arrow(  # noqa: PLR0913
    location: str | os.PathLike[str],
    sequences: Iterable[Any],
    *,
    axes: Mapping[str, str | None] | None = None,
    shard_bytes: int = SHARD_BYTES,
    key: str = "id",
    executor: Executor | None = None,
    resume: bool = True,
    progress: bool | ProgressFn | None = None,
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
    _check_arguments(shard_bytes, executor)
    if is_remote(location):
        write_local = partial(
            write_arrow, sequences=sequences, axes=axes, shard_bytes=shard_bytes, key=key,
            executor=executor, resume=resume, progress=progress,
        )  # fmt: skip
        return _write_and_upload(location, write_local, remote, resume=resume, overwrite=overwrite)
    refuse_remote(location, remote)
    root = local_path(location)
    parts = list(sequences) if is_part_list(sequences) else None
    resume_key = _make_resume_key(axes, shard_bytes, key, parts)
    rows, axes = (iter(()), axes) if parts is not None else normalize_sequences(sequences, axes)
    total = _count_sequences(sequences)
    with (
        open_staging_dir(root, overwrite=overwrite, resume=resume) as folder,
        _note_finished_shards(folder, is_counted=total is not None),
        progress_bar(progress, f"writing {root.name}", total) as bar,
    ):
        check_resume_key(root, folder, resume_key)
        report_progress = _ProgressReporter(progress if callable(progress) else None, bar)
        staging_dir = folder.absolute()  # an executor may work in another folder
        if parts is None:
            fields, shards = _write_rows(
                staging_dir, rows, axes, resume_key, executor, report_progress
            )
        else:
            fields, shards = _write_parts(staging_dir, parts, resume_key, executor, report_progress)
        moves = finalize(folder, fields, shards, resume_key)
        report_progress(
            sum(one.shard.sequences for one in shards), sum(one.size for one in shards), total
        )
        commit(root, folder, moves)
    return open_local(root)


def _write_and_upload(
    location: str | os.PathLike[str],
    write_local: Callable[..., Store],
    remote: str | Remote | None,
    *,
    resume: bool,
    overwrite: bool,
) -> Store:
    from seqdata.storage.arrow.write_remote import write_remote  # local stores do without

    def write(folder: Path, replaces: bool) -> object:
        return write_local(folder, overwrite=replaces)

    return write_remote(location, remote, write, resume=resume, overwrite=overwrite)


def _count_sequences(sequences: object) -> int | None:
    """Return how many sequences, or parts, there are; None where that is not known."""
    if not isinstance(sequences, Sized):
        return None
    if isinstance(sequences, Sequence) and sequences and is_table(sequences[0]):
        return sum(map(len, sequences))
    return len(sequences)


def _make_resume_key(
    axes: Mapping[str, str | None] | None,
    shard_bytes: int,
    key: str,
    parts: Sequence[Part] | None,
) -> ResumeKey:
    return ResumeKey(
        axes=None if axes is None else dict(axes),
        shard_bytes=shard_bytes,
        key=key,
        algorithm=choose_algorithm(),
        parts=None if parts is None else len(parts),
    )


def _check_arguments(shard_bytes: int, executor: object) -> None:
    if shard_bytes < 1:
        raise ConfigError(f"`shard_bytes` is {shard_bytes!r}, must be at least 1; leave it out")
    if not isinstance(executor, Executor | None):
        raise ConfigError(
            f"`executor` is {executor!r}, must be a concurrent.futures.Executor; e.g. "
            "ThreadPoolExecutor(4)"
        )


Fields = Mapping[str, Field]


@dataclass(slots=True)
class _ProgressReporter:
    """Hands on how far writing is.

    Attributes:
        function: The user's; None: there is none.
        bar: What is shown; None: nothing is.
        before: Sequences that an earlier call wrote; the rate does not count them.
    """

    function: ProgressFn | None
    bar: ProgressBar | None
    before: int = 0

    def __call__(self, sequences: int, size: int, done: int | None = None) -> None:
        if self.function is not None:
            self.function(sequences, size)
        if self.bar is not None:
            if sequences <= self.before:
                self.bar.restart(sequences, sequences if done is None else done)
            self.bar.update(sequences, size, done)


def _write_rows(
    folder: Path,
    rows: Iterator[Any],
    axes: Mapping[str, str | None] | None,
    scheme: ResumeKey,
    executor: Executor | None,
    report_progress: _ProgressReporter,
) -> tuple[Fields, list[FinishedShard]]:
    """Pack sequences here, and write their shards on the executor."""
    first = next(rows)
    fields = infer_fields(first, axes)
    finished = find_finished_shards(folder, 0)
    report_progress.before = sum(
        written_shard.shard.sequences for written_shard in finished.values()
    )
    most = (
        1
        if executor is None
        else max(1, min(_MAX_PENDING, _MAX_PENDING_BYTES // scheme.shard_bytes) - 1)
    )
    with bounded_executor(executor, most) as jobs:
        for load in split_into_shards(
            itertools.chain([first], rows), fields, scheme, finished, 0, report_progress
        ):
            jobs.submit(write_packed_shard, folder, fields, load, scheme.algorithm)
            del load  # its memory is the job's from here on
        written = {written_shard.number: written_shard for written_shard in jobs.collect()}
    all_shards = {**finished, **written}
    return fields, [all_shards[number] for number in sorted(all_shards)]


def _write_parts(
    folder: Path,
    parts: Sequence[Part],
    scheme: ResumeKey,
    executor: Executor | None,
    report_progress: _ProgressReporter,
) -> tuple[Fields, list[FinishedShard]]:
    """Write every part, packed and all, on the executor; here where there is none."""
    written: dict[int, WrittenPart] = {}
    with ExitStack() as stack:
        if executor is None:
            completed: Iterator[WrittenPart] = (
                write_part(folder, i, part, scheme) for i, part in enumerate(parts)
            )
        else:
            jobs = stack.enter_context(bounded_executor(executor, None))
            for number, part in enumerate(parts):
                jobs.submit(write_part, folder, number, part, scheme)
            completed = jobs.iter_completed()
        count = size = 0
        for written_part in completed:
            written[written_part.part] = written_part
            count += sum(finished.shard.sequences for finished in written_part.shards)
            size += sum(finished.size for finished in written_part.shards)
            report_progress(count, size, len(written))
    ordered = [written[number] for number in range(len(parts))]
    fields = _common_fields(ordered)
    return fields, [finished for written_part in ordered for finished in written_part.shards]


def _common_fields(parts: Sequence[WrittenPart]) -> Fields:
    """Return the fields, which all parts with sequences must have alike."""
    filled = [part for part in parts if part.fields is not None]
    if not filled:
        raise ConfigError(
            "`sequences` has parts, but none of them gives a sequence, at least one must, which "
            "fixes the fields; check where they come from"
        )
    first = filled[0]
    for part in filled:
        if list((part.fields or {}).items()) != list((first.fields or {}).items()):
            raise DecodeError.at(
                f"part {part.part}: has fields {_describe_fields(part.fields)}, must have those "
                "of part "
                f"{first.part}: {_describe_fields(first.fields)}; give all parts the same",
                part=part.part,
            )
    return first.fields or {}


def _describe_fields(fields: Fields | None) -> str:
    every = (fields or {}).items()
    return ", ".join(f"{name} {one.dtype} {list(one.shape)} {one.axis}" for name, one in every)


@contextmanager
def _note_finished_shards(folder: Path, *, is_counted: bool) -> Iterator[None]:
    """Note in an error what is kept, and what may not end."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, IncompleteDatasetError) and not is_counted:
            error.add_note(
                "it is not known how many sequences there are: if they never end, cut them with "
                "itertools.islice"
            )
        if finished := read_finished_shards(folder):
            count = sum(one.shard.sequences for one in finished)
            error.add_note(
                f"{len(finished)} whole shards ({count} sequences) are kept: the same call goes on "
                "after them, or begins anew with `resume`=False"
            )
        raise
