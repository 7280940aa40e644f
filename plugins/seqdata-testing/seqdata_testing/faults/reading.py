"""Reading and playing of datasets, which return the outcome.

Every value is compared with the expected one, and an early end is detected, because neither would
raise an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from seqdata.loading.loader import Loader
from seqdata.protocols import Store
from seqdata_testing.faults import outcome as outcomes
from seqdata_testing.faults.outcome import Outcome, of_error

Sequences = Sequence[Mapping[str, Any]]
_TOGETHER = 16  # sequences of one read


def read_through(open_it: Callable[[], Store], sequences: Sequences) -> Outcome:
    """Open a store and read every field of every sequence, ids too.

    Args:
        open_it: Function that opens the store.
        sequences: Expected content: per sequence, field -> array, number, ``str`` or ``bytes``.
    """
    began = time.monotonic()
    delivered = 0
    try:
        store = open_it()
        for first in range(0, len(store), _TOGETHER):
            wrong = _read(store, sequences, range(first, min(first + _TOGETHER, len(store))))
            if wrong:
                return Outcome(what=outcomes.WRONG, text=wrong, seconds=time.monotonic() - began)
            delivered += 1
        enough = len(store) == len(sequences)
    except Exception as error:
        return of_error(error, seconds=time.monotonic() - began, delivered=delivered)
    verdict = outcomes.WHOLE if enough else outcomes.SHORT
    return Outcome(what=verdict, delivered=delivered, seconds=time.monotonic() - began)


def _read(store: Store, sequences: Sequences, numbers: range) -> str:
    lengths = store.lengths[numbers.start : numbers.stop].astype(np.int64)
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0], spans[:, 2] = numbers, lengths
    columns = store.read(spans, store.fields)
    keys = store.keys(list(numbers))
    for row, number in enumerate(numbers):
        must = sequences[number]
        for name, column in columns.items():
            if not _equal(column[row], must[name], has_axis=store.fields[name].axis is not None):
                return f"field {name!r} of sequence {number} is another"
        if "id" in must and keys[row] != must["id"]:
            return f"the id of sequence {number} is {keys[row]!r}"
    return ""


def _equal(found: Any, must: Any, *, has_axis: bool) -> bool:
    if isinstance(must, str | bytes):
        return bool(found == must)
    actual = np.asarray(found) if has_axis else np.asarray(found)[0]
    return np.array_equal(actual, np.asarray(must))


def play_through(
    open_it: Callable[[], Loader],
    sequences: Sequences,
    *,
    since: Callable[[], float | None] | None = None,
    each: Callable[[int], None] | None = None,
) -> Outcome:
    """Play one epoch of padded batches, and return the outcome.

    Args:
        open_it: Function that returns the loader.
        sequences: Expected content of the store.
        since: Returns the time of the fault (``time.monotonic``), or None if there was none; None:
            time counts from the beginning.
        each: Called after each batch with the number of batches so far.
    """
    began = time.monotonic()
    delivered = planned = 0

    def seconds() -> float:
        happened = None if since is None else since()
        return time.monotonic() - (began if happened is None else happened)

    loader = None
    try:
        loader = open_it()
        planned = len(loader)
        for batch in loader:
            wrong = find_difference(batch, sequences)
            if wrong:
                return Outcome(
                    what=outcomes.WRONG, text=f"batch {delivered}: {wrong}", seconds=seconds(),
                    delivered=delivered, planned=planned,
                )  # fmt: skip
            delivered += 1
            if each is not None:
                each(delivered)
    except Exception as error:
        return of_error(error, seconds=seconds(), delivered=delivered, planned=planned)
    finally:
        if loader is not None:
            loader.shutdown()
    verdict = outcomes.WHOLE if delivered == planned else outcomes.SHORT
    return Outcome(what=verdict, delivered=delivered, planned=planned, seconds=seconds())


def find_difference(batch: Any, sequences: Sequences, fields: Iterable[str] | None = None) -> str:
    """Return a description of a wrong value of a padded batch; empty if there is none.

    Args:
        batch: A ``SequenceBatch``.
        sequences: Expected content of the store.
        fields: Fields to check; None: all fields of the batch.
    """
    names = list(batch.data) if fields is None else list(fields)
    for row, number in enumerate(batch.ids.tolist()):
        length = int(batch.lengths[row])
        for name in names:
            value, must = batch[name][row], sequences[number][name]
            if isinstance(value, Tensor) and np.ndim(must):
                value = value[:length]
            actual = value.numpy() if isinstance(value, Tensor) else value
            is_same = actual == must if isinstance(must, str) else np.array_equal(actual, must)
            if not is_same:
                return f"field {name!r} of sequence {number} is another"
    return ""
