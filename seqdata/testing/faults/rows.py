"""All cells of the core's own stores.

Place in the flow: between the rows and the matrix. Makes: cells.
"""

from __future__ import annotations

from seqdata.testing.faults import rows_d, rows_r, rows_s, rows_v, rows_w
from seqdata.testing.faults.subject import OWN, SUBJECTS
from seqdata.testing.faults.table import FAULTS, Cell


def all_cells(*, quick: bool = False) -> list[Cell]:
    """Give the cells of every fault, in the order of ``FAULTS``.

    Args:
        quick: Whether each tries little, for the cells that run at every change.
    """
    found = [cell for subject in SUBJECTS for cell in rows_d.cells(subject, quick=quick)]
    found += [*rows_w.cells(OWN), *rows_r.cells(OWN), *rows_v.cells(OWN, quick=quick)]
    found += rows_s.cells(quick=quick)
    order = list(FAULTS)
    return sorted(found, key=lambda cell: order.index(cell.fault))
