"""An audit of a store without checksums: everything is read, and failures are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from seqdata.errors import DataError
from seqdata.protocols import Store
from seqdata.storage.fields import default_axis
from seqdata.storage.integrity.audit import MAX_FINDINGS, AuditFinding, AuditReport

_SEQUENCES_PER_READ = 256  # sequences


def audit_by_reading(store: Store, on_progress: Callable[[int], None]) -> AuditReport:
    """Read every field of every sequence; yield the failures.

    Args:
        store: Any store.
        on_progress: Called with the number of sequences that were read.
    """
    axis = default_axis(store.lengths_of)
    findings: list[AuditFinding] = []
    damages = 0
    for first in range(0, len(store), _SEQUENCES_PER_READ):
        numbers = np.arange(first, min(first + _SEQUENCES_PER_READ, len(store)))
        if _find_error(store, numbers, axis) is not None:
            for error in _iter_errors(store, numbers, axis):
                damages += 1
                if len(findings) < MAX_FINDINGS:
                    findings.append(AuditFinding(str(error), dict(error.facts)))
        on_progress(len(numbers))
    return AuditReport(
        file=", ".join(store.shards) if len(store.shards) < 3 else f"{len(store.shards)} files",
        shard=None, sequences=len(store), bytes=0, damages=damages, findings=findings,
        by="structure",
    )  # fmt: skip


def _iter_errors(store: Store, numbers: Any, axis: str) -> Iterator[DataError]:
    for number in numbers:
        error = _find_error(store, np.array([number]), axis)
        if error is not None:
            yield error


def _find_error(store: Store, numbers: Any, axis: str) -> DataError | None:
    """Return the error of the first of some sequences that cannot be read."""
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0] = numbers
    spans[:, 2] = store.lengths_of[axis][numbers]
    try:
        for column in store.read(spans, store.fields, axis=axis).values():
            for i in range(len(column)):
                column[i]  # read, not kept
    except DataError as error:
        return error
    return None
