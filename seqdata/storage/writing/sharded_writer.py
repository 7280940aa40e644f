"""A writer of sequences as shards, all of them or none, for any format of shards.

While one shard is written, the next is packed. A writer that fails or is killed leaves its finished
shards in the staging directory, and the same call continues after them: it compares the first
sequences with the finished shards, and packs the rest. A ``ShardFormat`` turns sequences into the
bytes of a shard.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from seqdata.errors import (
    ConfigError,
    DecodeError,
    IncompleteDatasetError,
    SeqDataError,
    WorkerDiedError,
    must_be,
)
from seqdata.protocols import Field
from seqdata.storage.digest_trailer import add_digest, read_with_digest
from seqdata.storage.inputs import Axes, is_table, normalize_sequences
from seqdata.storage.local_files import write_atomically
from seqdata.storage.schema import infer_fields
from seqdata.storage.writing.progress import ProgressBar, ProgressFn, progress_bar
from seqdata.storage.writing.shards import (
    FilesT,
    FinishedShard,
    ResumeKey,
    ShardFormat,
    check_resume_key,
    check_same,
    count_finished,
    find_finished_shards,
    pack_shards,
    write_packed_shard,
)
from seqdata.storage.writing.staging_dir import (
    StoreFiles,
    is_first_pass_finished,
    open_staging_dir,
)

Part = Callable[[], Iterable[Any]]
Fields = Mapping[str, Field]
MakeFormat = Callable[[Fields, ResumeKey], ShardFormat[FilesT]]
_MAX_PENDING_BYTES = 1 << 30  # shards of an executor at a time
_MAX_PENDING = 64
_DEAD_WORKER_ERRORS = ("KilledWorker", "WorkerCrashedError")  # names of Dask's and Ray's
_STOP_SECONDS = 60.0  # seconds for running functions to end after a failure


@dataclass(slots=True)
class ProgressReporter:
    """Reports the progress of a writer.

    Attributes:
        function: Function of the user; None if there is none.
        bar: The progress bar; None if none is shown.
        before: Sequences that an earlier call wrote; the rate does not count them.
    """

    function: ProgressFn | None
    bar: ProgressBar | None
    before: int = 0

    def begin(self, step: str, total: int | None) -> None:
        """Begin a step of several, such as a pass over all sequences.

        Args:
            step: The name of the step.
            total: The total that a bar shows; None if it is not known.
        """
        self.before = 0
        if self.bar is not None:
            self.bar.begin(step, total)

    def __call__(self, sequences: int, size: int, done: int | None = None) -> None:
        """Report the progress.

        Args:
            sequences: Number of finished sequences.
            size: Size of them in bytes.
            done: The finished part of the total; None: ``sequences``.
        """
        if self.function is not None:
            self.function(sequences, size)
        if self.bar is not None:
            if sequences <= self.before:
                self.bar.restart(sequences, sequences if done is None else done)
            self.bar.update(sequences, size, done)


@dataclass(frozen=True, slots=True)
class ShardedWriter:
    """Writes shards into a staging directory. Created by ``open_sharded_writer``.

    Attributes:
        folder: The staging directory; absolute, since an executor may work in another folder.
        resume_key: The options that shards depend on.
        executor: The executor that writes shards; None: two threads of this process.
        report: Called with (sequences, bytes, parts) that are written.
    """

    folder: Path
    resume_key: ResumeKey
    executor: Executor | None
    report: ProgressReporter

    def write_rows(
        self, rows: Iterator[Any], shard_format: ShardFormat[FilesT]
    ) -> list[FinishedShard[FilesT]]:
        """Pack sequences here, and write their shards on the executor; return all, in order.

        Raises:
            DecodeError: If a sequence is not like the first one, or not what was written before.
            IncompleteDatasetError: If the disk is full.
            WorkerDiedError: If the executor broke.
        """
        finished = find_finished_shards(self.folder, 0, shard_format.parse, shard_format.is_intact)
        self.report.before = sum(shard.shard.sequences for shard in finished.values())
        limit = self.resume_key.shard_bytes
        pending = min(_MAX_PENDING, _MAX_PENDING_BYTES // limit) - 1
        max_pending = 1 if self.executor is None else max(1, pending)
        with bounded_executor(self.executor, max_pending) as bounded:
            for packed in pack_shards(rows, shard_format, limit, finished, 0, self.report):
                bounded.submit(write_packed_shard, self.folder, shard_format, packed)
                del packed  # its memory belongs to the executor from here on
            written = {shard.number: shard for shard in bounded.collect()}
        all_shards = {**finished, **written}
        return [all_shards[number] for number in sorted(all_shards)]

    def write_parts(
        self, parts: Sequence[Part], make_format: MakeFormat[FilesT]
    ) -> tuple[Fields, list[FinishedShard[FilesT]]]:
        """Pack and write every part on the executor, or in this thread if there is none.

        Args:
            parts: Functions that return sequences.
            make_format: Returns the format of sequences with these fields; goes through pickle.

        Returns:
            The fields, and all shards in their order.

        Raises:
            ConfigError: If no part has a sequence.
            DecodeError: If parts have different fields, or as for ``write_rows``.
            IncompleteDatasetError: If the disk is full.
            WorkerDiedError: If the executor broke.
        """
        written: dict[int, WrittenPart[FilesT]] = {}
        count = size = 0
        for part in self._iter_written(parts, make_format):
            written[part.part] = part
            count += sum(finished.shard.sequences for finished in part.shards)
            size += sum(finished.size for finished in part.shards)
            self.report(count, size, len(written))
        ordered = [written[number] for number in range(len(parts))]
        return _common_fields(ordered), [shard for each in ordered for shard in each.shards]

    def _iter_written(
        self, parts: Sequence[Part], make_format: MakeFormat[FilesT]
    ) -> Iterator[WrittenPart[FilesT]]:
        """Yield parts as they are written, in any order."""
        if self.executor is None:
            for number, part in enumerate(parts):
                yield write_part(self.folder, number, part, self.resume_key, make_format)
            return
        with bounded_executor(self.executor, None) as bounded:
            for number, part in enumerate(parts):
                bounded.submit(write_part, self.folder, number, part, self.resume_key, make_format)
            yield from bounded.iter_completed()


@contextmanager
def open_sharded_writer(
    root: Path,
    files: StoreFiles,
    resume_key: ResumeKey,
    *,
    executor: Executor | None,
    progress: bool | ProgressFn | None,
    total: int | None,
    overwrite: bool,
    resume: bool,
) -> Iterator[ShardedWriter]:
    """Yield a writer into a staging directory of a folder, which the caller commits.

    Args:
        root: The folder of the store.
        files: Which files of the folder are a store's.
        resume_key: The options that shards depend on.
        executor: The executor that writes shards; None: two threads of this process.
        progress: Called with (sequences, bytes); True: a bar; None: a bar on a terminal. The
            reporter of another writer reports the steps of this one, too.
        total: Number of sequences or parts; None if it is not known.
        overwrite: Whether a finished store may be replaced.
        resume: Whether to continue where a writer stopped; otherwise its files are removed.

    Raises:
        ConfigError: If an argument is invalid, or does not fit the existing files.
    """
    check_arguments(resume_key.shard_bytes, executor)
    with (
        open_staging_dir(root, files, overwrite=overwrite, resume=resume) as folder,
        _note_finished_shards(folder, is_counted=total is not None),
        progress_bar(progress, f"writing {root.name}", total) as bar,
    ):
        check_resume_key(root, folder, resume_key)
        if isinstance(progress, ProgressReporter):
            report = progress
        else:
            report = ProgressReporter(progress if callable(progress) else None, bar)
        yield ShardedWriter(folder.absolute(), resume_key, executor, report)


def check_arguments(shard_bytes: int, executor: object) -> None:
    """Raise if the size of shards or the executor is invalid.

    Raises:
        ConfigError: If it is.
    """
    if not isinstance(shard_bytes, int) or isinstance(shard_bytes, bool) or shard_bytes < 1:
        needed = "an integer of at least 1"
        raise ConfigError(must_be("`shard_bytes`", needed, repr(shard_bytes), "Leave it out"))
    if not isinstance(executor, Executor | None):
        raise ConfigError(
            must_be(
                "`executor`",
                "a concurrent.futures.Executor",
                repr(executor),
                "Pass for example ThreadPoolExecutor(4)",
            )
        )


def is_part_list(sequences: Any) -> bool:
    """Return whether sequences are given as a list of functions."""
    is_list = isinstance(sequences, Sequence) and not isinstance(sequences, str | bytes)
    return is_list and len(sequences) > 0 and all(map(callable, sequences))


def chain_parts(sequences: Any) -> Any:
    """Return the sequences of a list of functions as one iterable; others as they are."""
    if not is_part_list(sequences):
        return sequences
    return itertools.chain.from_iterable(part() for part in sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPart(Generic[FilesT]):
    """The result of writing a part.

    Attributes:
        part: The number of the part.
        fields: Name -> field; None if it had no sequence.
        shards: All of its shards, in their order.
    """

    part: int
    fields: Fields | None
    shards: tuple[FinishedShard[FilesT], ...]


def write_part(
    folder: Path, number: int, part: Part, resume_key: ResumeKey, make_format: MakeFormat[FilesT]
) -> WrittenPart[FilesT]:
    """Write the sequences of a part, after those of its shards that are finished already.

    Of a part that was finished, only the first sequence is drawn and compared.

    Args:
        folder: The staging directory.
        number: The number of the part.
        part: Returns an iterable of sequences.
        resume_key: The options that shards depend on.
        make_format: Returns the format of sequences with these fields.

    Raises:
        SeqDataError: The error of the sequences or the disk; the message names the part.
    """
    try:
        return _write_part(folder, number, part, resume_key, make_format)
    except SeqDataError as error:
        details = {name: value for name, value in error.details.items() if name != "part"}
        raise type(error).at(f"part {number}, {error}", part=number, **details) from error


def _write_part(
    folder: Path, number: int, part: Part, resume_key: ResumeKey, make_format: MakeFormat[FilesT]
) -> WrittenPart[FilesT]:
    done_file = folder / f"{number:05d}.done"
    rows, axes = _iter_part(part(), resume_key.axes)
    first = next(rows, None)
    if first is None:
        write_atomically(done_file, add_digest(b"0", done_file.name))
        return WrittenPart(part=number, fields=None, shards=())
    fields = infer_fields(first, axes)
    shard_format = make_format(fields, resume_key)
    shards = find_finished_shards(folder, number, shard_format.parse, shard_format.is_intact)
    if shards and int(read_with_digest(done_file) or -1) == len(shards):
        check_same(first, shard_format, 0, shards[0].first)
    else:
        rows, limit = itertools.chain([first], rows), resume_key.shard_bytes
        for packed in pack_shards(rows, shard_format, limit, dict(shards), number, _ignore):
            shards[packed.number] = write_packed_shard(folder, shard_format, packed)
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


def _ignore(sequences: int, size: int) -> None:
    del sequences, size  # a part is reported when it is done


def _common_fields(parts: Sequence[WrittenPart[Any]]) -> Fields:
    """Return the fields, which must be the same in all parts with sequences."""
    filled = [part for part in parts if part.fields is not None]
    if not filled:
        raise ConfigError(
            "`sequences` must have a part with at least one sequence, which determines the "
            "fields, but no part has any. Check where they come from."
        )
    first = filled[0]
    for part in filled:
        if list((part.fields or {}).items()) != list((first.fields or {}).items()):
            raise DecodeError.at(
                f"part {part.part}: must have the fields {_describe_fields(first.fields)}, as part "
                f"{first.part}, but has {_describe_fields(part.fields)}. Give all parts the same "
                "fields.",
                part=part.part,
            )
    return first.fields or {}


def _describe_fields(fields: Fields | None) -> str:
    return ", ".join(
        f"{name} {field.logical or field.dtype} {list(field.shape)} {field.axis}"
        for name, field in (fields or {}).items()
    )


@contextmanager
def _note_finished_shards(folder: Path, *, is_counted: bool) -> Iterator[None]:
    """Add notes to an error: the kept shards, and sequences that may not end."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, IncompleteDatasetError) and not is_counted:
            error.add_note(
                "it is not known how many sequences there are: if they never end, cut them with "
                "itertools.islice"
            )
        shards, sequences = count_finished(folder)
        if not shards and is_first_pass_finished(folder.parent):
            error.add_note(
                "all sequences are kept in the order given: the same call continues with the "
                "second pass, or starts again with `resume=False`"
            )
        if shards:
            error.add_note(
                f"{shards} finished shards ({sequences} sequences) are kept: the same call "
                "continues after them, or starts again with `resume=False`"
            )
        raise


