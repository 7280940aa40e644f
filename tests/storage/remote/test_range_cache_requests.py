"""Which bytes of a file are still to come."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqdata.storage.remote.range_cache import SparseFile, union_ranges

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6)


def bytes_of(ranges):
    return {
        byte for low, high in np.array(ranges).reshape(-1, 2).tolist() for byte in range(low, high)
    }


@given(st.lists(RANGES, max_size=4), RANGES, st.integers(0, 9))
def test_what_is_missing_is_what_never_came(came, wanted, gap):
    held = SparseFile(bytearray(60))
    there = set()
    for ranges in came:
        held.mark_present(np.array(ranges, dtype=np.int64).reshape(-1, 2))
        there |= bytes_of(ranges)
    pairs = np.array(wanted, dtype=np.int64).reshape(-1, 2)
    missing = held.find_missing([pairs])
    assert bytes_of(missing) == bytes_of(wanted) - there
    assert bytes_of(held.present) == there
    for ranges in (missing, held.present, union_ranges([pairs], gap)):
        assert (ranges[:, 0] < ranges[:, 1]).all()
        assert (ranges[1:, 0] > ranges[:-1, 1]).all()
    assert bytes_of(union_ranges([pairs], gap)) >= bytes_of(wanted)
