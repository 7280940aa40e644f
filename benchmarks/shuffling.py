"""Does `shuffle=True` shuffle? The tables of issue 39, beside a plain global permutation.

    python benchmarks/shuffling.py [--only A,B] [--json FILE]

A: data that is stored class by class. B: labels that go along with length; a step beside the next
one. C: parts of a mixture. D: copies of a sequence in a batch. E: places in an epoch and in the
next one. F: mean places over fifty epochs. The permutation is numpy's, of the same sequences in
batches of the same sizes. A row whose aim is not reached is marked. With fixed seeds: the same
figures each time, but for the rounding of trained models.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from common import machine
from rich.console import Console
from rich.table import Table
from shuffling_set import by_length, cases, mixtures, places, repeats, stored_by_class
from shuffling_set.rows import Row
from shuffling_set.training import OPTIMIZERS

TITLES = {
    "A": "A. Stored class by class, or series by series",
    "B": "B. Labels that go along with length; a step beside the next one",
    "C": "C. Parts of a mixture, 7:3, Bucketed(32)",
    "D": "D. Copies of a sequence in a batch; 3 % rare, drawn evenly",
    "E": "E. Places of 300,000 sequences in an epoch and in the next one",
    "F": "F. Mean places over fifty epochs",
}


def list_work(table: str) -> Iterator[Callable[[], list[Row]]]:
    """Yield what makes the rows of a table, some at a time."""
    for name in cases.POLICIES:
        if table == "A":
            yield partial(stored_by_class.train_stored_by_class, name)
            yield partial(stored_by_class.count_classes, name)
        elif table == "E":
            yield partial(places.compare_epochs, name)
        elif table == "F":
            yield from (partial(places.find_mean_places, name, count) for count in places.SIZES)
    if table == "A":
        yield from (partial(stored_by_class.count_series, name) for name in stored_by_class.WINDOWS)
    elif table == "B":
        for name in by_length.POLICIES:
            yield from (partial(by_length.train_by_length, name, by) for by in OPTIMIZERS)
        for name in by_length.BY_LENGTH:
            yield from (partial(by_length.correlate_steps, name, n) for n in by_length.RANKS)
            yield from (partial(by_length.compare_loaders, name, n) for n in by_length.RANKS)
    elif table == "C":
        yield from (partial(mixtures.count_runs, ranks) for ranks in mixtures.RANKS)
    elif table == "D":
        for count in repeats.SIZES:
            yield from (partial(repeats.count_repeats, name, count) for name in repeats.POLICIES)
        yield from (partial(repeats.count_repeats_of, source) for source in repeats.SOURCES)


def make_rows(table: str) -> list[Row]:
    """Return all rows of a table."""
    return [row for work in list_work(table) for row in work()]


def show(out: Console, table: str, rows: list[Row], seconds: float) -> None:
    """Print a table."""
    shown = Table("case", "figure", "here", "permutation", "aim", "", title=TITLES[table])
    for row in sorted(rows, key=lambda row: row.figure):
        mark = "" if row.reached is None else "reached" if row.reached else "MISSED"
        figures = (f"{figure:.4g}" if abs(figure) > 1e-9 else "0" for figure in row[3:5])
        shown.add_row(row.case, row.figure, *figures, row.aim, mark)
    out.print(shown)
    missed = sum(row.reached is False for row in rows)
    aims = sum(row.reached is not None for row in rows)
    out.print(f"{table}: {aims - missed} of {aims} aims reached, {missed} missed ({seconds:.0f} s)")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(TITLES), help="tables, e.g. A,B")
    parser.add_argument("--json", type=Path, help="a file for all rows")
    options = parser.parse_args()
    tables = options.only.split(",")
    unknown = set(tables) - set(TITLES)
    if unknown:
        parser.error(f"--only: must be of {','.join(TITLES)}, but has {','.join(sorted(unknown))}")
    torch.set_num_threads(1)
    out, found = Console(width=180), []
    out.print(machine())
    for table in tables:
        start = time.perf_counter()
        rows = make_rows(table)
        show(out, table, rows, time.perf_counter() - start)
        found += rows
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in found], indent=1), "utf-8")


if __name__ == "__main__":
    main()
