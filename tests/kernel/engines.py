"""The two kernels, and the tables of numbers that they take."""

import numpy as np
import pytest

from seqdata.kernel import numpy_kernel

__all__ = ["get_compiled", "int64", "numpy_kernel", "spans"]


def get_compiled():
    """Return the compiled kernel; a test is skipped if it is not built."""
    return pytest.importorskip("seqdata.kernel._fill")


def int64(*values):
    """Return int64 (n,)."""
    return np.array(values, dtype=np.int64)


def spans(*rows):
    """Return a table of spans, int64 (n, 3)."""
    return np.array(rows, dtype=np.int64).reshape(-1, 3)
