"""Windows of a table of many series in Parquet, next to pandas.

Used by ``formats.py``. The table has the size of M5: 30,490 series of 1,913 days. Peers hold all in
memory, so they get the first series only, and ours the same.
"""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import statistics
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import Cost, running, spread
from rich.console import Console
from rich.table import Table

from seqdata.api import open_store
from seqdata.policies.windows import Windows

SERIES, DAYS, ROW_GROUP = 30_490, 1_913, 1 << 20
CONTEXT, HORIZON, BATCH = 96, 24, 256
PEERS_SERIES = 300
FIRST_MOST, LATER_MOST, MEMORY_MOST = 2.0, 0.2, 400.0  # s, s, MB
BY = {"group": "series_id", "order": "timestamp"}


def write(path: Path, series: int, *, by_day: bool = False) -> None:
    """Write series of floats, in the order of series or of days, a row group after the other."""
    import pyarrow as pa
    from pyarrow import parquet

    days = np.datetime64("2011-01-29", "us") + np.arange(DAYS) * np.timedelta64(1, "D")
    names = pa.array([f"FOODS_{n // 10:05d}_CA_{n % 10}" for n in range(series)])
    shops = pa.array([f"CA_{n % 10}" for n in range(series)])
    inner, outer = (series, DAYS) if by_day else (DAYS, series)
    writer = None
    for first in range(0, outer, max(1, ROW_GROUP // inner)):
        count = min(max(1, ROW_GROUP // inner), outer - first)
        slow, fast = np.repeat(np.arange(first, first + count), inner), np.arange(inner)
        fast = np.tile(fast, count)
        number, day = (fast, slow) if by_day else (slow, fast)
        table = pa.table(
            {
                "series_id": names.take(number),
                "timestamp": days[day],
                "sales": ((number * 7919 + day * 104729) % 97).astype(np.float32),
                "price": (1 + number % 50 + day // 100 * 0.25).astype(np.float32),
                "shop": shops.take(number),
            }
        )
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=ROW_GROUP)
    if writer is not None:
        writer.close()


def open_once(path: str, results: Any) -> None:
    """Open a table and draw the first batches, in a process that has imported what it needs."""
    import pyarrow.parquet  # noqa: F401, not counted
    from seqdata_frames import Frames

    from seqdata.loading.loader import Loader

    began = time.perf_counter()
    loader = Loader(open_store(path, backend=Frames(), **BY), _policy(), prefetch=0)
    opened = time.perf_counter() - began
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - began
    for _ in range(50):
        next(batches)
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
    results.put((opened, first, memory))


def _policy() -> Windows:
    return Windows(CONTEXT, horizon=HORIZON, stride=HORIZON, batch_size=BATCH)


def measure_openings(path: Path) -> list[tuple[str, tuple[float, float, float]]]:
    """Open a table in fresh processes: with nothing kept, and three times more."""
    shutil.rmtree(path.parent / "seqdata-index", ignore_errors=True)
    context, found = multiprocessing.get_context("spawn"), []
    for name in ("first", "then", "then", "then"):
        results = context.Queue()
        process = context.Process(target=open_once, args=(str(path), results))
        process.start()
        found.append((name, results.get(timeout=1800)))
        process.join(timeout=60)
    return found


def ours(path: str) -> Generator[Any, None, None]:
    """Batches of windows in random order."""
    from seqdata_frames import Frames

    from seqdata.loading.loader import Loader

    loader = Loader(open_store(path, backend=Frames(), **BY), _policy(), prefetch=0)
    while True:
        yield from loader


class WindowsOfPandas:
    """A Dataset of windows of a frame whose groups are looked up, as people write it."""

    def __init__(self, path: str) -> None:
        import pandas as pd

        frame = pd.read_parquet(path)
        self.groups = [rows for _, rows in frame.groupby("series_id", sort=False)]
        self.per_group = DAYS - CONTEXT - HORIZON + 1

    def __len__(self) -> int:
        return len(self.groups) * self.per_group

    def __getitem__(self, number: int) -> Any:
        import torch

        group, first = divmod(number, self.per_group)
        rows = self.groups[group].iloc[first : first + CONTEXT + HORIZON]
        values = torch.from_numpy(rows[["sales", "price"]].to_numpy())
        return values[:CONTEXT], values[CONTEXT:], rows["shop"].iloc[0]


def by_pandas(path: str) -> Generator[Any, None, None]:
    """Batches of that Dataset."""
    from torch.utils.data import DataLoader

    dataset: Any = WindowsOfPandas(path)
    while True:
        yield from DataLoader(dataset, BATCH, shuffle=True)


def measure(root: Path, series: int, rounds: int, draws: int) -> dict[str, list[Cost]]:
    """Draw from each in turn, ``rounds`` times and once before."""
    few = root / "few" / "sales.parquet"
    few.parent.mkdir()
    write(few, min(series, PEERS_SERIES))
    makers = {
        "all series": partial(ours, str(root / "sales.parquet")),
        "few series": partial(ours, str(few)),
        "few, pandas": partial(by_pandas, str(few)),
    }
    times: dict[str, list[Cost]] = {name: [] for name in makers}
    with running(makers) as runners:
        for number in range(rounds + 1):
            for name, runner in runners.items():
                cost = runner.draw(draws if name.endswith("series") else max(1, draws // 16))
                if number:
                    times[name].append(cost)
    return times


def report(console: Console, root: Path, series: int, rounds: int, draws: int) -> None:
    """Measure, and print a row of each, the ratios and the openings."""
    path, by_day = root / "sales.parquet", root / "by-day" / "sales.parquet"
    by_day.parent.mkdir()
    write(path, series)
    write(by_day, series, by_day=True)
    console.print(f"{series:,} series of {DAYS:,} days, {series * DAYS:,} rows")
    for name, location in (("in order", path), ("by day", by_day)):
        for when, (opened, first, memory) in measure_openings(location):
            aim = FIRST_MOST if when == "first" else LATER_MOST
            is_met = first <= aim if name == "in order" or when != "first" else True
            met = "" if name == "by day" and when == "first" else f" (aim {aim}: {_say(is_met)})"
            console.print(
                f"{name}, {when}: open {opened:.2f} s, first batch after {first:.2f} s{met}, "
                f"{memory:.0f} MB after 50 batches ({_say(memory <= MEMORY_MOST)})"
            )
    times = measure(root, series, rounds, draws)
    table = Table("windows of", "us/batch", "CPU us/batch", "ours over it")
    wall = {name: statistics.median(cost.wall for cost in costs) for name, costs in times.items()}
    for name, costs in times.items():
        ratio = wall[name] / wall["few series"]
        said = f"{ratio:.0f}x" if name.startswith("few,") else ""
        walls, cpus = ([getattr(cost, kind) for cost in costs] for kind in ("wall", "cpu"))
        table.add_row(name, spread(walls, "{:.0f}"), spread(cpus, "{:.0f}"), said)
    console.print(table)


def _say(is_met: bool) -> str:
    return "met" if is_met else "MISSED"
