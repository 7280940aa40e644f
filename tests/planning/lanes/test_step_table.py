"""Steps of lanes as tables."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqdata.planning.lanes.step_table import count_live_before


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.lists(st.integers(0, 12)))
def test_rows_that_are_not_idle_are_counted(loads, steps):
    told = count_live_before(np.array(loads), np.array(steps, dtype=np.int64))
    assert told.tolist() == [sum(min(load, step) for load in loads) for step in steps]
