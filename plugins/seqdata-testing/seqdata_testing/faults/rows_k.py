"""More of rows D2, D7 and D9: files that are kept, saved datasets, other data under an old path.

Place in the flow: cells for the matrix. Makes: cells.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from seqdata_testing.faults import damaged, kept, rows_d
from seqdata_testing.faults.outcome import WHOLE, Expectation
from seqdata_testing.faults.rows_d import FILE_FACTS, Row
from seqdata_testing.faults.subject import FOREIGN, OWN, Kept, Subject
from seqdata_testing.faults.table import Cell

_OF_THE_CORE = {OWN.name: (kept.MEASURED, kept.RUN_FILE), FOREIGN.name: (kept.COUNTED,)}
_OPENING = 5.0  # seconds
_FLIPS, _QUICK_FLIPS = 100, 10  # in each region of a file
_REOPENED = {None: "unpickled", 2: "workers 2"}
_SAVED_ROWS = (
    Row(fault="D7", harms=damaged.removed, kinds=("MissingShardError",), facts=FILE_FACTS),
    Row(
        fault="D2", harms=damaged.flips_of_the_rest, part="others", facts=FILE_FACTS,
        kinds=("MissingShardError", "CorruptShardError", WHOLE),
    ),
)  # fmt: skip


def cells(subject: Subject, *, quick: bool = False) -> list[Cell]:
    """Return the cells of a kind of data on this machine.

    Args:
        subject: What is kept of, and replaced.
        quick: Whether each tries little.
    """
    files = (*subject.kept, *_OF_THE_CORE.get(subject.name, ()))
    found = [_flipped(subject, one, _QUICK_FLIPS if quick else _FLIPS) for one in files]
    for workers, how in _REOPENED.items():
        verify = subject.verify[-1]
        found.append(
            Cell(
                fault="D9", way=f"{subject.name}, other data under the old path, {how}",
                tries=partial(kept.replaced, subject, verify, workers),
                must=Expectation(
                    kinds=("FingerprintMismatch", "ConfigError"), facts=("dataset",),
                    texts=("must be the data that was opened",), delivered=0,
                    happened={kept.REPLACED: 1}, seconds=_OPENING,
                ),
                quick=subject is OWN and workers is None,
            )
        )  # fmt: skip
    return found


def saved_cells(*, quick: bool = False) -> list[Cell]:
    """Return the cells of datasets that the datasets library saved."""
    return [
        replace(cell, quick=cell.quick and cell.fault == "D7")
        for row in _SAVED_ROWS
        for cell in rows_d.cells_of_row(kept.SAVED, row, quick=quick)
    ]


def _flipped(subject: Subject, one: Kept, count: int) -> Cell:
    return Cell(
        fault="D2", way=f"{subject.name}, {one.name}, each region",
        tries=partial(kept.flipped, one, count),
        must=Expectation(kinds=one.kinds, happened={kept.CHANGED: count}, seconds=_OPENING),
        bound=300.0, quick=one in subject.kept,
    )  # fmt: skip
