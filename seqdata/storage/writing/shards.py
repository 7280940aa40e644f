"""The shards of a writer: how sequences are cut into them, written, recorded and found again.

A shard in a staging directory is finished once its record exists, in a file of its own that is
written after it. Sequences of shards that are written already are only compared.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from seqdata.errors import ConfigError, DecodeError, IncompleteDatasetError, must_be
from seqdata.storage.digest_trailer import add_digest, read_with_digest
from seqdata.storage.local_files import write_atomically
from seqdata.storage.writing.progress import ProgressFn
from seqdata.storage.writing.staging_dir import FACTS_SUFFIX, FIRST_PASS, find_staging_dirs

RESTART_HINT = "pass `resume=False` to start again"  # a remedy for a write that cannot be continued
_KEY_FILE = "scheme.json"
_KEY_VERSION = 1
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DIGEST_THREADS = 4
_EXHAUSTED = object()


class ShardFiles(Protocol):
    """The files of one shard, as its format describes them; a dataclass of plain values."""

    @property
    def sequences(self) -> int:
        """Number of its sequences."""
        ...


FilesT = TypeVar("FilesT", bound=ShardFiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedShard(Generic[FilesT]):
    """A shard in a staging directory.

    Attributes:
        part: Number of the part of its sequences.
        number: The number of the shard in the part.
        size: The size of its sequences, in bytes.
        first: The digest of its first sequence.
        last: The digest of its last sequence.
        shard: The files, by their names in the staging directory.
    """

    part: int
    number: int
    size: int
    first: str
    last: str
    shard: FilesT


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeKey:
    """The options that shards depend on; a writer continues only with the same ones.

    Attributes:
        axes: Field -> axis, as given.
        shard_bytes: The size at which a shard is closed, in bytes.
        key: The field of ids.
        algorithm: The algorithm of checksums.
        parts: Number of parts; None if there is one iterable.
        format: The name of the format of shards.
        shuffle: The seed of the random order; None: sequences are in the order given.
    """

    axes: Mapping[str, str | None] | None
    shard_bytes: int
    key: str
    algorithm: str
    parts: int | None
    format: str = "arrow"
    shuffle: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedShard:
    """The sequences of one shard, packed.

    Attributes:
        sequences: Number of sequences.
        size: Size in bytes, by which a shard is closed.
        content: The content that the format writes.
        part: The number of the part of the sequences.
        number: The number of the shard in the part.
    """

    sequences: int
    size: int
    content: Any
    part: int = 0
    number: int = 0

    @property
    def stem(self) -> str:
        """The beginning of the names of its files in the staging directory."""
        return f"{self.part:05d}-{self.number:05d}"


PackFn = Callable[[Iterator[Any], int, ProgressFn], tuple[int, int, Any] | None]
"""``pack(rows, first, on_progress)`` takes the rows of one more shard, the first of which has the
number ``first``, and returns their number, the bytes they count as, and the content to write; None
if there are no rows left."""


class ShardFormat(Protocol[FilesT]):
    """A format of shards; picklable, for an executor."""

    @property
    def suffix(self) -> str:
        """The suffix of a shard's name."""
        ...

    def make_packer(self) -> PackFn:
        """Return a function that packs one shard after the other."""
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

    def parse(self, record: dict[str, Any]) -> FilesT:
        """Return the files of a shard from the JSON that they became."""
        ...

    def is_intact(self, folder: Path, files: FilesT) -> bool:
        """Return whether the files in a folder are as they were written."""
        ...


def write_packed_shard(
    folder: Path, shard_format: ShardFormat[FilesT], packed: PackedShard
) -> FinishedShard[FilesT]:
    """Write a shard and its record into a staging directory, all flushed to the disk.

    Raises:
        IncompleteDatasetError: If the disk is full.
    """
    with explain_full_disk(folder / f"{packed.stem}{shard_format.suffix}", packed.size):
        files, first, last = shard_format.write(folder, packed)
        finished = FinishedShard(
            part=packed.part, number=packed.number, size=packed.size, first=first, last=last,
            shard=files,
        )  # fmt: skip
        write_record(folder, packed.stem, finished)
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
        limit: The size at which a shard is closed, in bytes.
        finished: Number -> shard that is written: its first and last sequence are compared.
        part: The number of the part.
        on_progress: Called with (sequences, bytes) so far, compared ones included.

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
        number: The number of the sequence.
        digest: The digest of the one that was written.

    Raises:
        DecodeError: If it is another one, is missing, or has other fields than the first.
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
            f"sequence {number}: must not exist, since the interrupted write ended before it, but "
            f"was passed. Pass the same sequences, or {RESTART_HINT}.",
            sequence=number,
        )


