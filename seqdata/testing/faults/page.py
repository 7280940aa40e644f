"""The table of faults for a page: what happens, what comes of it, and within which time.

Place in the flow: beside the matrix. Reads: cells. Makes: text.
"""

from __future__ import annotations

from collections.abc import Sequence

from seqdata.testing.faults.table import FAULTS, Cell

_NAMES = {"whole": "no harm", "died": "the process ends"}


def as_page(cells: Sequence[Cell]) -> str:
    """Give the table, a row per fault.

    Args:
        cells: Those that are tried at every change: they say what must come of each fault.
    """
    rows = ["| | what happens | what comes of it | within |", "|---|---|---|---|"]
    for fault, what in FAULTS.items():
        musts = [cell.must for cell in cells if cell.fault == fault]
        kinds = list(dict.fromkeys(kind for must in musts for kind in must.kinds))
        shown = ", ".join(_NAMES.get(kind, f"`{kind}`") for kind in kinds)
        seconds = max((must.seconds for must in musts), default=0.0)
        rows.append(f"| {fault} | {what} | {shown} | {seconds:g} s |")
    return "\n".join(rows) + "\n"
