"""Sequences that fill a few tar shards, and the files that are written of them."""

import numpy as np

SHARD = 20_000
"""Bytes from which on a shard is closed."""


def rows(count=40, wrong=None):
    """Yield sequences; that of number ``wrong`` has another dtype than the others."""
    for number in range(count):
        x = np.arange(number % 9 * 50, dtype=np.int32)
        yield {"id": f"u{number}", "x": x if number != wrong else x.astype(np.int64), "y": number}


def files(folder):
    """Return the content of each file below a folder, by its path there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
