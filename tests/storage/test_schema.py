"""The first sequence says what all are: fields, axes, ids, and each thing that cannot be."""

import numpy as np
import pytest

from seqdata.errors import ConfigError, DecodeError, UnknownNameError
from seqdata.protocols import Field
from seqdata.storage.fields import make_packer
from seqdata.storage.schema import check_axis_lengths, check_packed_ids, infer_fields

X = np.zeros((3, 2), np.float32)


def test_arrays_run_along_time_unless_told_otherwise():
    fields = infer_fields(
        {"x": X, "y": X[:2], "v": X[0], "label": 3, "id": "a", "raw": b""},
        {"y": "frames", "v": None},
    )
    assert fields == {
        "x": Field("float32", (2,), "time"),
        "y": Field("float32", (2,), "frames"),
        "v": Field("float32", (2,), None),
        "label": Field("int64", (), None),
        "id": Field("str", (), None),
        "raw": Field("bytes", (), None),
    }


@pytest.mark.parametrize("axis", ["", "1st", "a b", "ä", 3, "x" * 65])
def test_an_axis_has_a_name(axis):
    with pytest.raises(ConfigError, match=r"axis of field 'x' must be a name of letters, digits"):
        infer_fields({"x": X}, {"x": axis})


@pytest.mark.parametrize("axis", ["_", "a-b_3", "x" * 64])
def test_names_of_axes_may_be_long_but_not_longer(axis):
    assert infer_fields({"x": X}, {"x": axis})["x"].axis == axis


def test_axes_are_of_fields_that_are_there():
    with pytest.raises(UnknownNameError, match="`axes`: no field 'z'"):
        infer_fields({"x": X}, {"z": "time"})


@pytest.mark.parametrize("name", ["", 3, None])
def test_fields_have_names(name):
    with pytest.raises(DecodeError, match="names of fields must be non-empty strings, but one is"):
        infer_fields({"x": X, name: X}, None)


def test_a_value_that_cannot_be_stored_is_named():
    with pytest.raises(DecodeError, match="sequence 0, field 'z': ") as caught:
        infer_fields({"x": X, "z": object()}, None)
    assert caught.value.details["field"] == "z"


@pytest.mark.parametrize(
    ("sequence", "text"),
    [
        ({"id": "a"}, r"there are 'id' \(str, one per sequence\)\. Encode text as numbers"),
        ({}, "there are no fields"),
    ],
)
def test_something_runs_along_an_axis(sequence, text):
    with pytest.raises(ConfigError, match=f"at least one must be an array .*{text}"):
        infer_fields(sequence, None)


def packed(*rows):
    """Return fields, and what their packers hold of rows."""
    fields = infer_fields(rows[0], {"z": "frames"} if "z" in rows[0] else None)
    packers = {name: make_packer(field, is_key=name == "id") for name, field in fields.items()}
    for row in rows:
        for name, value in row.items():
            packers[name].add(value)
    return fields, {name: packer.take() for name, packer in packers.items()}


def test_fields_of_an_axis_are_equally_long():
    rows = [{"id": "a", "x": X, "y": X, "z": X[:1]}, {"id": "b", "x": X[:2], "y": X[:2], "z": X}]
    fields, content = packed(*rows)
    lengths = check_axis_lengths(fields, content, 0, "id")
    assert {axis: found.tolist() for axis, found in lengths.items()} == {
        "time": [3, 2], "frames": [1, 3],
    }  # fmt: skip
    rows[1]["y"] = X
    text = r"sequence 11 \('b'\), field 'y': fields on axis 'time' must have equal lengths, but it"
    with pytest.raises(DecodeError, match=f"{text} has 3 timesteps and field 'x' has 2") as caught:
        check_axis_lengths(*packed(*rows), 10, "id")
    assert caught.value.details == {"sequence": 11, "field": "y"}


def test_a_sequence_without_an_id_is_named_by_its_number():
    with pytest.raises(DecodeError, match=r"^sequence 1, field 'y': "):
        check_axis_lengths(*packed({"x": X, "y": X}, {"x": X, "y": X[:1]}), 0, "id")


def test_ids_are_there_once():
    rows = [{"id": name, "x": X} for name in "aba"]
    check_packed_ids(*packed(*rows[:2]), "id", 0)
    check_packed_ids(*packed(*rows), "name", 0)  # there is no such field
    with pytest.raises(DecodeError, match="'a'") as caught:
        check_packed_ids(*packed(*rows), "id", 5)
    assert "5" in str(caught.value)
    assert "7" in str(caught.value)
