"""Random blocks of tokens with HF datasets: a program for the environment that has the library.

    python benchmarks/blocks.py VALUES ROUNDS

Makes a memory-mapped dataset of blocks of 512 int64 tokens beside the file VALUES, draws batches of
64 of them as tensors, and prints a line of JSON: microseconds of wall and CPU time per batch, by
round.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, disable_progress_bars, load_from_disk
from samples import CHUNK, LANES
from torch.utils.data import DataLoader

_BATCHES = 100  # of a round


def main() -> None:
    path, rounds = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    disable_progress_bars()
    folder = path.with_suffix(".blocks")
    values = np.fromfile(path, dtype=np.int64)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values), CHUNK)
    Dataset(pa.table({"x": column})).save_to_disk(folder)
    dataset = load_from_disk(folder).with_format("torch")
    batches = iter(DataLoader(dataset, batch_size=LANES, shuffle=True))
    costs = []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(_BATCHES):
            batch = next(batches, None)
            if batch is None:
                batches = iter(DataLoader(dataset, batch_size=LANES, shuffle=True))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        costs.append((wall / _BATCHES * 1e6, cpu / _BATCHES * 1e6))
    sys.stdout.write(json.dumps(costs) + "\n")


if __name__ == "__main__":
    main()
