"""One pass over the columns that group rows: codes of values, in runs of any length."""

import numpy as np
import pyarrow as pa
import pytest
from seqdata_frames.scan import Codes


@pytest.mark.parametrize("length", [1, 3, 8, 100])
def test_codes_are_numbers_in_order_of_appearance_for_runs_of_any_length(length):
    names = np.repeat(["b", "a", "b", "c", "a"], length)
    codes = Codes()
    found = codes.encode(pa.array(names))
    assert found.dtype == np.int32
    assert found.tolist() == np.repeat([0, 1, 0, 2, 1], length).tolist()
    assert codes.encode(pa.array(["d", "c"] * length)).tolist() == [3, 2] * length
    assert codes.encode(pa.array([], pa.string())).tolist() == []
    assert codes.values == ["b", "a", "c", "d"]


@pytest.mark.parametrize("length", [1, 100])
def test_a_value_that_a_dictionary_has_twice_has_one_code(length):
    indices = pa.array(np.repeat([2, 0, 1], length).astype(np.int32))
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["x", "y", "x"]))
    assert Codes().encode(column).tolist() == np.repeat([0, 0, 1], length).tolist()
