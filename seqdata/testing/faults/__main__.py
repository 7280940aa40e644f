"""``python -m seqdata.testing.faults``: the matrix of faults on the core's own stores."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from seqdata.testing.faults.matrix import Result, run, summary
from seqdata.testing.faults.page import as_page
from seqdata.testing.faults.rows import all_cells
from seqdata.testing.faults.table import FAULTS


def main(arguments: Sequence[str]) -> int:
    """Run the cells of all faults, or of those that are named; 1 where one is not as it must be."""
    console = Console(width=120, highlight=False)
    chosen = [cell for cell in all_cells() if not arguments or cell.fault in arguments]
    results = []
    fault = ""
    for result in run(chosen):
        if result.cell.fault != fault:
            fault = result.cell.fault
            console.print(f"{fault}: {FAULTS[fault]}")
        console.print(_line(result), markup=False, soft_wrap=True)
        results.append(result)
    if not arguments:
        console.print(as_page([cell for cell in all_cells() if cell.quick]), markup=False)
    console.print(summary(results), markup=False)
    return 0 if all(result.ok for result in results) else 1


def _line(result: Result) -> str:
    cell = result.cell
    if cell.tries is None:
        return f"  n/a   {cell.way}: {cell.reason}"
    names = ", ".join(f"{count} {name}" for name, count in sorted(result.names.items()))
    state = "ok  " if result.ok else "FAIL"
    lines = [f"  {state}  {cell.way}: {names} (slowest {result.slowest:.2f} s)"]
    return "\n".join([*lines, *(f"        {text}" for text in result.complaints)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
