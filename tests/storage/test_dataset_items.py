"""Items of a Dataset: parts get names, the first one says what all are, and others must match."""

from collections import namedtuple

import numpy as np
import pytest
import torch

from seqdata.errors import ConfigError, DecodeError, UnknownNameError
from seqdata.protocols import Field
from seqdata.storage.dataset_items import (
    ItemForm,
    as_mapping,
    check_axes,
    check_value,
    infer_item_fields,
)

Pair = namedtuple("Pair", "wave text")
X = np.zeros((3, 2), np.float32)


def test_parts_of_an_item_have_names():
    assert as_mapping({"a": 1}, None) == {"a": 1}
    assert as_mapping(7, None) == {"x": 7}
    assert list(as_mapping((1, 2, 3, 4, 5), None)) == ["x", "y", "z", "field3", "field4"]
    assert as_mapping((1, 2), ["a", "b"]) == {"a": 1, "b": 2}
    assert as_mapping([1, 2], ["a"]) == {"a": [1, 2]}  # a list is one array
    with pytest.raises(ConfigError, match=r"one part for each of a, b, but has 3 parts\. Pass one"):
        as_mapping((1, 2, 3), ["a", "b"])


@pytest.mark.parametrize(
    ("item", "kind", "forms"),
    [
        ({"a": X, "b": "t"}, "dict", ["array", "text"]),
        ((X, 1, b"r"), "tuple", ["array", "number", "text"]),
        ((np.int8(1), [1], torch.zeros(1)), "tuple", ["scalar", "list", "tensor"]),
        (X, "value", ["array"]),
        (Pair(X, "t"), "tuple", ["array", "text"]),
    ],
)
def test_an_item_is_put_together_as_it_was(item, kind, forms):
    form = ItemForm.from_item(item, None)
    assert (form.item_type, list(form.values.values())) == (kind, forms)
    parts = as_mapping(item, None)
    again = form.make_item(parts)
    assert type(again) is type(item)
    if isinstance(item, tuple):
        assert all(mine is its for mine, its in zip(again, item, strict=True))


def test_fields_that_were_left_out_or_added_change_the_form():
    form = ItemForm.from_item(Pair(X, "t"), ["wave", "text"])
    assert form.make_item({"wave": 1}) == (1,)
    assert form.make_item({"wave": 1, "more": 2}) == {"wave": 1, "more": 2}


def test_the_first_item_says_what_the_fields_are():
    item = {"x": X, "v": np.zeros(2), "n": 3, "t": "text"}
    assert infer_item_fields(item, 3, None) == {
        "x": Field("float32", (2,), "time"), "v": Field("float64", (2,), None),
        "n": Field("int64", (), None), "t": Field("str", (), None),
    }  # fmt: skip
    fields = infer_item_fields({**item, "w": np.zeros(3)}, 3, {"w": None})
    assert fields["w"] == Field("float64", (3,), None)


@pytest.mark.parametrize(
    ("item", "axes", "error", "text"),
    [
        ({"x": X}, {"z": None}, UnknownNameError, "dataset: `axes`: no field 'z'"),
        ({"x": X}, "x", ConfigError, "`axes` must be a dict of field and axis, .* but is 'x'"),
        ({"x": object()}, None, DecodeError, "dataset: item 0, field 'x': "),
        ({"x": np.zeros((3, 0))}, None, DecodeError, r"at least one number .* shape \(3, 0\)"),
        ({"x": X[:2], "t": "a"}, None, ConfigError, r"first dimension 3, .* but has x \(2, 2\)"),
        ({"t": "a"}, None, ConfigError, "first dimension 3, its length .*has no array"),
    ],
)
def test_a_first_item_that_cannot_be_is_named(item, axes, error, text):
    with pytest.raises(error, match=text):
        infer_item_fields(item, 3, axes)


def test_axes_may_be_left_out():
    check_axes(None)
    check_axes({})
    with pytest.raises(ConfigError, match=r"but is \['x'\]. Pass a dict, or leave it out"):
        check_axes(["x"])


RAGGED, VECTOR, TEXT = Field("float32", (2,)), Field("float32", (2,), None), Field("str", (), None)


@pytest.mark.parametrize(
    ("value", "field", "text"),
    [
        (b"a", TEXT, "must be str, but is a bytes; item 0 determines the fields"),
        (X.astype(np.float64), RAGGED, "must have dtype float32, but has float64; item 0"),
        (X, VECTOR, r"must have shape \(2,\), but has \(3, 2\) \(for one value per timestep"),
        (X[:, :1], RAGGED, r"must have shape \(T, 2\), but has \(3, 1\)"),
        (np.float32(1), Field("float32"), r"must have shape \(T\), but has \(\)"),
        (
            X[:2],
            RAGGED,
            r"must have 3 timesteps, as `lengths` says, but has 2.* `axes={'x': None}`",
        ),
        (object(), RAGGED, "dataset: item 7, field 'x': "),
    ],
)
def test_an_item_unlike_the_first_is_named(value, field, text):
    with pytest.raises(DecodeError, match=text) as caught:
        check_value(7, "x", value, field, 3)
    assert caught.value.details == {"sequence": 7, "field": "x"}


def test_values_that_match_come_as_arrays():
    assert check_value(0, "x", torch.zeros(3, 2), RAGGED, 3).shape == (3, 2)
    assert check_value(0, "x", [0.5, 1.5], Field("float64", (2,), None), 3).tolist() == [0.5, 1.5]
    assert check_value(0, "x", "a", TEXT, 3) == "a"
