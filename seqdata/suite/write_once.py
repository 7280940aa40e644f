"""Stores that are written into the user's cache when they are first needed, then read from there.

A table of at most ``MEMORY_BYTES`` is prepared in memory; a larger one is prepared in parts of
whole sequences, and written once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.api import open_store, write_store
from seqdata.capabilities import SupportsCopy, get_version
from seqdata.errors import CacheError, warn
from seqdata.protocols import Store
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.digest_trailer import read_with_digest, write_with_digest
from seqdata.storage.indexed.shards import cache_folder
from seqdata.storage.memory import MemoryStore
from seqdata.storage.remote.cache_folder import cache_lock
from seqdata.storage.views import SequenceStore, View

MEMORY_BYTES = 256 << 20
"""Maximum bytes of the columns of a table that is prepared in memory."""
PART_BYTES = 16 << 20
"""Maximum bytes of the columns of a part; a larger sequence is a part of its own."""
_SHARD_BYTES = 64 << 20  # a shard is in memory until it is written
_REPORT = "prepared.json"
_VERSION = 1  # of what a preparation makes of a table
_NOTE_OF_STREAM = (
    "prepared in memory: a stream cannot be recognized again. Write it to a Parquet file, and pass "
    "this file"
)
_MOST_SECONDS = 86_400.0  # time that a process waits for another one that writes


@dataclass(frozen=True, slots=True)
class WriteOnce:
    """Writes a store to the user's cache, once per fingerprint; a ``prepare`` of a DataModule."""

    def __call__(self, store: Any) -> tuple[SequenceStore, list[str]]:
        """Return the written store and notes on it. Other processes wait for the first one.

        Raises:
            CacheError: If the cache cannot be written.
        """
        location = _make_location(f"{store.fingerprint}{get_version(store) or ''}")
        with cache_lock(location.parent, _MOST_SECONDS):
            if (location / MANIFEST).is_file():
                return open_store(location), [f"read from {location}, where it was written before"]
            return write_store(location, store), [f"cached in {location}"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a preparation, besides the sequences.

    Attributes:
        notes: Notes on the preparation.
        warnings: Notes that are also shown as warnings.
        hidden: Names of fields that none of the sequences needs.
    """

    notes: Sequence[str]
    warnings: Sequence[str] = ()
    hidden: Sequence[str] = ()


class Preparation(Protocol):
    """Prepares the sequences of a table, all at once or part by part."""

    def iter_rows(self, store: SequenceStore, *, is_part: bool) -> Iterator[dict[str, Any]]:
        """Yield the prepared sequences of a store.

        Args:
            store: All sequences, or some of them.
            is_part: Whether the store is one of several parts, whose fields must be the same.
        """
        ...

    def finish(self) -> Summary:
        """Return the summary of all sequences.

        Raises:
            DataError: If no sequence is left.
        """
        ...


def prepare_store(
    store: SequenceStore,
    names: Sequence[str],
    options: str,
    start: Callable[[Sequence[SequenceStore]], Preparation],
) -> tuple[SequenceStore, list[str]]:
    """Return a prepared store and notes on its preparation; a large store is cached.

    A store whose data is in memory already, or is a stream, is prepared in memory. Warnings of the
    preparation are shown again whenever the written store is opened.

    Args:
        store: All sequences.
        names: The fields that are read.
        options: Text that identifies the preparation.
        start: ``start(parts)`` returns the preparation of stores that follow one another.

    Raises:
        SeqDataError: If the data does not fit the preparation, or the cache cannot be written.
    """
    starts, version = _cut(store, names), get_version(store)
    if len(starts) == 1 or version is None:
        preparation = start([store])
        in_memory = MemoryStore.from_sequences(_iter_all(preparation, [store]))
        summary = preparation.finish()
        _show_warnings(summary)
        return in_memory, [*summary.notes, *([_NOTE_OF_STREAM] if len(starts) > 1 else [])]
    key = f"{_VERSION}\n{store.fingerprint}\n{version}\n{options}"
    location = _make_location(key)
    report = location.parent / _REPORT
    with cache_lock(location.parent, _MOST_SECONDS):
        known = read_with_digest(report)
        if known is None or not (location / MANIFEST).is_file():
            known = _write_parts(location, _Parts(store, starts), start)
            notes = [f"prepared in {len(starts)} parts, and cached in {location}"]
        else:
            notes = [f"read from {location}, where it was prepared before"]
        summary = Summary(**json.loads(known))
        opened = open_store(location)
    _show_warnings(summary)
    shown = [name for name in opened.fields if name not in summary.hidden]
    prepared = opened if len(shown) == len(opened.fields) else opened.select(*shown)
    return prepared, [*summary.notes, *notes]


def _show_warnings(summary: Summary) -> None:
    for text in summary.warnings:
        warn(text)  # of the caller of the `prepare`


@dataclass(frozen=True, slots=True, eq=False)
class _Parts(Sequence[SequenceStore]):
    """Views of consecutive sequences of a store."""

    store: SequenceStore
    starts: Sequence[int]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: Any) -> Any:
        stop = [*self.starts, len(self.store)][number + 1]
        return self.store.take(np.arange(self.starts[number], stop, dtype=np.int64))


def _write_parts(
    location: Path, parts: _Parts, start: Callable[[Sequence[SequenceStore]], Preparation]
) -> bytes:
    """Write a store, then a report; the report exists only once both are complete."""
    preparation = start(parts)
    rows = _iter_all(preparation, parts)
    write_store(location, rows, shard_bytes=_SHARD_BYTES, resume=False, overwrite=True)
    content = json.dumps(asdict(preparation.finish())).encode()
    write_with_digest(location.parent / _REPORT, content)
    return content


def _iter_all(preparation: Preparation, parts: Sequence[SequenceStore]) -> Iterator[dict[str, Any]]:
    for number in range(len(parts)):
        yield from preparation.iter_rows(parts[number], is_part=len(parts) > 1)
    preparation.finish()  # raises if nothing is left, before a writer says so in other words


def _cut(store: SequenceStore, names: Sequence[str]) -> list[int]:
    """Return the first sequence of each part; one part if the data is small or in memory."""
    lengths = np.asarray(next(iter(store.lengths_of.values()))).astype(np.int64)
    ragged = [store.fields[name] for name in names if store.fields[name].axis is not None]
    width = sum(np.dtype(field.dtype).itemsize for field in ragged)
    offsets: NDArray[np.int64] = np.concatenate([[0], np.cumsum(lengths * width)])
    if offsets[-1] <= MEMORY_BYTES or _is_in_memory(store):
        return [0]
    starts = [0]
    while True:
        most = int(offsets[starts[-1]]) + PART_BYTES
        stop = max(starts[-1] + 1, int(np.searchsorted(offsets, most, side="right")) - 1)
        if stop >= len(store):
            return starts
        starts.append(stop)


def _is_in_memory(store: Store) -> bool:
    base = store.base if isinstance(store, View) else store
    return isinstance(base, SupportsCopy) and base.is_copied_to_workers


def _make_location(key: str) -> Path:
    root = cache_folder() / "stores"
    location = root / hashlib.sha256(key.encode()).hexdigest()[:32] / "store"
    try:
        location.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(
            f"{root}: must be writable, because the prepared data is cached there, but is not "
            f"({error.strerror}). Set SEQDATA_CACHE to a writable folder"
        ) from error
    return location