class BoundedExecutor:
    """The functions submitted to an executor. Created by ``bounded_executor``.

    Args:
        executor: The executor that runs the functions.
        max_pending: Maximum number of pending functions when ``submit`` returns: it waits for one
            to end. None: any number.
    """

    __slots__ = ("_executor", "_max_pending", "_order", "_pending")

    def __init__(self, executor: Executor, max_pending: int | None) -> None:
        self._executor = executor
        self._max_pending = max_pending
        self._order: dict[Future[Any], int] = {}
        self._pending: set[Future[Any]] = set()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Submit a function, and wait until few enough are pending; raise an ended one's error.

        Raises:
            WorkerDiedError: If the executor broke.
        """
        try:
            future = self._executor.submit(function, *arguments)
        except BrokenExecutor as error:
            raise _make_broken_error(error) from error
        self._order[future] = len(self._order)
        self._pending.add(future)
        while self._max_pending is not None and len(self._pending) > self._max_pending:
            self._wait_for_one()

    def iter_completed(self) -> Iterator[Any]:
        """Yield results as they complete, until nothing is pending.

        Raises:
            WorkerDiedError: If the executor broke.
        """
        for future in as_completed(tuple(self._pending)):
            self._pending.discard(future)
            yield _get_result(future)

    def collect(self) -> list[Any]:
        """Return all results, in the order of submission.

        Raises:
            WorkerDiedError: If the executor broke.
        """
        for _ in self.iter_completed():
            pass
        return [_get_result(future) for future in self._order]

    def shut_down(self) -> None:
        """Cancel tasks that have not started, and wait a limited time for running ones."""
        pending = list(self._pending)
        if self._max_pending is None:  # a cancelled one may never report its end
            pending = [future for future in pending if not future.cancel()]
        wait(pending, _STOP_SECONDS)

    def _wait_for_one(self) -> None:
        """Wait until a function has ended; raise its error, the earliest submitted first."""
        # each function writes its arguments, and returns
        done, self._pending = wait(self._pending, return_when=FIRST_COMPLETED)  # ends: see above
        for future in sorted(done, key=lambda done_future: self._order[done_future]):
            _get_result(future)


def _get_result(future: Future[Any]) -> Any:
    try:
        return future.result(timeout=0)
    except Exception as error:
        if isinstance(error, BrokenExecutor) or type(error).__name__ in _DEAD_WORKER_ERRORS:
            raise _make_broken_error(error) from error
        raise


def _make_broken_error(error: Exception) -> WorkerDiedError:
    return WorkerDiedError(
        f"`executor`: broke while shards were written ({error}). Look for "
        "what ended its processes (out of memory?) and write again: finished shards are kept."
    )


@contextmanager
def bounded_executor(
    executor: Executor | None, max_pending: int | None
) -> Iterator[BoundedExecutor]:
    """Yield a ``BoundedExecutor``; at the end nothing is pending.

    Args:
        executor: The executor; None: two threads of this process.
        max_pending: Maximum number of pending functions; None: any number.
    """
    with ExitStack() as stack:
        if executor is None:
            executor = stack.enter_context(ThreadPoolExecutor(2, "seqdata-writer"))
        bounded = BoundedExecutor(executor, max_pending)
        try:
            yield bounded
        except BaseException:
            bounded.shut_down()
            raise
