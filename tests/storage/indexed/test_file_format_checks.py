"""What a format says of a file is checked: each thing that cannot be is named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import CorruptShardError, PluginError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.file_format import (
    Extents,
    FileIndex,
    check_extents,
    check_file_index,
    check_has_axis,
    check_missing,
    clamp_begins,
    count_sequences,
    native_name,
    value_sizes,
)

PLACE = DataLocation(dataset="data", file="a.rec")


def make(**changes):
    given = {"begins": [0, 4], "ends": [4, 12], "dtype": "<i4", **changes}
    given |= {name: np.array(given[name]) for name in ("begins", "ends")}
    return Extents(**given)


def test_valid_extents_pass():
    check_extents(make(), 2, 12, "w", PLACE, "x")
    check_extents(make(begins=[-1, 4], ends=[-1, 12]), 2, 12, "w", PLACE, "x")
    check_extents(make(shape=(1,), lengths=np.array([1, 2])), 2, 12, "w", PLACE, "x")
    check_extents(make(dtype="str", axis=None), 2, 12, "w", PLACE, "x")
    check_extents(make(axis=None, values=np.zeros(2)), 2, 12, "w", PLACE, "x")
    check_extents(make(begins=np.zeros(2, np.uint64)), 2, 12, "w", PLACE, "x")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dtype": "<U4"}, "`dtype` must be one of"),
        ({"dtype": None}, "`dtype` must be one of"),
        ({"dtype": "f4,,i"}, "`dtype` must be one of"),
        ({"dtype": 7}, "`dtype` must be one of"),
        (
            {"begins": [[0, 4]]},
            r"`begins` and `ends` must be integers \(2,\), but is 'int64 \[1, 2",
        ),
        ({"ends": [4.0, 12.0]}, r"`begins` and `ends` must be integers"),
        ({"begins": [-2, 4]}, r"must begin at 0 or later, .*, but is '-2..4 of sequence 0"),
        ({"ends": [4, 3]}, r"end where it begins or later, but is '4..3 of sequence 1"),
        (
            {"dtype": "bytes", "axis": None, "shape": (2,)},
            r"strings must have `axis=None`, .*, but have `axis=None`, shape \[2\] and no decoder",
        ),
        ({"shape": (0,)}, "`shape` must have at least one number, and less than 2 GiB"),
        ({"shape": (-1, -1)}, "`shape` must have at least one number, and less than 2 GiB"),
        ({"shape": (1 << 40,)}, "`shape` must have at least one number, and less than 2 GiB"),
        ({"values": np.zeros(2)}, r"`values` must be \(2, \*shape\), of `axis=None`"),
        ({"axis": None, "values": np.zeros(3)}, r"`values` must be \(2, \*shape\)"),
        ({"axis": None, "values": np.zeros((2, 5))}, r"`values` must be \(2, \*shape\)"),
        (
            {"ends": [3, 12]},
            r"the values of sequence 0 must have a multiple of 4 bytes, but have 3",
        ),
        ({"axis": None}, r"the values of sequence 1 must have 4 bytes, but have 8"),
        (
            {"lengths": np.array([1, 1])},
            "must have 4 bytes for each timestep of `lengths`, here 4 bytes, but have 8",
        ),
        ({"lengths": ["a", "b"]}, r"`lengths` must be integers \(2,\) in .*, but is '<U1 \[2\]'"),
        ({"lengths": [None, 1]}, r"`lengths` must be integers \(2,\) in .*, but is 'object \[2\]'"),
        ({"lengths": 3}, r"`lengths` must be integers \(2,\) in .*, but is 'int64 \[\]'"),
        ({"lengths": [[1], [2, 3]]}, r"`lengths` must be an array, but cannot become one \(.*\)"),
        ({"dtype": "str", "axis": None, "lengths": ["a", "b"]}, "`lengths` must be integers"),
        ({"axis": None, "values": [[1], [2, 3]]}, r"`values` must be an array, but cannot become"),
        ({"axis": None, "values": 3}, r"`values` must be \(2, \*shape\), .*, but is '\[\] of"),
        ({"axis": 3}, "`axis` must be a string, not empty, or None, but is 3"),
        ({"axis": ""}, "`axis` must be a string, not empty, or None, but is ''"),
        ({"axis": np.arange(2)}, "`axis` must be a string, not empty, or None, but is array"),
        ({"dtype": "str", "axis": None, "shape": None}, "`shape` must be a tuple of integers"),
        ({"dtype": "str", "axis": None, "shape": np.ones(2)}, "`shape` must be a tuple of int"),
        (
            {"shape": (np.int64(1 << 40), np.int64(1 << 40))},  # their product is not int64
            "`shape` must have at least one number, and less than 2 GiB",
        ),
        ({"ends": None}, r"must be integers \(2,\), but is 'int64 \[2\] and object \[\]'"),
        ({"ends": [4, 12, 13]}, r"must be integers \(2,\), but is 'int64 \[2\] and int64 \[3\]'"),
        ({"shape": 2}, "`shape` must be a tuple of integers, but is 2"),
        ({"shape": (2.0,)}, r"`shape` must be a tuple of integers, but is \(2.0,\)"),
        (
            {"dtype": "str", "axis": None, "values": np.array(["a", "b"])},
            r"strings must have no `values` \(they are read from the file\), but have some",
        ),
        (
            {"axis": None, "values": [1, 3.7]},
            r"`values` must be representable as int32, but is 3\.7",
        ),
        (
            {"dtype": "int8", "axis": None, "values": [1, 300]},
            "`values` must be representable as int8, but is 300",
        ),
        ({"axis": None, "values": [float("nan"), 1]}, "must be representable as int32, but is nan"),
        (
            {"dtype": "<f4", "axis": None, "values": [1e300, 1]},
            r"`values` must be representable as float32, but is 1e\+300",
        ),
        (
            {"dtype": "<f4", "axis": None, "values": [2**24 + 1, 1]},
            "`values` must be representable as float32, but is 16777217",
        ),
        ({"axis": None, "values": ["a", "b"]}, "must be representable as int32, but is '<U1'"),
        ({"lengths": np.array([1])}, r"`lengths` must be integers \(2,\)"),
        ({"lengths": np.array([1.0, 2.0])}, r"`lengths` must be integers \(2,\)"),
        (
            {"lengths": np.array([-1, 2]), "decoder": len},
            r"`lengths` must be integers \(2,\) in \[0, 281474976710656\], but is .* from -1 to 2",
        ),
        (
            {"lengths": np.array([1, 2**63 - 1]), "decoder": len},  # what libsndfile does not know
            r"in \[0, 281474976710656\], but is 'int64 \[2\] from 0 to 9223372036854775807",
        ),
    ],
)
def test_what_cannot_be_is_named(changes, text):
    with pytest.raises(PluginError, match=f"^Format.index.*{text}.*Report it to"):
        check_extents(make(**changes), 2, 12, "Format.index('a'), field 'x'", PLACE, "x")


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("<f4", [0.1, float("nan")]), ("<f4", [float("inf"), 2**24]), ("<f8", [1, 2]),
        ("|b1", [0, 1]), ("|u1", [True, False]), ("|i1", np.array([-128, 127])),
    ],
)  # fmt: skip
def test_values_that_their_dtype_holds_are_taken(dtype, values):
    check_extents(make(dtype=dtype, axis=None, values=values), 2, 12, "w", PLACE, "x")


def test_a_file_without_sequences_may_have_empty_arrays_of_any_dtype():
    check_extents(make(begins=np.array([]), ends=np.array([])), 0, 12, "w", PLACE, "x")


def test_values_that_end_after_the_file_say_that_it_is_cut_off():
    check_extents(make(begins=[-1, 4], ends=[99, 12]), 2, 12, "w", PLACE, "x")
    with pytest.raises(CorruptShardError) as caught:
        check_extents(make(ends=[4, 13]), 2, 12, "w", PLACE, "x")
    assert str(caught.value) == (
        'data ("a.rec"), field "x", bytes 4..13: the values of its sequence 1 must end inside '
        "the 12 bytes of the file, but end at 13: it is cut off. Restore it; if it is complete, "
        "report it to the author of the format"
    )
    assert caught.value.details["expected"] == 13


def test_fields_and_ids_have_the_same_number_of_sequences():
    assert count_sequences(FileIndex({"x": make()}), "w") == 2
    assert count_sequences(FileIndex({"x": make()}, ["a", "b"]), "w") == 2
    with pytest.raises(PluginError, match=r"the same number of sequences, but have \{'x': 2, 'ids"):
        count_sequences(FileIndex({"x": make()}, ["a"]), "w")
    with pytest.raises(PluginError, match=r"but have \{'x': 2, 'y': 1\}"):
        count_sequences(FileIndex({"x": make(), "y": make(begins=[0], ends=[4])}), "w")


@pytest.mark.parametrize("begins", [None, 3, "ab", {1, 2}])
def test_begins_that_cannot_be_counted_are_named(begins):
    text = r"^w, field 'x': `begins` must be an array of integers, one of each sequence, but is "
    with pytest.raises(PluginError, match=f"{text}{begins!r}. Report it to"):
        count_sequences(FileIndex({"x": Extents(begins, [4], "u1")}), "w")
    with pytest.raises(PluginError, match=r"`begins` must be an array, but cannot become one \(se"):
        count_sequences(FileIndex({"x": Extents([[1], [2, 3]], [4], "u1")}), "w")


@pytest.mark.parametrize("name", ["begins", "ends"])
def test_extents_that_are_no_array_are_named(name):
    extents = Extents(**{"begins": [0, 4], "ends": [4, 12], "dtype": "u1", name: [[1], [2, 3]]})
    with pytest.raises(PluginError, match=rf"^w: `{name}` must be an array, but cannot become"):
        check_extents(extents, 2, 12, "w", PLACE, "x")


@pytest.mark.parametrize("ids", [3, "ab", b"ab", iter("ab"), np.array("ab")])
def test_ids_are_a_sequence_of_texts(ids):
    text = r"^w: `ids` must be a sequence of strings, or None, but is .*\. Report it to"
    with pytest.raises(PluginError, match=text):
        count_sequences(FileIndex({"x": make()}, ids), "w")


@pytest.mark.parametrize("fields", [[make()], None, np.zeros(3)])
def test_fields_are_a_mapping(fields):
    with pytest.raises(
        PluginError, match=r"^w: `fields` must be a mapping of names to Extents, but"
    ):
        check_file_index(FileIndex(fields), "w")


@pytest.mark.parametrize("name", ["", "id", 3])
def test_names_of_fields_are_texts_that_are_not_the_ids(name):
    with pytest.raises(
        PluginError, match=rf"non-empty string other than 'id', but is {name!r}. Report"
    ):
        count_sequences(FileIndex({"x": make(), name: make()}), "w")


def test_a_format_needs_a_field_along_an_axis():
    check_has_axis(FileIndex({"x": make(axis=None), "y": make()}), "w")
    text = "^w: at least one field must run along an axis, but x, y do not. Report it to"
    with pytest.raises(PluginError, match=text):
        check_has_axis(FileIndex({"x": make(axis=None), "y": make(axis=None)}), "w")


@given(st.lists(st.tuples(st.integers(-1, 100), st.integers(0, 50)), max_size=8))
def test_sizes_are_those_of_values_that_are_there(pairs):
    begins = np.array([begin for begin, _ in pairs], dtype=np.int32)
    ends = np.array([begin + size for begin, size in pairs], dtype=np.int64)
    sizes = value_sizes(make(begins=begins, ends=ends))
    assert sizes.tolist() == [0 if begin < 0 else size for begin, size in pairs]
    assert sizes.dtype == np.int64


def test_values_in_the_index_need_no_bytes():
    nothing = make(begins=[-1, 4])
    assert clamp_begins(nothing).tolist() == [-1, 4]
    kept = make(begins=[-1, 4], axis=None, values=np.zeros(2))
    assert clamp_begins(kept).tolist() == [0, 4]


@pytest.mark.parametrize(
    ("stored", "name"), [(">i4", "int32"), ("<f8", "float64"), ("str", "str"), ("|u1", "uint8")]
)
def test_a_dtype_is_read_in_the_order_of_this_machine(stored, name):
    assert native_name(stored) == name


def test_indices_of_sequences_that_lack_a_value_are_those_of_the_file():
    check_missing(FileIndex({"x": make()}, missing={"a": (1, [0])}), 2, "w")
    for missing in ((2, [0]), (1, [2]), (1, [-1]), (1, ["r0"])):
        text = r"^w: `missing` must have integers in \[0, 2\) of 'a', but is .*\. Report it to"
        with pytest.raises(PluginError, match=text):
            check_missing(FileIndex({"x": make()}, missing={"a": missing}), 2, "w")
