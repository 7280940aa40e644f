"""Batches with 0, 1 and 2 worker processes, beside a hand-written DataLoader with as many.

    python benchmarks/workers.py [--quick] [--rounds N] [--seconds S]

S and M, random batches of 64, padded + lengths, in three settings: no transform; a columnar one in
NumPy; the same in Python, per sequence. The DataLoader changes each sequence in `__getitem__`.
Every loader runs in a process of its own, with its own workers, and draws for a while in turn with
the others. CPU time is that of the process and its workers together.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

from common import Cost, Data, Maker, by_hand, machine, make_m, make_s, ours, running, spread
from rich.console import Console
from rich.table import Table
from transforms import CHANGES, SETTINGS

from seqdata.errors import ConfigError
from seqdata.kernel.dispatch import get_kernel_name

WORKERS = (0, 1, 2)
FLOORS = {
    ("no transform", "S"): 30.0,
    ("no transform", "M"): 4.5,
    ("columnar", "S"): 10.0,
    ("columnar", "M"): 3.5,
}
"""Times as fast as the DataLoader, with 1 worker both."""

Times = dict[tuple[str, int], list[Cost]]  # (loader, workers) -> one cost per round
OURS, PEER = "seqdata", "memmap DataLoader"


def makers(data: Data, setting: str) -> dict[tuple[str, int], Maker]:
    """Return a maker of batches for each loader and number of workers."""
    transform = SETTINGS[setting].get(data.name)
    change = CHANGES[data.name] if transform else None
    found: dict[tuple[str, int], Maker] = {}
    for workers in WORKERS:
        options = {"num_workers": workers, **({} if workers else {"prefetch": 0})}
        found[OURS, workers] = partial(ours, data, "random", transform=transform, **options)
        found[PEER, workers] = partial(by_hand, data, change, workers)
    return found


def measure(data: Data, setting: str, rounds: int, seconds: float) -> Times:
    """Draw for ``seconds`` from each in turn, ``rounds`` times and once before."""
    with running(makers(data, setting)) as runners:
        times: Times = {name: [] for name in runners}
        for number in range(rounds + 1):
            for name, runner in runners.items():
                cost = runner.draw_for(seconds)
                if number:  # at first files are mapped and nobody knows what a batch costs
                    times[name].append(cost)
    return times


def ratio(times: Times, workers: int) -> float:
    """Return how many times as fast seqdata is, by wall time."""
    mine, others = (
        statistics.median(cost.wall for cost in times[name, workers]) for name in (OURS, PEER)
    )
    return others / mine


def report(table: Table, data: Data, setting: str, times: Times) -> None:
    """Add a row for each number of workers."""
    for workers in WORKERS:
        cells = [data.name, setting, str(workers)]
        for name in (OURS, PEER):
            taken = times[name, workers]
            cpu = statistics.median(cost.cpu for cost in taken)
            cells += [spread([cost.wall for cost in taken]), f"{cpu:.0f}"]
        table.add_row(*cells, f"{ratio(times, workers):.1f}x")
    table.add_section()


def verdict(data: Data, setting: str, times: Times) -> str:
    """Say whether the floor is met with 1 worker, and against the DataLoader's best number."""
    floor, found = FLOORS.get((setting, data.name)), ratio(times, 1)
    best = min(
        (statistics.median(cost.wall for cost in times[PEER, workers]), workers)
        for workers in WORKERS
    )
    mine = statistics.median(cost.wall for cost in times[OURS, 1])
    floor_text = "no floor" if floor is None else f"floor {floor:g}x"
    met = "" if floor is None else " (met)" if found >= floor else " (MISSED)"
    return (
        f"{data.name}, {setting}, 1 worker: {floor_text}, found {found:.1f}x{met}; "
        f"{best[0] / mine:.1f}x beside the DataLoader's best, with {best[1]} workers"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of S, a fifth of M")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn (1)")
    options = parser.parse_args()
    console = Console(width=120, soft_wrap=True)
    if get_kernel_name() != "c":
        raise ConfigError("benchmark: no C kernel here; build it with `make env` and a C compiler")
    table = Table(title="random batches of 64, padded + lengths; us/batch")
    columns = ("data", "setting", "workers", OURS, "CPU", PEER, "CPU", "ratio")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        console.print(machine())
        console.print("writing S and M …")
        sets = [
            make_s(Path(folder), 100_000 if options.quick else 1_000_000),
            make_m(Path(folder), 2 * 10**8 if options.quick else 10**9),
        ]
        for data in sets:
            for setting in SETTINGS:
                console.print(f"{data.name}, {setting} …")
                times = measure(data, setting, options.rounds, options.seconds)
                report(table, data, setting, times)
                found.append(verdict(data, setting, times))
    console.print(table)
    for line in found:
        console.print(line)
    console.print(machine())


if __name__ == "__main__":
    main()
