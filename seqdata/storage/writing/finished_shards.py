"""The shards that a writer has finished, and how it was begun: what a later call continues from.

A shard in a staging directory is finished once its facts are there, in a file of their own that is
written after it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from seqdata.errors import ConfigError, IncompleteDatasetError, must_be
from seqdata.storage.digest_trailer import add_digest, read_with_digest
from seqdata.storage.local_files import write_atomically
from seqdata.storage.writing.staging_dir import FACTS_SUFFIX
from seqdata.storage.writing.writer_lock import find_staging_dirs

RESTART_HINT = "pass `resume`=False to start again"  # ends errors of what cannot be continued
_KEY_FILE = "scheme.json"
_KEY_VERSION = 1
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DIGEST_THREADS = 4


class ShardFiles(Protocol):
    """The files of one shard, as its format describes them; a dataclass of plain values."""

    @property
    def sequences(self) -> int:
        """How many sequences it holds."""
        ...


FilesT = TypeVar("FilesT", bound=ShardFiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedShard(Generic[FilesT]):
    """A shard in a staging directory.

    Attributes:
        part: The number of the part that its sequences are of.
        number: Its number in the part.
        size: What its sequences count as, in bytes.
        first: The digest of its first sequence.
        last: The digest of its last sequence.
        shard: Its files, by their names in the staging directory.
    """

    part: int
    number: int
    size: int
    first: str
    last: str
    shard: FilesT


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeKey:
    """What shards depend on besides their sequences; a writer continues with the same one only.

    Attributes:
        axes: Field -> axis, as given.
        shard_bytes: The size from which on a shard is closed, in bytes.
        key: The field of ids.
        algorithm: What checksums are computed by.
        parts: How many parts there are; None if there is one iterable.
        format: The name of the format of shards.
    """

    axes: Mapping[str, str | None] | None
    shard_bytes: int
    key: str
    algorithm: str
    parts: int | None
    format: str = "arrow"


def check_resume_key(root: Path, folder: Path, resume_key: ResumeKey) -> None:
    """Note a resume key in a staging directory, or compare it with the one that is noted there.

    Raises:
        ConfigError: If it is another one, or the note of it is damaged.
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
                "damaged: nobody knows how its shards were made",
                f"Restore it, or {RESTART_HINT}",
            )
        )
    recorded = json.loads(content)
    for name, value in recorded.items():
        if name in expected and expected[name] != value:
            raise ConfigError(
                must_be(
                    f"{root}: `{name}`",
                    f"{value!r}, as it was before the interruption",
                    repr(expected[name]),
                    f"Pass the same, or {RESTART_HINT}",
                )
            )


def write_facts(folder: Path, stem: str, finished: FinishedShard[Any]) -> None:
    """Note that a shard is finished, flushed to the disk.

    Args:
        folder: The staging directory.
        stem: What the names of the shard's files begin with.
        finished: The shard.
    """
    path = folder / f"{stem}{FACTS_SUFFIX}"
    write_atomically(path, add_digest(json.dumps(asdict(finished)).encode(), path.name))


def read_finished_shards(
    folder: Path, parse: Callable[[dict[str, Any]], FilesT], part: int | None = None
) -> list[FinishedShard[FilesT]]:
    """Return what is noted of finished shards, in their order; reads no shard.

    Args:
        folder: The staging directory.
        parse: Returns a shard's files from the JSON that they became.
        part: Of this part only; None: of all.
    """
    prefix = "*" if part is None else f"{part:05d}-*"
    found = [_read_facts(path, parse) for path in folder.glob(prefix + FACTS_SUFFIX)]
    return sorted(filter(None, found), key=lambda finished: (finished.part, finished.number))


def find_finished_shards(
    folder: Path,
    part: int,
    parse: Callable[[dict[str, Any]], FilesT],
    is_intact: Callable[[Path, FilesT], bool],
) -> dict[int, FinishedShard[FilesT]]:
    """Return number -> finished shard of one part, of those whose files are as they were written.

    Args:
        folder: The staging directory.
        part: The part.
        parse: Returns a shard's files from the JSON that they became.
        is_intact: Returns whether files in a folder are as they were written.
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
    """Return how many shards are finished in a staging directory, and their sequences."""
    found = read_finished_shards(folder, lambda facts: _AnyFiles(int(facts["sequences"])))
    return len(found), sum(finished.shard.sequences for finished in found)


def count_unfinished(root: Path) -> tuple[int, int]:
    """Return how many shards, and sequences, an unfinished writer left; it may still be at work."""
    counts = [count_finished(folder) for folder in find_staging_dirs(root)]
    return sum(shards for shards, _ in counts), sum(sequences for _, sequences in counts)


def _read_facts(
    path: Path, parse: Callable[[dict[str, Any]], FilesT]
) -> FinishedShard[FilesT] | None:
    """Return facts; None if their file is damaged or gone: the shard is written again then."""
    try:
        content = read_with_digest(path)
        if content is None:
            return None
        facts = json.loads(content)
        return FinishedShard(**{**facts, "shard": parse(facts["shard"])})
    except (ValueError, KeyError, TypeError, AttributeError):  # of another release
        return None


@contextmanager
def explain_full_disk(path: Path, size: int) -> Iterator[None]:
    """Raise an error that says what is needed where the disk is full; leave no partial file.

    Args:
        path: What is written.
        size: How many bytes it takes.

    Raises:
        IncompleteDatasetError: If the disk is full.
    """
    try:
        yield
    except OSError as error:
        for partial in path.parent.glob(f"{path.stem}.*"):
            partial.unlink(missing_ok=True)
        if error.errno not in _DISK_FULL_ERRORS:
            raise
        free = shutil.disk_usage(path.parent).free
        raise IncompleteDatasetError.at(
            f"{path}: cannot be written ({os.strerror(error.errno)}): it needs about {size} bytes, "
            f"but {free} are free. Free some space and write again: finished shards are kept.",
            file=str(path),
            needed=size,
            free=free,
        ) from error