def check_resume_key(root: Path, folder: Path, resume_key: ResumeKey) -> None:
    """Write a resume key into a staging directory, or compare it with the existing one.

    Raises:
        ConfigError: If it differs, or the recorded one is damaged.
    """
    expected = json.loads(json.dumps({"version": _KEY_VERSION, **asdict(resume_key)}))
    path = folder / _KEY_FILE
    if not path.exists():
        write_atomically(path, add_digest(json.dumps(expected).encode(), _KEY_FILE))
        return
    content = read_with_digest(path)
    if content is None:
        raise ConfigError(
            must_be(
                f"{path}:",
                "as the writer left it",
                "damaged: the options of its shards are unknown",
                f"Restore it, or {RESTART_HINT}",
            )
        )
    recorded = {"shuffle": None, **json.loads(content)}  # earlier releases wrote no `shuffle`
    for name, value in recorded.items():
        if name in expected and expected[name] != value:
            is_argument = name not in ("version", "algorithm")
            remedy = "Pass the same" if is_argument else "Write with the packages used before"
            raise ConfigError(
                must_be(
                    f"{root}: `{name}`",
                    f"{value!r}, as it was before the interruption",
                    repr(expected[name]),
                    f"{remedy}, or {RESTART_HINT}",
                )
            )


def write_record(folder: Path, stem: str, finished: FinishedShard[Any]) -> None:
    """Write the record of a finished shard, flushed to the disk.

    Args:
        folder: The staging directory.
        stem: The common prefix of the names of the shard's files.
        finished: The shard.
    """
    path = folder / f"{stem}{FACTS_SUFFIX}"
    write_atomically(path, add_digest(json.dumps(asdict(finished)).encode(), path.name))


def read_finished_shards(
    folder: Path, parse: Callable[[dict[str, Any]], FilesT], part: int | None = None
) -> list[FinishedShard[FilesT]]:
    """Return the recorded finished shards, in order; no shard is read.

    Args:
        folder: The staging directory.
        parse: Returns a shard's files from their JSON.
        part: Only shards of this part; None: all.
    """
    prefix = "*" if part is None else f"{part:05d}-*"
    found = [_read_record(path, parse) for path in folder.glob(prefix + FACTS_SUFFIX)]
    return sorted(filter(None, found), key=lambda finished: (finished.part, finished.number))


def find_finished_shards(
    folder: Path,
    part: int,
    parse: Callable[[dict[str, Any]], FilesT],
    is_intact: Callable[[Path, FilesT], bool],
) -> dict[int, FinishedShard[FilesT]]:
    """Return number -> finished shard of one part, of shards with unchanged files.

    Args:
        folder: The staging directory.
        part: The part.
        parse: Returns a shard's files from their JSON.
        is_intact: Returns whether files in a folder are unchanged.
    """
    found = read_finished_shards(folder, parse, part)
    with ThreadPoolExecutor(_DIGEST_THREADS) as pool:
        are_intact = list(pool.map(lambda finished: is_intact(folder, finished.shard), found))
    pairs = zip(found, are_intact, strict=True)
    return {finished.number: finished for finished, is_whole in pairs if is_whole}


@dataclass(frozen=True, slots=True)
class _AnyFiles:
    """The files of a shard of any format."""

    sequences: int


def count_finished(folder: Path) -> tuple[int, int]:
    """Return the numbers of finished shards in a staging directory, and of their sequences."""
    found = read_finished_shards(folder, lambda record: _AnyFiles(int(record["sequences"])))
    return len(found), sum(finished.shard.sequences for finished in found)


def count_unfinished(root: Path) -> tuple[int, int]:
    """Return the numbers of shards and sequences of an unfinished writer, which may still run.

    In the first of two passes they are those of this pass.
    """
    counts = []
    for folder in find_staging_dirs(root):
        counts += [count_finished(folder), count_unfinished(folder / FIRST_PASS)]
    return sum(shards for shards, _ in counts), sum(sequences for _, sequences in counts)


def _read_record(
    path: Path, parse: Callable[[dict[str, Any]], FilesT]
) -> FinishedShard[FilesT] | None:
    """Return a record; None if its file is damaged or missing: the shard is written again then."""
    try:
        content = read_with_digest(path)
        if content is None:
            return None
        record = json.loads(content)
        return FinishedShard(**{**record, "shard": parse(record["shard"])})
    except (ValueError, KeyError, TypeError, AttributeError):  # written by another release
        return None


@contextmanager
def explain_full_disk(path: Path, size: int) -> Iterator[None]:
    """Raise an error with the needed space if a file has no room; leave no partial file.

    Args:
        path: The file to write.
        size: The size of the file in bytes.

    Raises:
        IncompleteDatasetError: If the disk or a quota is full, or the file is larger than allowed.
    """
    try:
        yield
    except OSError as error:
        for partial in path.parent.glob(f"{path.stem}.*"):
            partial.unlink(missing_ok=True)
        if error.errno not in _DISK_FULL_ERRORS:
            raise
        free = shutil.disk_usage(path.parent).free
        problem = {
            errno.ENOSPC: f"but {free} are free. Free some space",
            errno.EDQUOT: "more than your quota has left. Free some space or raise the quota",
            errno.EFBIG: "more than `ulimit -f` or the file system allows. Raise the limit",
        }[error.errno]
        raise IncompleteDatasetError.at(
            f"{path}: cannot be written ({os.strerror(error.errno)}): it needs about {size} bytes, "
            f"{problem} and write again: finished shards are kept.",
            file=str(path),
            needed=size,
            free=free,
        ) from error
