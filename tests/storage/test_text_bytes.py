"""Texts and decimal numbers as bytes behind each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.storage.text_bytes import concat_texts, format_decimals


@given(st.lists(st.integers(0, (1 << 63) - 1)))
def test_decimals_are_those_of_str(wanted):
    values, offsets = format_decimals(np.array(wanted, dtype=np.int64))
    expected = concat_texts(str(one) for one in wanted)
    assert values.tobytes() == expected[0].tobytes()
    assert offsets.tolist() == expected[1].tolist()


@pytest.mark.parametrize("edge", [10**power + more for power in range(1, 19) for more in (-1, 0)])
def test_decimals_change_their_width_at_powers_of_ten(edge):
    values, offsets = format_decimals(np.array([edge, 0, edge]))
    assert values.tobytes() == b"%d0%d" % (edge, edge)
    assert len(offsets) == 4
