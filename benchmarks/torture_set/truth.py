"""The sequences of the torture set, known by heart: NumPy alone, for any process."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

COUNT = 1009
MANY = 12 * COUNT  # so that a worker has work left when it is killed
BATCH = 16
SHARDS = 8
SHARD_BYTES = 1 << 16  # about SHARDS of them
_SHORTEST, _LONGEST = 20, 200


def rows(count: int = COUNT) -> Iterator[dict[str, Any]]:
    """Yield sequences: an id, int32 values (20..200,) and a label; the same each time."""
    drawn = np.random.default_rng(7)
    for number in range(count):
        length = int(drawn.integers(_SHORTEST, _LONGEST + 1))
        values = drawn.integers(0, 1 << 30, length, dtype=np.int32)
        yield {"id": f"utt-{number:05d}", "x": values, "y": number % 10}


def digest(values: Any, label: int) -> str:
    """Return a checksum of a sequence's values, their type and number, and its label."""
    array = np.ascontiguousarray(values)
    head = f"{array.dtype.name} {array.shape} {int(label)}".encode()
    return f"{zlib.crc32(array.tobytes(), zlib.crc32(head)):08x}"


def truth(count: int = COUNT) -> Mapping[str, str]:
    """Return the checksum of every id."""
    return {row["id"]: digest(row["x"], row["y"]) for row in rows(count)}
