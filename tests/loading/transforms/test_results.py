"""Results of a transform: cut as they lie, joined by field, and refused where they differ."""

import numpy as np
import pytest
import torch

from seqdata.errors import DecodeError
from seqdata.loading.transforms.results import (
    FlatValues,
    SeparateArrays,
    check_result,
    concat_results,
)

LENGTHS = [3, 1, 4]
PARTS = [np.arange(n * 2, dtype="f4").reshape(n, 2) + 10 * n for n in LENGTHS]
BEGINS, ENDS = np.array([1, 0, 2]), np.array([3, 0, 4])


def find_axis(name, ndim):
    return "time" if name != "y" and ndim else None


def make_error(piece, what):
    return DecodeError(f"piece {piece} {what}")


@pytest.mark.parametrize("form", ["separate", "flat"])
def test_cuts_are_the_timesteps_that_are_asked_for(form):
    flat = FlatValues(np.concatenate(PARTS), np.array(LENGTHS))
    results = SeparateArrays(PARTS) if form == "separate" else flat
    assert results.lengths.tolist() == LENGTHS
    column = results.cut(BEGINS, ENDS)
    assert column.shape == (2,)
    assert column.lengths.tolist() == [2, 0, 2]
    out = np.empty((4, 2), "f4")
    column.fill(out, np.array([0, 2, 2, 4]), None)
    assert out.tolist() == np.concatenate([PARTS[0][1:3], PARTS[2][2:4]]).tolist()


def test_results_of_all_sequences_are_joined_by_field():
    results = [{"x": part, "y": np.array(len(part)), "note": f"n{len(part)}"} for part in PARTS]
    joined = concat_results(results, find_axis, make_error, str)
    assert joined.axis_of == {"x": "time", "y": None, "note": None}
    assert joined.along("time") == ["x"]
    assert joined.columns["x"].lengths.tolist() == LENGTHS
    assert joined.columns["y"].lengths.tolist() == [1, 1, 1]
    assert joined.columns["note"] == ["n3", "n1", "n4"]


@pytest.mark.parametrize(
    "other", [{"x": np.ones((2, 3), "f4")}, {"x": np.ones((2, 2))}, {"z": PARTS[0]}, {"x": "text"}]
)
def test_a_result_of_another_form_than_the_first_is_named(other):
    with pytest.raises(DecodeError, match=r"piece 1 returned .*, unlike \{x: .*\} of sequence s0"):
        concat_results([{"x": PARTS[0]}, other], find_axis, make_error, "s{}".format)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "but returned None. It cannot drop"),
        ([1, 2], "a dict of arrays, but returned list"),
        ({"x": object()}, r"field 'x' as an array.* \(object is not a dtype of numbers\)"),
        ({"x": [[1], [1, 2]]}, r"must return field 'x' as an array.* \(setting an array"),
        ({"x": np.ones(2, np.longdouble)}, "torch has no float128: return float64"),
        ({"x": torch.ones(2, dtype=torch.bfloat16)}, "as an array, .*BFloat16"),
        ({"x": torch.ones(2, requires_grad=True)}, "as an array, .*requires grad"),
    ],
)
def test_what_is_not_a_dict_of_arrays_is_refused(result, said):
    with pytest.raises(DecodeError, match=f"piece 4 .*{said}"):
        check_result(result, 4, find_axis, make_error)


def test_numbers_of_another_byte_order_become_those_of_this_machine():
    stored = np.array([1.5, -2.0])
    for dtype in (">f4", ">i8", "<f8", ">c16"):
        found = check_result({"x": stored.astype(dtype)}, 0, find_axis, make_error)["x"]
        assert found.dtype.isnative
        assert found.tolist() == stored.astype(dtype).tolist()
        torch.from_numpy(found)


def test_texts_stay_and_numbers_become_arrays():
    found = check_result({"x": [1, 2], "note": "a", "raw": b"b"}, 0, find_axis, make_error)
    assert isinstance(found["x"], np.ndarray)
    assert (found["note"], found["raw"]) == ("a", b"b")


def test_a_value_is_written_out_for_an_error_only():
    """Writing an array out takes longer than all else that is done with it."""

    class Loud(list):
        def __repr__(self):
            raise RuntimeError("written out")

    found = check_result({"x": Loud([1, 2])}, 0, find_axis, make_error)
    assert found["x"].tolist() == [1, 2]
