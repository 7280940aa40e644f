"""Detection of truncated mapped files: touching a truncated page kills the process (SIGBUS)."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray


def are_readable(*arrays: NDArray[np.generic]) -> bool:
    """Return whether arrays can be read to their ends; False if that cannot be known.

    A system call on memory of a truncated file fails; it does not kill the process.

    Args:
        arrays: Over mapped files or owned memory, each without gaps.
    """
    try:
        read_end, write_end = os.pipe()
    except OSError:  # no descriptors are left
        return False
    try:
        for array in arrays:
            if array.nbytes:
                os.write(
                    write_end, memoryview(array.data).cast("B")[-1:]
                )  # the end is cut off first
    except OSError:
        return False
    finally:
        os.close(read_end)
        os.close(write_end)
    return True
