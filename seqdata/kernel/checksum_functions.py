"""Checksums without the compiled kernel: zlib's, and CRC-32C if ``crc32c`` is installed."""

from __future__ import annotations

import functools
import importlib
import zlib
from collections.abc import Callable
from typing import Any, cast

import numpy as np

ChecksumFn = Callable[[Any], int]


def algorithms() -> tuple[str, ...]:
    """Return the names of the checksums that can be computed."""
    return ("crc32",) if _load_crc32c() is None else ("crc32c", "crc32")


def get_checksum(name: str) -> ChecksumFn:
    """Return the function of an algorithm, from a buffer to its checksum.

    Raises:
        ValueError: If it cannot be computed.
    """
    function = zlib.crc32 if name == "crc32" else _load_crc32c() if name == "crc32c" else None
    if function is None:
        raise ValueError("checksums: takes (data, bounds, out, algorithm)")
    return function


def checksums(data: Any, bounds: Any, out: Any, algorithm: str) -> None:
    """Write the checksum of every piece; see ``choose.Kernel.checksums``."""
    compute = get_checksum(algorithm)
    content = memoryview(data).cast("B") if memoryview(data).nbytes else b""
    offsets = np.frombuffer(bounds, dtype=np.int64).tolist()
    values = (
        np.frombuffer(out, dtype=np.uint32) if memoryview(out).nbytes else np.empty(0, np.uint32)
    )
    is_rising = len(offsets) == len(values) + 1 and offsets == sorted(offsets)
    if not is_rising or not 0 <= offsets[0] <= offsets[-1] <= len(content):
        raise ValueError(
            "checksums: `bounds` must rise inside `data`, one more than `out` has uint32"
        )
    for number in range(len(values)):
        values[number] = compute(content[offsets[number] : offsets[number + 1]])


@functools.cache
def _load_crc32c() -> ChecksumFn | None:
    try:
        return cast(ChecksumFn, importlib.import_module("crc32c").crc32c)
    except ImportError:
        return None
