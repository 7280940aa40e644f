"""Checksums without the compiled kernel: zlib's, and CRC-32C where the wheel ``crc32c`` is there.

Place in the flow: the twin hands these on as its own. Reads: buffers. Makes: numbers.
"""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable
from typing import Any, cast

import numpy as np

Sum = Callable[[Any], int]


def algorithms() -> tuple[str, ...]:
    """Give the names of the checksums that can be computed."""
    return ("crc32",) if _wheel() is None else ("crc32c", "crc32")


def sum_of(name: str) -> Sum:
    """Give the function of an algorithm, from a buffer to its checksum.

    Raises:
        ValueError: If it cannot be computed.
    """
    found = zlib.crc32 if name == "crc32" else _wheel() if name == "crc32c" else None
    if found is None:
        raise ValueError("checksums: takes (data, bounds, out, algorithm)")
    return found


def checksums(data: Any, bounds: Any, out: Any, algorithm: str) -> None:
    """Compute the checksum of every piece; see ``choose.Kernel.checksums``."""
    compute = sum_of(algorithm)
    content = memoryview(data).cast("B") if memoryview(data).nbytes else b""
    edges = np.frombuffer(bounds, dtype=np.int64).tolist()
    made = np.frombuffer(out, dtype=np.uint32) if memoryview(out).nbytes else np.empty(0, np.uint32)
    rising = len(edges) == len(made) + 1 and edges == sorted(edges)
    if not rising or not 0 <= edges[0] <= edges[-1] <= len(content):
        raise ValueError(
            "checksums: `bounds` must rise inside `data`, one more than `out` has uint32"
        )
    for number in range(len(made)):
        made[number] = compute(content[edges[number] : edges[number + 1]])


@functools.cache
def _wheel() -> Sum | None:
    try:
        return cast(Sum, importlib.import_module("crc32c").crc32c)
    except ImportError:
        return None
