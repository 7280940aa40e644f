"""``python -m seqdata_testing.faults``: the matrix of faults, for the core and for plugins.

Usage: ``python -m seqdata_testing.faults [FAULT ...] [--target MODULE:NAME ...] [--quick]``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from seqdata.errors import ConfigError
from seqdata_testing.faults.cases import all_cases, find_target
from seqdata_testing.faults.fault_case import FAULTS
from seqdata_testing.faults.matrix import Result, run, summary
from seqdata_testing.faults.page import as_grid, as_page, as_reasons


def main(arguments: Sequence[str]) -> int:
    """Run the cases of all faults, or of the named faults.

    Returns:
        Exit status: 1 if an outcome is wrong or a fault did not happen (except a fault that this
        system cannot cause, which only counts as not run); 2 if a name is unknown; else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m seqdata_testing.faults")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="D1, W5, …; none: all")
    parser.add_argument(
        "--target", "--subject", dest="target", action="append", default=[], metavar="MODULE:NAME",
        help="a FaultTarget of a plugin, tried as the core's own are (--subject: its old name)",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="only what runs at every change")
    options = parser.parse_args(arguments)
    console = Console(width=120, highlight=False, emoji=False)
    try:
        refuse_unknown(options.faults)
        others = [find_target(name) for name in options.target]
    except ConfigError as error:
        Console(stderr=True, highlight=False).print(str(error), markup=False, soft_wrap=True)
        return 2
    cases = all_cases(others, quick=options.quick)
    chosen = [
        case for case in cases
        if (not options.faults or case.fault in options.faults)
        and (case.quick or not options.quick)
    ]  # fmt: skip
    results = []
    fault = ""
    for result in run(chosen):
        if result.case.fault != fault:
            fault = result.case.fault
            console.print(f"{fault}: {FAULTS[fault]}")
        console.print(_line(result), markup=False, soft_wrap=True)
        results.append(result)
    if not options.faults and not options.quick:
        for text in (as_page([case for case in cases if case.quick]), as_grid(results)):
            console.print(text, markup=False, soft_wrap=True)
        console.print(as_reasons(cases), markup=False, soft_wrap=True)
    console.print(summary(results), markup=False)
    wrong = [
        result for result in results if result.complaints or (result.not_run and not result.cannot)
    ]
    return 1 if wrong else 0


def refuse_unknown(names: Sequence[str]) -> None:
    """Raise if a fault does not exist.

    Raises:
        ConfigError: If a name is unknown.
    """
    wrong = [name for name in names if name not in FAULTS]
    if wrong:
        raise ConfigError(
            f"faults: a fault must be one of {', '.join(FAULTS)}, but is {wrong[0]!r}. Choose one "
            "of these"
        )


def _line(result: Result) -> str:
    case = result.case
    if case.tries is None:
        return f"  n/a   {case.way}: {case.reason}"
    names = ", ".join(f"{count} {name}" for name, count in sorted(result.names.items()))
    if result.not_run and not result.complaints:
        return f"  NOT RUN  {case.way}: {result.not_run}"
    state = "FAIL" if result.complaints else "ok  "
    lines = [f"  {state}  {case.way}: {names} (slowest {result.slowest:.2f} s)"]
    return "\n".join([*lines, *(f"        {text}" for text in result.complaints)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
