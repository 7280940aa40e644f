"""The share of a small LSTM's training step that is spent waiting for its batch.

    python benchmarks/waiting.py [--quick] [--steps N]

One CPU thread trains; with ``prefetch`` another one reads ahead meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from common import Data, by_hand, machine, make_m, make_s, ours
from rich.console import Console
from rich.table import Table
from torch import nn

LOADERS: dict[str, Callable[[Data], Iterator[Any]]] = {
    "seqdata, prefetch thread": lambda data: ours(data, "bucketed", prefetch=2),
    "seqdata, in line": lambda data: ours(data, "bucketed", prefetch=0),
    "memmap DataLoader": lambda data: by_hand(data, "bucketed"),
}
MOST = 64  # timesteps of a row that are trained on: a step of a few milliseconds


class Model(nn.Module):
    """An LSTM small enough that loading could matter."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        width = data.width or 16
        self.embedding = None if data.width else nn.Embedding(50_000, width, sparse=True)
        self.lstm = nn.LSTM(width, 32, batch_first=True)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = values[:, :MOST]
        out, _ = self.lstm(values if self.embedding is None else self.embedding(values))
        return out.square().mean()


def train(data: Data, batches: Iterator[Any], steps: int) -> tuple[list[float], list[float]]:
    """Train; give the microseconds of each step, and how many of them it waited."""
    torch.manual_seed(0)
    model = Model(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    taken, waited = [], []
    for _ in range(steps):
        began = time.perf_counter()
        batch = next(batches)
        waited.append((time.perf_counter() - began) * 1e6)
        model(batch[0] if isinstance(batch, list | tuple) else batch["x"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append((time.perf_counter() - began) * 1e6)
    return taken[steps // 10 :], waited[steps // 10 :]  # the first ones pay for opening


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument(
        "--steps", type=int, default=500, help="training steps of each loader (500)"
    )
    options = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    table = Table(title=f"LSTM(32), batches of 64, at most {MOST} timesteps of each trained on")
    for column in ("data", "loader", "us/step", "us waited (mean)", "share"):
        table.add_column(column, justify="left" if column in ("data", "loader") else "right")
    with tempfile.TemporaryDirectory() as folder:
        console.print("writing S and M …")
        part = 10 if options.quick else 1
        sets = [make_s(Path(folder), 1_000_000 // part), make_m(Path(folder), 10**9 // part)]
        for data in sets:
            for name, make in LOADERS.items():
                batches = make(data)
                taken, waited = train(data, batches, options.steps)
                share = sum(waited) / sum(taken)
                table.add_row(
                    data.name, name, f"{statistics.mean(taken):.0f}",
                    f"{statistics.mean(waited):.0f}", f"{share:.1%}",
                )  # fmt: skip
                del batches
            table.add_section()
    console.print(table)
    console.print(machine())


if __name__ == "__main__":
    main()
