"""Time to the first batch in a fresh process, counted from after ``import torch``.

    python benchmarks/first_batch.py [--quick] [--rounds N]

Opening, planning or shuffling 10^6 sequences, and one padded batch of 64; imports of seqdata are in
the figure, that of torch, which every training script pays, is not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Data, machine, make_s, spread
from rich.console import Console
from rich.table import Table

OURS = """
import time, torch
began = time.perf_counter()
from seqdata.loader import Loader
from seqdata.policies.{module} import {policy}
next(iter(Loader({store!r}, {policy}(64))))
print(time.perf_counter() - began)
"""
PEER = """
import time, torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
began = time.perf_counter()
import numpy as np
values = np.memmap({values!r}, dtype=np.int32, mode="c")
offsets = np.memmap({offsets!r}, dtype=np.int64, mode="r")

class Sequences(Dataset):
    def __len__(self):
        return len(offsets) - 1

    def __getitem__(self, number):
        return torch.from_numpy(values[offsets[number] : offsets[number + 1]])

def collate(rows):
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])

next(iter(DataLoader(Sequences(), 64, shuffle=True, collate_fn=collate)))
print(time.perf_counter() - began)
"""


def programs(data: Data) -> dict[str, str]:
    """The programs that are timed, by name."""
    made = {
        f"seqdata, {policy}(64)": OURS.format(
            module=policy.lower(), policy=policy, store=data.store
        )
        for policy in ("Fixed", "Bucketed")
    }
    return made | {"memmap DataLoader": PEER.format(values=data.values, offsets=data.offsets)}


def once(program: str) -> float:
    """Run a program in a fresh process; give the milliseconds that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    return float(done.stdout) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (7)")
    options = parser.parse_args()
    console = Console()
    count = 100_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        console.print(f"writing {count} sequences …")
        named = programs(make_s(Path(folder), count))
        times: dict[str, list[float]] = {name: [] for name in named}
        for _ in range(options.rounds):
            for name, program in named.items():
                times[name].append(once(program))
    table = Table("loader", "ms to the first batch", title=f"{count} sequences, fresh processes")
    for name, taken in times.items():
        table.add_row(name, spread(taken))
    console.print(table)
    console.print(machine())


if __name__ == "__main__":
    main()
