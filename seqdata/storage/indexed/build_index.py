"""Building of the indexes of files: once, in parallel, kept next to the files or in the cache.

Finished indexes are saved at intervals, and kept after an interruption.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed, wait
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DataError, warn
from seqdata.kernel.dispatch import get_kernel
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.index_file import REMEDY
from seqdata.storage.indexed.index_folder import DataIndex, name_index_file
from seqdata.storage.indexed.indexed_format import (
    ComparesHeaders,
    IndexedFormat,
    IndexesTogether,
    UnindexedFile,
)
from seqdata.storage.indexed.shard_index import ENDS, FieldIndex, ShardIndex, digest_ends
from seqdata.storage.indexed.shards import INDEX_FOLDER, MANY, LocalShard, Shard, map_shards
from seqdata.storage.integrity.checksums import CHECKSUM_BYTES, choose_algorithm
from seqdata.storage.local_files import read_or_map
from seqdata.storage.writing.progress import ProgressFn, progress_bar

Result = TypeVar("Result")
_PIECE = 8 << 20  # bytes per update of a digest
_FEW = 4  # values of a field in a file
_THREADS = "seqdata-index"
_AT_A_TIME = 256  # files per task, if there are many
_TOGETHER = 8 << 20  # bytes of files that are indexed together
_SAVED_BYTES = 32 << 30  # bytes of files from which on finished indexes are saved


def build(
    dataset: str,
    shards: Sequence[Shard],
    index: DataIndex,
    file_format: IndexedFormat,
    *,
    rebuild: bool = False,
    executor: Executor | None = None,
    progress: bool | ProgressFn | None = None,
    have: Sequence[bool | None] | None = None,
) -> list[str]:
    """Build the indexes of files that have none; return the folder of each new index.

    Args:
        dataset: The location, for errors.
        shards: The files.
        index: The index of the dataset.
        file_format: The format of the files.
        rebuild: Whether to rebuild existing indexes.
        executor: The executor that reads files; None: a few threads.
        progress: Whether to show a progress bar; None: on a terminal. Or a function that is called
            with (sequences, bytes).
        have: Whether each file has an index; None: this is checked.

    Raises:
        MissingShardError: If a file is missing.
        DataError: If a file is damaged or not of the format, or an index is damaged and the format
            builds indexes only on request.
    """
    if rebuild:
        have = [False] * len(shards)
    elif have is None:
        have = _have_indexes(dataset, shards, index, file_format)
    unindexed = [(i, shard) for i, shard in enumerate(shards) if not have[i]]
    if not unindexed:
        return []
    _warn_of_old(dataset, index, [shard for _, shard in unindexed])
    many = len(unindexed) > MANY and all(shard.is_local for shard in shards)
    at_a_time, threads = (_AT_A_TIME, 1) if many else (1, min(8, os.cpu_count() or 1))
    saving = _Saving(index, rebuild)
    with (
        progress_bar(progress, f"indexing {len(unindexed)} shards", len(unindexed)) as bar,
        nullcontext(executor) if executor else ThreadPoolExecutor(threads, _THREADS) as executor,
    ):
        futures = {
            executor.submit(build_indexes, dataset, unindexed[at : at + at_a_time], file_format)
            for at in range(0, len(unindexed), at_a_time)
        }
        try:
            for future in as_completed(futures):
                saving.add(future.result(timeout=0))
                futures.remove(future)
                if bar is not None:
                    bar.update(saving.sequences, saving.bytes, saving.files)
                if callable(progress):
                    progress(saving.sequences, saving.bytes)
        except BaseException:
            _collect_finished(futures, saving)
            raise
    return saving.finish()


def _have_indexes(
    dataset: str, shards: Sequence[Shard], index: DataIndex, file_format: IndexedFormat
) -> Sequence[bool | None]:
    """Return whether each file has an index; one that is damaged is an error, or a warning."""

    def has_index(i: int) -> bool:
        return index.get(shards[i]) is not None

    if file_format.needs_command:
        return map_shards(shards, has_index)
    return map_usable(dataset, shards, has_index)


class _Saving:
    """Indexes that are saved from time to time.

    Args:
        index: The index of the dataset.
        rebuild: Whether index files become one at the end.

    Attributes:
        folders: The folder of each index that was saved.
        files: Number of files.
        sequences: Number of their sequences.
        bytes: Their bytes.
    """

    def __init__(self, index: DataIndex, rebuild: bool) -> None:
        self.folders: list[str] = []
        self.files = self.sequences = self.bytes = 0
        self._index, self._rebuild = index, rebuild
        self._unsaved: list[tuple[Shard, ShardIndex]] = []
        self._unsaved_bytes = 0

    def add(self, indexes: Sequence[tuple[Shard, ShardIndex]]) -> None:
        """Keep indexes, and save them if there are many."""
        self._unsaved += indexes
        for _, index in indexes:
            self.files += 1
            self.sequences += len(index)
            self.bytes += index.bytes
            self._unsaved_bytes += index.bytes
        if self._unsaved_bytes >= _SAVED_BYTES:
            self.save()

    def save(self, *, rebuild: bool = False) -> None:
        """Save the indexes that are not saved yet."""
        if self._unsaved:
            self.folders += self._index.save(self._unsaved, rebuild=rebuild)
        self._unsaved, self._unsaved_bytes = [], 0

    def finish(self) -> list[str]:
        """Save all; return the folder of each index."""
        self.save(rebuild=self._rebuild)
        return self.folders


def _collect_finished(futures: Iterable[Any], saving: _Saving) -> None:
    """Save the indexes that were built before an error, and those being built, after a wait."""
    running = [future for future in futures if not future.cancel()]
    for future in wait(running).done:  # ends: each reads some files
        if future.exception(timeout=0) is None:
            saving.add(future.result(timeout=0))
    saving.save()


def _warn_of_old(dataset: str, index: DataIndex, shards: Sequence[Shard]) -> None:
    """Warn of indexes of an earlier release, or of another version of the format."""
    others = sum(index.folder(shard).has_other_version(shard.name) for shard in shards)
    if others:
        warn(
            f"{dataset}: indexes must be of the installed version of the format, but those of "
            f"{others} of {len(shards)} files are of another: they are built again, once. Fields "
            "may differ from before",
        )
    if any(index.folder(shard).has_old for shard in shards):
        warn(
            f"{dataset}: indexes must be of this release, but those of an earlier one were found: "
            f"they are built again. Remove the old files in {INDEX_FOLDER}: all that end with "
            f".idx, except {name_index_file()} and {name_index_file(1)}, -2, …",
        )


def map_usable(
    dataset: str, shards: Sequence[Shard], function: Callable[[int], Result]
) -> list[Result | None]:
    """Return a function's result for the index of each file; None if the index cannot be used.

    One warning is given about all such indexes: the caller builds them again.

    Args:
        dataset: The location, for the warning.
        shards: The files.
        function: Called with indices of shards; raises a ``DataError`` if the index is damaged.
    """
    errors: dict[int, DataError] = {}

    def call(number: int) -> Result | None:
        try:
            return function(number)
        except DataError as error:
            errors[number] = error
            return None

    found = map_shards(shards, call)
    if errors:
        first = str(errors[min(errors)]).partition(f". {REMEDY}")[0]
        warn(
            f"{dataset}: each index must be valid, but {len(errors)} of {len(shards)} cannot be "
            "used: they are built again from the files as they are now, and files that were "
            f"damaged since count as whole. Compare those with their source. The first: {first}",
        )
    return found


def build_indexes(
    dataset: str, shards: Sequence[tuple[int, Shard]], file_format: IndexedFormat
) -> list[tuple[Shard, ShardIndex]]:
    """Return the indexes of some files, which are given with their index among all."""
    indexes: list[ShardIndex] = []
    for files in _read_some(dataset, shards, file_format):
        if len(files) > 1 and isinstance(file_format, IndexesTogether):
            made = file_format.make_indexes(files)
        else:
            made = [
                file_format.make_index(file.content, file.name, file.place, file.read_sibling)
                for file in files
            ]
        indexes += [
            replace(index, modified=file.modified) if file.modified else index
            for index, file in zip(made, files, strict=True)
        ]
    return [(shard, index) for (_, shard), index in zip(shards, indexes, strict=True)]


def _read_some(
    dataset: str, shards: Sequence[tuple[int, Shard]], file_format: IndexedFormat
) -> Iterator[list[UnindexedFile]]:
    """Yield groups of files with their bytes: up to 8 MiB together, or one larger file."""
    compares = _compares_headers(file_format)
    files: list[UnindexedFile] = []
    size = 0
    for number, shard in shards:
        place = DataLocation(dataset=dataset, shard=number, file=shard.name)
        modified = 0
        if isinstance(shard, LocalShard):
            modified = shard.modified() if compares else 0
            content = read_or_map(shard.path, place)
        else:
            content = shard.content(place, ahead=True)
        if files and size + len(content) > _TOGETHER:
            yield files
            files, size = [], 0
        files.append(UnindexedFile(shard.name, content, place, shard.read_sibling, modified))
        size += len(content)
    if files:
        yield files


def find_modified(shard: Shard, file_format: IndexedFormat) -> int:
    """Return the modification time to record for a file, in ns; 0 if none is compared later."""
    compares = _compares_headers(file_format)
    return shard.modified() if compares and isinstance(shard, LocalShard) else 0


def _compares_headers(file_format: IndexedFormat) -> bool:
    return isinstance(file_format, ComparesHeaders) and file_format.reads_only_headers


def make_shard_index(
    name: str,
    content: NDArray[np.uint8],
    members: Mapping[str, FieldIndex],
    *,
    keys: NDArray[np.uint8],
    key_ends: NDArray[np.int64],
    last: int | None = None,
) -> ShardIndex:
    """Return the index of a file, with the checksums of all values.

    Args:
        name: Name of the file.
        content: Bytes of the file.
        members: Field -> index of its values, without checksums.
        keys: Bytes of all ids.
        key_ends: int64 (sequences+1,), offsets of ids in ``keys``.
        last: Offset of bytes near the end that differ between files, such as the last header; None:
            the end.
    """
    using = choose_algorithm()
    places = [(member.begins, member.sizes) for member in members.values()]
    sums: Iterator[tuple[NDArray[np.uint32], NDArray[np.int64] | None]]
    if all(_are_few(*extents) for extents in places):
        sums = (_compute_few_sums(content, *extents, using) for extents in places)
    else:
        sums = compute_checksums(content, places, using)
    last = max(0, len(content) - ENDS) if last is None else last
    return ShardIndex(
        shard=name, bytes=len(content), sha256=compute_sha256(content),
        ends=digest_ends(content, last), last=last, algorithm=using, block=CHECKSUM_BYTES,
        members={
            field: replace(member, sums=values, firsts=firsts)
            for (field, member), (values, firsts) in zip(members.items(), sums, strict=True)
        },
        declared={}, keys=keys, key_ends=key_ends,
    )  # fmt: skip


def compute_sha256(view: NDArray[np.uint8]) -> str:
    """Return the sha256 of a file."""
    digest = hashlib.sha256()
    for at in range(0, len(view), _PIECE):
        digest.update(view[at : at + _PIECE].data)
    return digest.hexdigest()


Places = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Begins of values, -1 if a sequence has none, and their sizes in bytes."""


