"""Reading all of a store that has no checksums, and listing what cannot be read.

Place in the flow: ``seqdata verify`` asks it about files that others wrote, and other backends.
Reads: all sequences. Makes: a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from seqdata.errors import DataError
from seqdata.protocols import Store
from seqdata.storage.fields import default_axis
from seqdata.storage.integrity.audit import KEPT, Finding, Report

_RUN = 256  # sequences


def read_all(store: Store, told: Callable[[int], None]) -> Report:
    """Read every field of every sequence; give what could not be.

    Args:
        store: Any store.
        told: Called with the number of sequences that were read.
    """
    axis = default_axis(store.lengths_of)
    found: list[Finding] = []
    damages = 0
    for first in range(0, len(store), _RUN):
        numbers = np.arange(first, min(first + _RUN, len(store)))
        if _error(store, numbers, axis) is not None:
            for error in _errors(store, numbers, axis):
                damages += 1
                if len(found) < KEPT:
                    found.append(Finding(str(error), dict(error.facts)))
        told(len(numbers))
    return Report(
        file=", ".join(store.shards) if len(store.shards) < 3 else f"{len(store.shards)} files",
        shard=None, sequences=len(store), bytes=0, damages=damages, findings=found,
        by="structure",
    )  # fmt: skip


def _errors(store: Store, numbers: Any, axis: str) -> Iterator[DataError]:
    for number in numbers:
        error = _error(store, np.array([number]), axis)
        if error is not None:
            yield error


def _error(store: Store, numbers: Any, axis: str) -> DataError | None:
    """Give what is wrong with the first of some sequences that cannot be read."""
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0] = numbers
    spans[:, 2] = store.lengths_of[axis][numbers]
    try:
        for column in store.read(spans, store.fields, axis=axis).values():
            for place in range(len(column)):
                column[place]  # looked at, not kept
    except DataError as error:
        return error
    return None
