"""Epochs over worker processes, and after each what every process holds; run by test_memory.py.

    python memory_run.py STORE METHOD TRANSFORM EPOCHS

Prints JSON: after each epoch, one [private bytes, open files] per worker and then of this process.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

from seqdata.loading.transforms.declare import Ragged, columnar

KEPT = []  # what the leaking transform never gives back


def each(sequence, rng):
    noise = rng.integers(0, 3, len(sequence["x"]), dtype=np.int32)
    return {"x": sequence["x"] + noise, "y": sequence["y"]}


@columnar
def whole(columns, seeds):
    x = columns["x"]
    return {"x": Ragged(x.values * 2, x.lengths), "y": columns["y"]}


def leaking(sequence, rng):
    KEPT.append(np.ones(512))
    return each(sequence, rng)


TRANSFORMS = {"each": each, "whole": whole, "leaking": leaking}


def private(pid):
    """Return the bytes that only one process holds."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def held(pid):
    return [private(pid), len(os.listdir(f"/proc/{pid}/fd"))]


def main():
    from seqdata import Bucketed, Loader  # with torch, which workers do without

    store, method, transform, epochs = sys.argv[1:]
    loader = Loader(
        store, Bucketed(64), transform=TRANSFORMS[transform], num_workers=2, start_method=method
    )
    found = []
    for _ in range(int(epochs)):
        batches = sum(1 for _ in loader)
        if batches != len(loader):
            raise RuntimeError(f"{batches} batches of {len(loader)}")
        found.append([held(pid) for pid in [*loader.worker_pids, os.getpid()]])
    loader.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
