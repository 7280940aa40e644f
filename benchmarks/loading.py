"""Time of a batch beside the DataLoader people write by hand: interleaved rounds, ratio of medians.

    python benchmarks/loading.py [--quick] [--rounds N]

Data sets S (10^6 token sequences) and M (1 GB of float32 frames), batches of 64, padded, no worker
processes. Every loader runs in a process of its own: first a whole epoch, which maps the files page
by page (its own column), then rounds in turn with the others. On a machine that does other things,
too, the CPU columns are the ones to read.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from common import (
    BATCH,
    KERNELS,
    Cost,
    Data,
    by_hand,
    machine,
    make_m,
    make_s,
    ours,
    running,
    spread,
)  # fmt: skip
from rich.console import Console
from rich.table import Table

from seqdata.errors import ConfigError
from seqdata.kernel.dispatch import get_kernel_name

FLOORS = {"S": 10.0, "M": 1.7}
PEER = "memmap DataLoader"
COLUMNS = ("data", "loader", "us/batch", "ratio", "CPU us/batch", "ratio", "first epoch", "ratio")


@dataclass
class Times:
    """Cost of one loader."""

    first: Cost
    rounds: list[Cost] = field(default_factory=list)

    def column(self, which: int) -> list[float]:
        return [cost[which] for cost in self.rounds]


def measure(data: Data, order: str, rounds: int, batches: int) -> dict[str, Times]:
    """Play an epoch of each loader, then draw ``batches`` from each in turn, ``rounds`` times."""
    makers = {
        "seqdata": partial(ours, data, order, prefetch=0),
        "seqdata, NumPy twin": partial(ours, data, order, prefetch=0),
        PEER: partial(by_hand, data, order),
        f"{PEER}, tuned": partial(by_hand, data, order, tuned=True),
    }
    available = {
        name: make
        for name, make in makers.items()
        if KERNELS.get(name) != "c" or get_kernel_name() == "c"
    }
    epoch = -(-data.count // BATCH) - 1  # one was drawn when the process began
    with running(available) as runners:
        times = {name: Times(runner.draw(epoch)) for name, runner in runners.items()}
        for _ in range(rounds):
            for name, runner in runners.items():
                times[name].rounds.append(runner.draw(batches))
    return times


def report(table: Table, data: Data, order: str, times: dict[str, Times]) -> None:
    """Add a row for each loader."""
    peer = times[PEER]
    for name, taken in times.items():
        cells = [f"{data.name} {order}", name]
        for which in (0, 1):
            mine, others = taken.column(which), peer.column(which)
            ratio = statistics.median(others) / statistics.median(mine)
            cells += [spread(mine), f"{ratio:.1f}x"]
        cells += [f"{taken.first.cpu:.0f} CPU", f"{peer.first.cpu / taken.first.cpu:.1f}x"]
        table.add_row(*cells)
    table.add_section()


def verdicts(data: Data, order: str, times: dict[str, Times]) -> str:
    """Say whether the floor is met, by CPU time and by wall time."""
    floor, texts = FLOORS[data.name], []
    for which, name in enumerate(("wall", "CPU")):
        theirs = statistics.median(times[PEER].column(which))
        ratio = theirs / statistics.median(times["seqdata"].column(which))
        texts.append(f"{ratio:.1f}x of {name} time {'(met)' if ratio >= floor else '(MISSED)'}")
    return f"{data.name} {order}: floor {floor:g}x, found {', '.join(texts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of S, a fifth of M")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (7)")
    options = parser.parse_args()
    console = Console(width=140)
    if get_kernel_name() != "c":
        raise ConfigError("benchmark: no C kernel here; build it with `make env` and a C compiler")
    table = Table(title="batches of 64, padded + lengths, num_workers=0")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if number < 2 else "right")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        console.print(machine())
        console.print("writing S and M …")
        sets = [
            (make_s(Path(folder), 100_000 if options.quick else 1_000_000), 1000),
            (make_m(Path(folder), 2 * 10**8 if options.quick else 10**9), 100),
        ]
        for data, batches in sets:
            for order in ("random", "bucketed"):
                console.print(f"{data.name} {order} …")
                times = measure(data, order, options.rounds, batches)
                report(table, data, order, times)
                found.append(verdicts(data, order, times))
    console.print(table)
    for line in found:
        console.print(line)
    console.print(machine())


if __name__ == "__main__":
    main()
