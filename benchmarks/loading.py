"""Time of a batch beside the DataLoader people write by hand: interleaved rounds, ratio of medians.

    python benchmarks/loading.py [--quick] [--rounds N]

Data sets S (10^6 token sequences) and M (1 GB of float32 frames), batches of 64, padded, no worker
processes. Every loader runs in a process of its own and draws in turn with the others. On a machine
that does other things, too, the CPU columns are the ones to read.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from common import KERNELS, MAKERS, Data, Runner, machine, make_m, make_s, spread
from rich.console import Console
from rich.table import Table

from seqdata.errors import ConfigError
from seqdata.kernel.choose import kernel_name

FLOORS = {"S": 10.0, "M": 1.7}
PEER = "memmap DataLoader"
Times = dict[str, list[tuple[float, float]]]


def measure(data: Data, order: str, rounds: int, batches: int) -> Times:
    """Draw ``batches`` from each loader in turn, ``rounds`` times."""
    names = [name for name in MAKERS if KERNELS.get(name) != "c" or kernel_name() == "c"]
    runners = {name: Runner(data, order, name) for name in names}
    times: Times = {name: [] for name in names}
    for _ in range(rounds):
        for name, runner in runners.items():
            times[name].append(runner.draw(batches))
    for runner in runners.values():
        runner.close()
    return times


def report(table: Table, data: Data, order: str, times: Times) -> None:
    """Add a row for each loader."""
    peers = [statistics.median(column) for column in zip(*times[PEER], strict=True)]
    for name, taken in times.items():
        wall, cpu = ([one[column] for one in taken] for column in (0, 1))
        ratios = [peers[0] / statistics.median(wall), peers[1] / statistics.median(cpu)]
        floor = FLOORS[data.name] if name == "seqdata" else None
        verdict = (
            "" if floor is None else f"{floor:g}x {'met' if max(ratios) >= floor else 'MISSED'}"
        )
        table.add_row(
            f"{data.name} {order}", name, spread(wall), f"{ratios[0]:.1f}x", spread(cpu),
            f"{ratios[1]:.1f}x", verdict,
        )  # fmt: skip
    table.add_section()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (7)")
    options = parser.parse_args()
    console = Console()
    if kernel_name() != "c":
        raise ConfigError("benchmark: no C kernel here; build it with `make env` and a C compiler")
    table = Table(title="batches of 64, padded + lengths, num_workers=0")
    for column in ("data", "loader", "us/batch wall", "ratio", "us/batch CPU", "ratio", "floor"):
        table.add_column(column, justify="left" if column in ("data", "loader") else "right")
    with tempfile.TemporaryDirectory() as folder:
        console.print(machine())
        console.print("writing S and M …")
        part = 10 if options.quick else 1
        sets = [
            (make_s(Path(folder), 1_000_000 // part), 2_000 // (2 if options.quick else 1)),
            (make_m(Path(folder), 10**9 // (5 if options.quick else 1)), 50),
        ]
        for data, batches in sets:
            for order in ("random", "bucketed"):
                console.print(f"{data.name} {order} …")
                report(table, data, order, measure(data, order, options.rounds, batches))
    console.print(table)
    console.print(machine())


if __name__ == "__main__":
    main()
