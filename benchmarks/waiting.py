"""The share of a small LSTM's training step that is spent waiting for its batch.

    python benchmarks/waiting.py [--quick] [--rounds N] [--steps N]

One CPU thread trains; meanwhile another one, or a worker process, makes the next batches, with no
transform and with one in Python per sequence. The loaders take turns; the first tenth of a turn,
in which they fill up, does not count.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import Data, Maker, by_hand, machine, make_m, make_s, ours, spread
from rich.console import Console
from rich.table import Table
from torch import nn
from transforms import CHANGES, SETTINGS

THREAD = "seqdata, prefetch thread"
FLOORS = {"S": 0.01, "M": 0.03}  # of a step, with the thread and without a transform
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


def makers(data: Data, setting: str) -> dict[str, Maker]:
    """Return a maker of batches for each loader."""
    transform = SETTINGS[setting].get(data.name)
    mine = partial(ours, data, "bucketed", transform=transform)
    peer = partial(by_hand, data, "bucketed", change=CHANGES[data.name] if transform else None)
    return {
        THREAD: partial(mine, prefetch=2),
        "seqdata, in line": partial(mine, prefetch=0),
        "seqdata, 1 worker": partial(mine, num_workers=1),
        "memmap DataLoader": peer,
        "memmap DataLoader, 1 worker": partial(peer, workers=1),
    }


class Training:
    """A model that is trained on the batches of one loader."""

    def __init__(self, data: Data, batches: Iterator[Any]) -> None:
        torch.manual_seed(0)
        self._batches = batches
        self._model = Model(data)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)
        self.steps: list[float] = []  # mean microseconds of a step, by turn
        self.waits: list[float] = []  # of which it waited

    def turn(self, steps: int) -> None:
        """Train so many steps."""
        taken, waited = [], []
        for _ in range(steps):
            began = time.perf_counter()
            batch = next(self._batches)
            waited.append((time.perf_counter() - began) * 1e6)
            self._model(batch[0] if isinstance(batch, list | tuple) else batch["x"]).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            taken.append((time.perf_counter() - began) * 1e6)
        self.steps.append(statistics.mean(taken[steps // 10 :]))
        self.waits.append(statistics.mean(waited[steps // 10 :]))

    @property
    def share(self) -> float:
        """The part of a step that is waited, of the median turn."""
        return statistics.median(
            wait / step for wait, step in zip(self.waits, self.steps, strict=True)
        )


def measure(data: Data, setting: str, rounds: int, steps: int) -> dict[str, Training]:
    """Train ``steps`` with each loader in turn, ``rounds`` times."""
    with ExitStack() as stack:
        trainings = {}
        for name, make in makers(data, setting).items():
            batches: Generator[Any, None, None] = stack.enter_context(closing(make()))
            trainings[name] = Training(data, batches)
        for _ in range(rounds):
            for training in trainings.values():
                training.turn(steps)
    return trainings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of S, half of M")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--steps", type=int, default=150, help="steps of each turn (150)")
    options = parser.parse_args()
    console = Console(width=120, soft_wrap=True)
    torch.set_num_threads(1)
    table = Table(title=f"LSTM(32), batches of 64, at most {MOST} timesteps of each trained on")
    for number, column in enumerate(("data", "setting", "loader", "us/step", "us waited", "share")):
        table.add_column(column, justify="left" if number < 3 else "right")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        console.print(machine())
        console.print("writing S and M …")
        sets = [  # of less M, most of what is waited would be for the first batch of an epoch
            make_s(Path(folder), 100_000 if options.quick else 1_000_000),
            make_m(Path(folder), 5 * 10**8 if options.quick else 10**9),
        ]
        for data in sets:
            for setting in ("no transform", "per sequence"):
                console.print(f"{data.name}, {setting} …")
                trainings = measure(data, setting, options.rounds, options.steps)
                for name, training in trainings.items():
                    cells = (
                        spread(training.steps),
                        spread(training.waits),
                        f"{training.share:.1%}",
                    )
                    table.add_row(data.name, setting, name, *cells)
                table.add_section()
                if setting == "no transform":
                    found.append(verdict(data, trainings[THREAD].share))
    console.print(table)
    for line in found:
        console.print(line)
    console.print(machine())


def verdict(data: Data, share: float) -> str:
    """Say whether the thread keeps the wait below its floor."""
    floor = FLOORS[data.name]
    met = "met" if share <= floor else "MISSED"
    return f"{data.name}, prefetch thread: floor {floor:.0%} of a step, found {share:.2%} ({met})"


if __name__ == "__main__":
    main()
