"""Playing of a dataset with unreadable sequences, with ``on_error`` of ``mask`` or ``replace``.

All planned batches must come, each masked or replaced row must be reported with its location, and
all other rows must be right.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from seqdata.loading.loader import Loader
from seqdata_testing.faults import outcome as outcomes
from seqdata_testing.faults.outcome import Outcome, of_error
from seqdata_testing.faults.reading import Sequences


def play_on_error(open_it: Callable[[], Loader], sequences: Sequences) -> Outcome:
    """Play one epoch of padded batches with bad rows, and return the outcome.

    Args:
        open_it: Returns the loader, with ``on_error`` of ``mask`` or ``replace``.
        sequences: Expected content of the store.
    """
    began = time.monotonic()
    delivered = planned = rows = 0
    masked: set[int] = set()
    loader = None
    try:
        with _silence_log():
            loader = open_it()
            planned = len(loader)
            for batch in loader:
                wrong = find_different_row(batch, sequences, masked)
                if wrong:
                    text = f"batch {delivered}: {wrong}"
                    return Outcome(what=outcomes.WRONG, text=text, delivered=delivered)
                delivered += 1
                rows += len(batch.ids)
    except Exception as error:
        seconds = time.monotonic() - began
        return of_error(error, seconds=seconds, delivered=delivered, planned=planned)
    finally:
        if loader is not None:
            loader.shutdown()
    entries = loader.errors
    seconds = time.monotonic() - began
    due = sum(len(sequence["x"]) > 0 for sequence in sequences) if sequences else 0
    if delivered != planned or rows != due:
        text = f"{rows} of {due} rows"
        return Outcome(what=outcomes.SHORT, text=text, delivered=delivered, planned=planned)
    unlogged = masked - {int(entry["sequence"]) for entry in entries}
    if unlogged:
        return Outcome(what=outcomes.WRONG, text=f"sequences {sorted(unlogged)} are masked untold")
    verdict = outcomes.MENDED if entries else outcomes.WHOLE
    text, details = "", {}
    if entries:
        text = f"{len(entries)} sequences; the first: {entries[0]['message']}"
        details = {name: value for name, value in entries[0].items() if name != "message"}
    return Outcome(
        what=verdict,
        text=text,
        details=details,
        delivered=delivered,
        planned=planned,
        seconds=seconds,
    )


@contextmanager
def _silence_log() -> Iterator[None]:
    """Silence the log of skipped errors within the block; they are many, and all are checked."""
    log = logging.getLogger("seqdata")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def find_different_row(batch: Any, sequences: Sequences, masked: set[int]) -> str:
    """Return a description of a wrong value in a row of weight > 0; empty if there is none.

    Args:
        batch: A padded ``SequenceBatch``.
        sequences: Expected content of the store.
        masked: Set to which the indices of masked sequences are added.
    """
    for row, number in enumerate(batch.ids.tolist()):
        if float(batch.weight[row]) == 0:
            masked.add(number)
            continue
        length = int(batch.lengths[row])
        for name in batch.data:
            value, must = batch[name][row], sequences[number][name]
            if isinstance(value, Tensor) and np.ndim(must):
                value, must = value[:length], must[:length]  # a row that stands in is cropped
            actual = value.numpy() if isinstance(value, Tensor) else value
            is_same = actual == must if isinstance(must, str) else np.array_equal(actual, must)
            if not is_same:
                return f"field {name!r} of sequence {number} is another"
    return ""
