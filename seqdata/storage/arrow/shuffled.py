"""Writing in a random order: at once where sequences can be read in any order, else in two passes.

The first pass writes an Arrow store into the staging directory, in the order given; the second one
reads it in the random order. It is removed with the staging directory. Writers of all formats begin
here; place in the flow: whatever a user passes becomes rows. Reads: sequences. Makes: rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seqdata.capabilities import SupportsBase, SupportsLocality, SupportsStores
from seqdata.errors import DataError
from seqdata.protocols import Store
from seqdata.storage.arrow.manifest import MANIFEST
from seqdata.storage.arrow.store import open_local
from seqdata.storage.inputs import Axes, normalize_sequences
from seqdata.storage.row_order import (
    ShuffledRows,
    find_random_access,
    number_store,
    shuffle_rows,
)
from seqdata.storage.schema import infer_fields
from seqdata.storage.store import ShardStore
from seqdata.storage.store_rows import StoreSequences
from seqdata.storage.writing.progress import FIRST_STEP, SECOND_STEP
from seqdata.storage.writing.sharded_writer import ShardedWriter, is_part_list
from seqdata.storage.writing.shards import check_same
from seqdata.storage.writing.staging_dir import FIRST_PASS


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
        make_id: Returns the id of a sequence by its number, where sequences have none.

    Raises:
        ConfigError: If these are not sequences, or their ids are not texts.
        DataError: If a sequence is not like the first one, or not what was written before.
    """
    key = writer.resume_key.key
    if _reads_at_random(sequences):
        found = find_random_access(sequences, axes)
        if found is not None:
            return shuffle_rows(found, seed=seed, key=key, make_id=make_id)
    rows = StoreSequences(_write_first_pass(writer, sequences, axes), key)
    writer.report.begin(SECOND_STEP, len(rows))
    by_number = number_store(rows, {**rows.axes, **(axes or {})})
    return shuffle_rows(by_number, seed=seed, key=key, make_id=make_id)


def _reads_at_random(sequences: Any) -> bool:
    """Return whether single sequences can be read without much else, as far as is known."""
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
    if is_part_list(sequences):
        sequences = itertools.chain.from_iterable(part() for part in sequences)
    rows, axes = normalize_sequences(sequences, axes)
    first = next(rows)
    written = ArrowFormat(store.fields, key).digest(next(iter(StoreSequences(store, key.key))), 0)
    check_same(first, ArrowFormat(infer_fields(first, axes), key), 0, written)
    writer.report(len(store), sum(shard.bytes for shard in store.manifest.shards))
    return store


def _open_finished(root: Path) -> ShardStore | None:
    """Return the store of a finished first pass; None: it is not finished, or files are missing."""
    if not (root / MANIFEST).exists():
        return None
    try:
        return open_local(root)
    except DataError:  # it is written again, as a damaged shard would be
        return None
