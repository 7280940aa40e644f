"""What a view shows: numbers, masks and names are checked, and lengths follow them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import ConfigError, UnknownNameError
from seqdata.protocols import Field
from seqdata.storage.concat import concat_stores
from seqdata.storage.memory import MemoryStore
from seqdata.storage.selection import (
    MeasuredTransform,
    SelectedLengths,
    check_mask,
    check_number,
    check_numbers,
    check_planned,
    digest_selection,
    rename_fields,
    select_names,
)

FIELDS = {"x": Field("int8"), "y": Field("int8", (), "frames"), "label": Field("int8", (), None)}


@given(st.lists(st.integers(-3, 12), max_size=6), st.sampled_from(["i1", "u8", "i8"]))
def test_numbers_are_those_of_sequences(numbers, dtype):
    given = np.array(numbers, dtype="i8").astype(dtype)
    bad = [number for number in given.tolist() if not 0 <= number < 10]
    if bad:
        with pytest.raises(ConfigError, match=r"take: `numbers` must be in \[0, 10\), but hold"):
            check_numbers(given, 10)
    else:
        assert check_numbers(given, 10).tolist() == numbers
    if dtype == "i8" and bad:
        with pytest.raises(ConfigError, match=rf"in \[0, 10\), but is {bad[0]}. Plan over this"):
            check_planned(given, 10)
    elif dtype == "i8":
        assert check_planned(given, 10) is given


@pytest.mark.parametrize("numbers", [3, [[1]], [1.5], [True], ["1"], None])
def test_numbers_are_integers_in_one_dimension(numbers):
    with pytest.raises(ConfigError, match="must be integers in one dimension, but are"):
        check_numbers(numbers, 10)


def test_lists_of_different_lengths_are_neither_numbers_nor_a_mask():
    with pytest.raises(ConfigError, match="integers in one dimension, but are lists of different"):
        check_numbers([[0], [0, 1]], 10)
    with pytest.raises(
        ConfigError, match=r"bool of shape \(2,\), but are lists of different lengths"
    ):
        check_mask([[True], [True, False]], 2)


def test_one_number_may_count_from_the_end():
    assert [check_number(number, 4) for number in (0, 3, -1, np.int8(-4))] == [0, 3, 3, 0]
    for number in (4, -5):
        with pytest.raises(IndexError, match=rf"must be in \[-4, 4\), but is {number}"):
            check_number(number, 4)
    for other in (True, 1.0, "a", [0], slice(1)):
        with pytest.raises(ConfigError, match="a sequence must be given by its index or id"):
            check_number(other, 4)


@pytest.mark.parametrize(
    ("mask", "remedy"),
    [
        ([True], "Pass one bool per sequence"),
        ([1, 0], "For numbers use `take`"),
        ([[True, False]], "Pass one bool per sequence"),
        (True, "Pass one bool per sequence"),
    ],
)
def test_a_mask_has_a_bool_for_each_sequence(mask, remedy):
    assert check_mask([True, False], 2).tolist() == [True, False]
    text = rf"`mask` must be bool of shape \(2,\), but is .*\. {remedy}"
    with pytest.raises(ConfigError, match=text):
        check_mask(mask, 2)


def test_fields_are_selected_by_their_names():
    assert list(select_names(FIELDS, ("y", "x"))) == ["y", "x"]
    with pytest.raises(ConfigError, match="at least one field must be named"):
        select_names(FIELDS, ())
    with pytest.raises(ConfigError, match="a field must be named by a string, but is 3"):
        select_names(FIELDS, (3,))
    with pytest.raises(UnknownNameError, match="select: no field 'z'"):
        select_names(FIELDS, ("z",))


def test_fields_are_renamed_all_at_once():
    assert rename_fields(FIELDS, {"x": "y", "y": "x"}) == {"y": "x", "x": "y", "label": "label"}
    for names, text in [
        (["x"], "names must be {'old': 'new'}"),
        ({"z": "a"}, "rename: no field 'z'"),
        ({"x": ""}, "the new name of 'x' must be a non-empty string, but is ''"),
        ({"x": 3}, "the new name of 'x' must be a non-empty string, but is 3"),
        ({"x": "y"}, "must have a name of its own, but two would be 'y'. Choose another"),
    ]:
        with pytest.raises((ConfigError, UnknownNameError), match=text):
            rename_fields(FIELDS, names)


def test_lengths_are_gathered_for_the_axes_that_are_shown():
    base = {"time": np.array([1, 2, 3]), "frames": np.array([7, 8, 9])}
    fields = {"x": FIELDS["x"]}
    chosen = SelectedLengths(base, fields, np.array([2, 0]), None)
    assert (list(chosen), len(chosen)) == (["time"], 1)
    assert chosen["time"].tolist() == [3, 1]
    assert chosen["time"] is chosen["time"]  # gathered once
    every = SelectedLengths(base, {"label": FIELDS["label"]}, None, None)
    assert list(every) == ["time", "frames"]  # no field shows one
    assert every["frames"] is base["frames"]
    transform = MeasuredTransform(None, "time", np.array([5, 6]), None)
    assert SelectedLengths(base, fields, np.array([2, 0]), transform)["time"].tolist() == [5, 6]


def test_each_part_of_a_selection_is_in_its_digest():
    numbers, names = np.array([1, 2]), {"x": "x"}
    transform = MeasuredTransform(None, "time", np.array([5, 6]), None)
    digests = {
        digest_selection(*given)
        for given in [
            ("f", None, None, None), ("g", None, None, None), ("f", numbers, None, None),
            ("f", numbers[::-1], None, None), ("f", numbers, names, None),
            ("f", numbers, {"y": "x"}, None), ("f", numbers, names, transform),
        ]
    }  # fmt: skip
    assert len(digests) == 7
    assert digest_selection("f", numbers, names, None) == digest_selection(
        "f", numbers.astype("i1"), dict(names), None
    )


@pytest.mark.parametrize("numbers", [3, 2.5, [2.0], "a", ["a"], None, [[1]], 10**30])
@pytest.mark.parametrize(
    "store",
    [
        MemoryStore.from_sequences([{"x": [1]}, {"x": [2]}]),
        MemoryStore.from_sequences([{"x": [1], "id": "a"}, {"x": [2], "id": "b"}]),
        concat_stores(
            [MemoryStore.from_sequences([{"x": [1]}]), MemoryStore.from_sequences([{"x": [2]}])]
        ),
        MemoryStore.from_sequences([{"x": [1]}, {"x": [2]}]).select("x"),
    ],
    ids=["numbered", "named", "several", "view"],
)
def test_ids_are_asked_for_by_a_list_of_numbers(store, numbers):
    with pytest.raises(ConfigError, match=r"keys: `numbers` must be integers in one dimension"):
        store.keys(numbers)
    assert store.keys([]) == []
