"""Writing in a random order: at once where sequences can be read in any order, else in two passes.

A random order needs random access: lists, arrays, tables, Datasets and stores have it. Of anything
else the first pass writes an Arrow store into the staging directory, in the order given; the second
one reads it in the random order. It is removed with the staging directory. Writers of all formats
begin here; place in the flow: whatever a user passes becomes rows. Reads: sequences. Makes: rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqdata.capabilities import SupportsBase, SupportsLocality, SupportsStores
from seqdata.errors import ConfigError, DataError, DecodeError
from seqdata.planning.randomness import Draw, Purpose
from seqdata.protocols import Store
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.arrow.store import open_local
from seqdata.storage.inputs import (
    Axes,
    check_unique_names,
    drop_index_columns,
    find_frame_library,
    index_to_columns,
    is_arrow_table,
    is_table,
    normalize_sequences,
    refuse_missing_values,
    to_arrow_table,
)
from seqdata.storage.schema import infer_fields
from seqdata.storage.store import ShardStore
from seqdata.storage.store_rows import StoreSequences
from seqdata.storage.views import take
from seqdata.storage.writing.progress import FIRST_STEP, SECOND_STEP
from seqdata.storage.writing.sharded_writer import ShardedWriter, chain_parts, is_part_list
from seqdata.storage.writing.shards import check_same
from seqdata.storage.writing.staging_dir import FIRST_PASS

_CHUNK_ROWS = 1024  # maximum rows that are taken from a table at once
_CHUNK_BYTES = 32 << 20  # of them, by the mean size of a row
_CHUNK_INDICES = 1 << 16  # indices that are Python objects at a time


@runtime_checkable
class RowsByIndex(Protocol):
    """Sequences that can be read in any order."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        ...

    def rows_at(self, indices: NDArray[np.int64]) -> Iterator[Any]:
        """Return sequences by index, int64 (n,), in this order, as ``write_store`` takes them."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RowsWithAxes:
    """Sequences by index, at least one.

    Attributes:
        rows: The sequences.
        axes: Field -> axis, extended as by ``normalize_sequences``.
    """

    rows: RowsByIndex
    axes: Axes | None


@dataclass(frozen=True, slots=True, eq=False)
class ShuffledRows:
    """Sequences in a random order, for a writer.

    Attributes:
        first: Sequence 0 of the input, which determines the fields.
        rows: All sequences, in the random order.
        axes: Field -> axis, extended as by ``normalize_sequences``.
    """

    first: Mapping[str, Any]
    rows: Iterator[Any]
    axes: Axes | None


def draw_order(seed: int, count: int) -> NDArray[np.int64]:
    """Return the random order of a number of sequences, the same on every machine.

    Args:
        seed: In ``[0, 2**64)``.
        count: Number of sequences.

    Returns:
        int64 (count,): the index, in the input, of each sequence that is written.

    Raises:
        ConfigError: If ``seed`` is out of range.

    Examples:
        >>> draw_order(0, 5).tolist()
        [1, 4, 3, 0, 2]
    """
    return Draw(seed, 0).permutation(Purpose.WRITING, count)


def shuffle_rows(
    sequences: RowsWithAxes, *, seed: int, key: str, make_id: Callable[[int], str] = str
) -> ShuffledRows:
    """Return sequences in a random order, each with the id that it has in the input's order.

    Args:
        sequences: Sequences by index.
        seed: The seed of the order, in ``[0, 2**64)``.
        key: The field of ids. It is added if sequences lack it, and holds their index in the
            input; "": sequences are numbered as they are written.
        make_id: Returns the added id of an index in the input.

    Raises:
        ConfigError: If ``key`` names a field that does not hold strings, or the first item is not a
            sequence.
    """
    by_index = sequences.rows
    order = draw_order(seed, len(by_index))
    first_again = by_index.rows_at(np.zeros(1, dtype=np.int64))
    items = itertools.chain(first_again, by_index.rows_at(order))
    rows, axes = normalize_sequences(items, sequences.axes)
    first = next(rows)
    added = key if key and key not in first else None
    if added is not None:
        first = {added: make_id(0), **first}
    elif key and not isinstance(first[key], str):
        raise ConfigError(
            f"`shuffle`: field {key!r} must hold strings, which name sequences in any order, but "
            f"holds a {type(first[key]).__name__}. Rename it, name another field by `key` (it is "
            "added if there is none), or number sequences in the order they are written: pass "
            "`key=''`"
        )
    return ShuffledRows(first, _check_rows(rows, order, added, make_id), axes)


def _check_rows(
    rows: Iterator[Any], order: NDArray[np.int64], added: str | None, make_id: Callable[[int], str]
) -> Iterator[Any]:
    """Yield sequences, with the field of ids where it is added.

    Raises:
        DecodeError: If one is not a dict, or has the field that is added; with its index in the
            input.
    """
    for index, row in zip(_iter_indices(order), rows, strict=True):
        if not isinstance(row, Mapping):
            raise DecodeError.at(
                f"sequence {index}: must be a dict of fields like sequence 0, but is a "
                f"{type(row).__name__}. Pass dicts throughout",
                sequence=index,
            )
        if added is None:
            yield row
            continue
        if added in row:
            raise DecodeError.at(
                f"sequence {index}: must have the fields of sequence 0, but has {added!r} in "
                "addition. Give every sequence the same fields",
                sequence=index,
            )
        yield {added: make_id(index), **row}


def _iter_indices(indices: NDArray[np.int64]) -> Iterator[int]:
    for first in range(0, len(indices), _CHUNK_INDICES):
        yield from indices[first : first + _CHUNK_INDICES].tolist()


def find_random_access(sequences: Any, axes: Axes | None) -> RowsWithAxes | None:
    """Return sequences by index; None if they have no random access, or there are none.

    Args:
        sequences: A list or tuple of sequences; an array; a pandas, Polars or Arrow table, or a
            list of Arrow tables with one schema; the sequences of a store or a Dataset.
        axes: Field -> axis, as given by the user.

    Raises:
        ConfigError: If a table cannot hold sequences.
        DecodeError: If a table's column holds nulls or a type that cannot be stored.
    """
    if find_frame_library(sequences) == "pandas":
        frame = index_to_columns(sequences).reset_index(drop=True)
        refuse_missing_values(frame)
        return RowsWithAxes(_FrameRows(frame, axes), axes) if len(frame) else None
    if is_table(sequences):
        return _open_tables([to_arrow_table(sequences)], axes)
    if isinstance(sequences, StoreSequences):
        return make_store_rows(sequences, axes) if len(sequences) else None
    if isinstance(sequences, RowsByIndex):
        return RowsWithAxes(sequences, axes) if len(sequences) else None
    is_array = isinstance(sequences, np.ndarray) and sequences.ndim > 0
    is_list = isinstance(sequences, Sequence) and not isinstance(sequences, str | bytes)
    if not (is_array or is_list) or not len(sequences):
        return None
    if not is_arrow_table(sequences[0]):
        return RowsWithAxes(_ListRows(sequences), axes)
    tables = [to_arrow_table(table) for table in sequences if is_arrow_table(table)]
    is_alike = all(table.schema.equals(tables[0].schema) for table in tables)
    return _open_tables(tables, axes) if is_alike and len(tables) == len(sequences) else None


def make_store_rows(sequences: StoreSequences, axes: Axes | None) -> RowsWithAxes:
    """Return the sequences of a store, at least one, by index.

    Args:
        sequences: The sequences.
        axes: Field -> axis, of all their fields that have one or are vectors.
    """
    return RowsWithAxes(_StoreRows(sequences), axes)


@dataclass(frozen=True, slots=True, eq=False)
class _ListRows:
    """The items of a list, tuple or array."""

    items: Sequence[Any] | NDArray[Any]

    def __len__(self) -> int:
        return len(self.items)

    def rows_at(self, indices: NDArray[np.int64]) -> Iterator[Any]:
        """Return items by index."""
        return (self.items[index] for index in _iter_indices(indices))


@dataclass(frozen=True, slots=True, eq=False)
class _StoreRows:
    """The sequences of a store."""

    sequences: StoreSequences

    def __len__(self) -> int:
        return len(self.sequences)

    def rows_at(self, indices: NDArray[np.int64]) -> Iterator[Any]:
        """Return sequences by index."""
        return self.sequences.iter_view(take(self.sequences.store, indices))


@dataclass(frozen=True, slots=True, eq=False)
class _FrameRows:
    """The rows of a pandas DataFrame, by position."""

    frame: Any
    axes: Axes | None

    def __len__(self) -> int:
        return len(self.frame)

    def rows_at(self, indices: NDArray[np.int64]) -> Iterator[Any]:
        """Return rows by index."""
        for first in range(0, len(indices), _CHUNK_ROWS):
            chunk = self.frame.iloc[indices[first : first + _CHUNK_ROWS]]
            yield from normalize_sequences(chunk, self.axes)[0]


@dataclass(frozen=True, slots=True, eq=False)
class _TableRows:
    """The rows of record batches of one schema, one batch after the other.

    Attributes:
        batches: The record batches.
        offsets: int64 (batches+1,), the index of each batch's first row.
        chunk: Number of rows that are taken at once.
        axes: Field -> axis.
    """

    batches: Sequence[Any]
    offsets: NDArray[np.int64]
    chunk: int
    axes: Axes | None

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def rows_at(self, indices: NDArray[np.int64]) -> Iterator[Any]:
        """Return rows by index."""
        for first in range(0, len(indices), self.chunk):
            yield from self._take(indices[first : first + self.chunk])

    def _take(self, indices: NDArray[np.int64]) -> Iterator[Any]:
        """Return a few rows without joining all batches, as PyArrow would for a table."""
        import pyarrow as pa

        owners = np.searchsorted(self.offsets, indices, side="right") - 1
        by_owner = np.argsort(owners, kind="stable")
        starts = np.flatnonzero(np.diff(owners[by_owner], prepend=-1))
        pieces = []
        for positions in np.split(by_owner, starts[1:]):
            owner = owners[positions[0]]
            rows = indices[positions] - self.offsets[owner]
            pieces.append(self.batches[owner].take(pa.array(rows)))
        taken = list(normalize_sequences(pa.Table.from_batches(pieces), self.axes)[0])
        return (taken[at] for at in np.argsort(by_owner).tolist())


def _open_tables(tables: Sequence[Any], axes: Axes | None) -> RowsWithAxes | None:
    """Return the rows of Arrow tables of one schema; None if the tables have no rows."""
    names = tables[0].schema.names
    check_unique_names(names)
    columns = drop_index_columns(names)
    batches = [
        batch for table in tables for batch in table.select(columns).to_batches() if batch.num_rows
    ]
    if not batches:
        return None
    counts = [batch.num_rows for batch in batches]
    mean_bytes = max(1, sum(batch.nbytes for batch in batches) // sum(counts))
    chunk = min(max(1, _CHUNK_BYTES // mean_bytes), _CHUNK_ROWS)
    _, axes = normalize_sequences(batches[0].slice(0, 1), axes)
    offsets = np.cumsum([0, *counts], dtype=np.int64)
    for batch, first_row in zip(batches, offsets.tolist(), strict=False):
        refuse_missing_values(batch, first_row)
    return RowsWithAxes(_TableRows(batches, offsets, chunk, axes), axes)


def open_shuffled(
    writer: ShardedWriter,
    sequences: Any,
    axes: Axes | None,
    *,
    seed: int,
    make_id: Callable[[int], str] = str,
) -> ShuffledRows:
    """Return sequences in a random order.

    Sequences without random access, or whose store is slow to read so, are first written to the
    staging directory, or only compared with what an earlier call wrote there.

    Args:
        writer: The writer that will write them; its resume key has the seed, too.
        sequences: Sequences, a table, or a list of parts.
        axes: Field -> axis, as given by the user.
        seed: The seed of the order, in ``[0, 2**64)``.
        make_id: Returns the id of a sequence by its index, where sequences have none.

    Raises:
        ConfigError: If these are not sequences, or their ids are not strings.
        DataError: If a sequence is not like the first one, or not what was written before.
    """
    key = writer.resume_key.key
    if _reads_at_random(sequences):
        found = find_random_access(sequences, axes)
        if found is not None:
            return shuffle_rows(found, seed=seed, key=key, make_id=make_id)
    rows = StoreSequences(_write_first_pass(writer, sequences, axes), key)
    writer.report.begin(SECOND_STEP, len(rows))
    by_index = make_store_rows(rows, {**rows.axes, **(axes or {})})
    return shuffle_rows(by_index, seed=seed, key=key, make_id=make_id)


def _reads_at_random(sequences: Any) -> bool:
    """Return whether single sequences can be read cheaply, as far as the type tells."""
    if isinstance(sequences, StoreSequences):
        return _store_reads_at_random(sequences.store)
    return not is_part_list(sequences)


def _store_reads_at_random(store: Store) -> bool:
    """Return False for remote stores, and for files whose row groups are decoded as a whole."""
    from seqdata.storage.foreign.store import ForeignFiles  # most writers do without

    if isinstance(store, SupportsBase):
        return _store_reads_at_random(store.base)
    if isinstance(store, SupportsStores):
        return all(map(_store_reads_at_random, store.stores))
    if isinstance(store, ShardStore) and isinstance(store.manifest, ForeignFiles):
        return not store.manifest.is_decoded
    return not isinstance(store, SupportsLocality) or store.is_local


def _write_first_pass(writer: ShardedWriter, sequences: Any, axes: Axes | None) -> Store:
    """Return the store of the first pass; of a finished one the first sequence is compared."""
    from seqdata.storage.arrow.write import (  # it imports this module
        ArrowFormat,
        count_sequences,
        write_arrow,
    )

    key, root = writer.resume_key, writer.folder / FIRST_PASS
    writer.report.begin(FIRST_STEP, count_sequences(sequences))
    store = _open_finished(root)
    if store is None:
        return write_arrow(
            root, sequences, axes=axes, shard_bytes=key.shard_bytes, key=key.key,
            executor=writer.executor, progress=writer.report, overwrite=True,
        )  # fmt: skip
    rows, axes = normalize_sequences(chain_parts(sequences), axes)
    first = next(rows)
    written = ArrowFormat(store.fields, key).digest(next(iter(StoreSequences(store, key.key))), 0)
    check_same(first, ArrowFormat(infer_fields(first, axes), key), 0, written)
    writer.report(len(store), sum(shard.bytes for shard in store.manifest.shards))
    return store


def _open_finished(root: Path) -> ShardStore | None:
    """Return the store of a first pass; None if it is not finished, or files are missing."""
    if not (root / MANIFEST).exists():
        return None
    try:
        return open_local(root)
    except DataError:  # it is written again, as a damaged shard would be
        return None