def compute_checksums(
    view: NDArray[np.uint8], fields: Sequence[Places], algorithm: str
) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.int64] | None]]:
    """Yield the checksums of all values, field by field, as in ``FieldIndex``.

    Args:
        view: The file, uint8; read once for all fields.
        fields: Per field, its values. Where they overlap, parts of the file are read several times.
        algorithm: The algorithm.
    """
    if not fields:
        return
    begins = np.concatenate([extents for extents, _ in fields])
    sizes = np.concatenate([extents for _, extents in fields])
    counts = np.maximum(1, -(-sizes // CHECKSUM_BYTES))
    present = np.flatnonzero(begins >= 0)
    # at one byte, empty values come first
    order = present[np.lexsort((sizes[present], begins[present]))]
    if (begins[order[1:]] < (begins + sizes)[order[:-1]]).any():  # some overlap
        if len(fields) > 1:
            for field in fields:
                yield from compute_checksums(view, [field], algorithm)
        else:
            yield _compute_one_by_one(view, begins, sizes, algorithm)
        return
    bounds, at = _compute_bounds(begins[order], sizes[order], counts[order])
    computed = np.zeros(max(1, len(bounds) - 1), dtype=np.uint32)  # [0] if all are missing
    get_kernel().checksums(view, bounds, computed[: len(bounds) - 1], algorithm)
    places = np.zeros(len(begins), dtype=np.int64)
    places[order] = at
    missing = begins < 0
    first = 0
    for extents, _ in fields:
        part = slice(first, first + len(extents))
        first = part.stop
        which = np.repeat(places[part], counts[part]) + _count_within(counts[part])
        values = computed[which]
        values[np.repeat(missing[part], counts[part])] = 0
        firsts = None
        if int(counts[part].max(initial=1)) > 1:
            firsts = np.concatenate([[0], np.cumsum(counts[part])])
        yield values, firsts


def _are_few(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    return len(begins) <= _FEW and max(sizes.tolist(), default=0) <= CHECKSUM_BYTES


def _compute_few_sums(
    content: NDArray[np.uint8],
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    using: str,
) -> tuple[NDArray[np.uint32], NDArray[np.int64] | None]:
    """Return the checksums of a few small values; a faster ``compute_checksums``."""
    engine = get_kernel()
    sums = np.zeros(len(begins), dtype=np.uint32)
    bounds = np.empty(2, dtype=np.int64)
    for at, (begin, size) in enumerate(zip(begins.tolist(), sizes.tolist(), strict=True)):
        if begin >= 0:
            bounds[:] = begin, begin + size
            engine.checksums(content, bounds, sums[at : at + 1], using)
    return sums, None


def _compute_one_by_one(
    view: NDArray[np.uint8], begins: NDArray[np.int64], sizes: NDArray[np.int64], algorithm: str
) -> tuple[NDArray[np.uint32], NDArray[np.int64] | None]:
    """Return the checksums of the values of a field that overlap; see ``compute_checksums``."""
    each = [
        next(compute_checksums(view, [(begins[at : at + 1], sizes[at : at + 1])], algorithm))[0]
        for at in range(len(begins))
    ]
    counts = [len(sums) for sums in each]
    firsts = np.concatenate([[0], np.cumsum(counts)]) if max(counts) > 1 else None
    return np.concatenate(each), firsts


def _compute_bounds(
    begins: NDArray[np.int64], sizes: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the bounds of all blocks of values; each gap between values is one more piece.

    Returns:
        int64 (pieces+1,), ascending; and per value the number of its first piece.
    """
    at = np.concatenate([[0], np.cumsum(counts + 1)]).astype(np.int64)
    bounds = np.repeat(begins, counts + 1) + CHECKSUM_BYTES * _count_within(counts + 1)
    bounds[at[1:] - 1] = begins + sizes
    last = bounds[-1:] if len(bounds) else np.zeros(1, dtype=np.int64)
    return np.concatenate([bounds, last]), at[:-1]


def _count_within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 0, 1, … for each count, concatenated, int64."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def describe_indexes(
    shards: Sequence[Shard], new_folders: Sequence[str], index: DataIndex
) -> dict[str, Any]:
    """Return numbers about the indexes of files.

    Args:
        shards: The files, which all have an index.
        new_folders: The folders of the new indexes.
        index: The index of the dataset.
    """
    indexes = [found for found in map(index.get, shards) if found is not None]
    return {
        "shards": len(shards),
        "indexed": len(new_folders),
        "sequences": sum(map(len, indexes)),
        "bytes": sum(found.bytes for found in indexes),
        "folders": sorted(set(new_folders)),
    }
