"""A long sequence played as a stream, and what memory that took; run by test_long_sequence.py.

    python sparse_run.py FILE LANES CHUNK

Prints JSON: private bytes after `import torch` and at most later, the timesteps of all batches, the
timesteps and sums of the bytes that are not zero, and the widest batch.
"""

import json
import sys
from pathlib import Path

import torch


def private():
    """Return the bytes that this process alone holds, and that no file can give back."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def main():
    location, lanes, chunk = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    before = private()
    from seqdata import TBPTT, Loader

    most, steps, marks = 0, 0, []
    loader = Loader(location, TBPTT(lanes, chunk, continuous=True))
    for batch in loader:
        values = batch["x"]
        steps += int(batch.lengths.sum())
        if bool(values.any()):
            for row, place in values.nonzero().tolist():
                marks.append([int(batch.start[row]) + place, int(values[row, place])])
        if batch.number % 64 == 0 or batch.number == len(loader) - 1:
            most = max(most, private())
    print(json.dumps({"before": before, "most": most, "steps": steps, "marks": sorted(marks)}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
