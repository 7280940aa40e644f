"""Lengths are uint32 until one of them needs more."""

import numpy as np

from seqdata.storage.data_location import narrow_lengths


def test_lengths_in_memory_take_the_narrower_type():
    assert narrow_lengths(np.array([(1 << 32) - 1])).dtype == np.uint32
    assert narrow_lengths(np.array([1 << 32])).dtype == np.uint64
