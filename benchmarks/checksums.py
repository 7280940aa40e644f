"""Measure the cost of checksums: epochs with ``verify`` off, first_read and always, in turn.

    python benchmarks/checksums.py [--quick] [--rounds N]

Every turn opens the store anew, so that nothing is mapped and nothing counts as verified, and plays
two epochs in this process: the first one checks whatever it reads, the second one is warm. No
worker processes, no thread that reads ahead; the files are in the page cache.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from common import POLICIES, Cost, Data, machine, make_m, make_s, spread
from rich.console import Console
from rich.table import Table

from seqdata.api import open_store
from seqdata.errors import ConfigError
from seqdata.kernel.dispatch import get_kernel_name
from seqdata.loading.loader import Loader

MODES = ("off", "first_read", "always")
EPOCHS = ("first epoch", "warm")
FLOORS = {"first epoch": 0.40, "warm": 0.08}  # most that first_read may add to a batch's time
Times = dict[tuple[str, str], list[Cost]]  # (mode, epoch) -> one cost per round


def measure(data: Data, order: str, rounds: int) -> Times:
    """Play two epochs per mode and round, the modes in turn; one more round comes first."""
    times: Times = {(mode, epoch): [] for mode in MODES for epoch in EPOCHS}
    for number in range(rounds + 1):
        for turn in range(len(MODES)):
            mode = MODES[(number + turn) % len(MODES)]
            loader = Loader(open_store(data.store, verify=mode), POLICIES[order], prefetch=0)
            for epoch in EPOCHS:
                cost = play(loader)
                if number:  # in the first round memory is new and modules are imported
                    times[mode, epoch].append(cost)
            loader.shutdown()
    return times


def play(loader: Loader) -> Cost:
    """Play an epoch; give what a batch took."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in loader:
        pass
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Cost(wall / len(loader) * 1e6, cpu / len(loader) * 1e6)


def compute_overhead(times: Times, mode: str, epoch: str, which: int) -> float:
    """Return what a mode adds to the same epoch with checks off: 0.1 is ten per cent."""
    mine, others = (
        statistics.median(cost[which] for cost in times[name, epoch]) for name in (mode, "off")
    )
    return mine / others - 1


def report(table: Table, data: Data, order: str, times: Times) -> None:
    """Add a row for each mode."""
    for mode in MODES:
        cells = [f"{data.name} {order}", mode]
        for epoch in EPOCHS:
            walls = [cost.wall for cost in times[mode, epoch]]
            cells += [
                spread(walls),
                *(f"{compute_overhead(times, mode, epoch, n):+.0%}" for n in (0, 1)),
            ]
        table.add_row(*cells)
    table.add_section()


def verdicts(data: Data, order: str, times: Times) -> list[str]:
    """Say whether the floors are met, by wall and by CPU time."""
    texts = []
    for epoch, floor in FLOORS.items():
        found = [compute_overhead(times, "first_read", epoch, which) for which in (0, 1)]
        words = ", ".join(
            f"{part:+.1%} of {name} time {'(met)' if part <= floor else '(MISSED)'}"
            for part, name in zip(found, ("wall", "CPU"), strict=True)
        )
        texts.append(f"{data.name} {order}, {epoch}: first_read may add {floor:.0%}, adds {words}")
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of S, a fifth of M")
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (9)")
    options = parser.parse_args()
    console = Console(width=120, soft_wrap=True)
    if get_kernel_name() != "c":
        raise ConfigError("benchmark: no C kernel here; build it with `make env` and a C compiler")
    torch.set_num_threads(1)
    table = Table(title="batches of 64, no workers, no thread; wall us/batch, and what is added")
    columns = ("data", "verify", *(name for epoch in EPOCHS for name in (epoch, "wall", "CPU")))
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
            for order in POLICIES:
                console.print(f"{data.name} {order} …")
                times = measure(data, order, options.rounds)
                report(table, data, order, times)
                found += verdicts(data, order, times)
    console.print(table)
    for line in found:
        console.print(line)
    console.print(machine())


if __name__ == "__main__":
    main()
