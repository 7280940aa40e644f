import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.loading.field_selection import make_reader
from seqdata.loading.options import EngineOptions
from seqdata.loading.output import Output
from seqdata.storage.memory import MemoryStore

STORE = MemoryStore.from_sequences(
    [
        {"x": np.arange(n), "f": np.ones((n, 2)), "text": np.arange(3), "y": n, "id": f"s{n}"}
        for n in (4, 2, 7)
    ],
    axes={"text": "text"},
)


def reading(output=None, store=STORE, axis="time", **options):
    return make_reader(store, axis, EngineOptions(**options), output)


def test_all_fields_are_read_unless_some_are_chosen():
    assert reading().field_names == ("x", "f", "text", "y", "id")
    assert reading(fields=["y", "x", "y"]).field_names == ("y", "x")


def test_what_the_output_does_not_name_is_not_read():
    assert reading(Output(("y", "lengths", "x"))).field_names == ("x", "y")
    assert reading(Output(("lengths", "ids"))).field_names == ()


def test_a_transform_or_a_collator_may_need_any_field():
    assert len(reading(Output(("x",)), transform=dict).field_names) == 5
    assert len(reading(Output(("x",)), collator=dict).field_names) == 5


def test_targets_need_the_field_that_is_shifted():
    assert reading(Output(("targets",)), shift={"x": 1}).field_names == ("x", "targets")
    assert reading(Output(("text", "targets")), axis="text", shift=1).field_names == (
        "text",
        "targets",
    )


def test_the_layout_knows_every_axis():
    axes = reading(shift={"x": 2}).axes
    assert axes.axis == "time"
    assert axes.axis_of == {"x": "time", "f": "time", "text": "text", "y": None, "id": None}
    assert axes.shift == {"x": 2}


def test_a_shifted_field_is_read_further_and_the_others_are_not():
    columns = reading(shift={"x": 2}).read_columns(
        np.array([[2, 1, 4], [0, 0, 2]]), joint_targets=True
    )
    assert [piece.tolist() for piece in columns["x"]] == [[1, 2, 3, 4, 5], [0, 1, 2, 3]]
    assert columns["f"].lengths.tolist() == [3, 2]


def test_an_idle_span_is_not_read_further():
    columns = reading(shift={"x": 1}).read_columns(np.array([[1, 2, 2]]), joint_targets=True)
    assert columns["x"].lengths.tolist() == [0]


def test_targets_of_rows_of_several_spans_are_read_apart():
    spans = np.array([[2, 1, 4], [0, 0, 2], [1, 1, 1]])
    columns = reading(shift={"x": 1}).read_columns(spans, joint_targets=False)
    assert [piece.tolist() for piece in columns["x"]] == [[1, 2, 3], [0, 1], []]
    assert [piece.tolist() for piece in columns["targets"]] == [[2, 3, 4], [1, 2], []]


def test_the_index_is_of_targets():
    assert reading(fields=["x"], shift=1).build_index().lengths.tolist() == [3, 1, 6]
    assert reading().build_index().lengths.tolist() == [4, 2, 7]


def test_the_index_names_sequences_through_a_view():
    index = SequenceIndex.from_store(STORE.take([2, 0]))
    assert index.names([0, 1]) == "'s7', 's4'"
    assert index.fingerprint != SequenceIndex.from_store(STORE).fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"axis": "frames"}, "the policy plans on axis 'frames', but the store has time, text"),
        ({"fields": ["xx"]}, "`fields`: no field 'xx'; did you mean 'x'"),
        ({"shift": 1}, r"`shift` .* are 2 \(x, f\). Name the field, such as shift=\{'x': 1\}\."),
        (
            {"shift": 1, "fields": ["y"]},
            r"`shift` .* one field on axis 'time', but there is none. Leave it out",
        ),
        ({"shift": {"x": 1, "f": 1}}, "`shift` must name one field, but is {'x': 1, 'f': 1}"),
        ({"shift": {"y": 1}}, "`shift`: no field 'y'. Choose one of x, f"),
        ({"shift": {"x": -1}}, "`shift` must be an integer of at least 0 .*, but is -1"),
        ({"shift": "x"}, "`shift` must be an integer of at least 0 .*, but is 'x'"),
        ({"output": Output(("lenghts",))}, "no field 'lenghts'; did you mean 'lengths'"),
        ({"output": Output(("targets",))}, "no field 'targets'"),
    ],
)
def test_what_does_not_fit_the_store_is_refused(options, message):
    with pytest.raises(ConfigError, match=f"loader: {message}"):
        reading(**options)


def test_a_field_named_targets_and_a_shift_clash():
    store = MemoryStore.from_sequences([{"x": [1, 2], "targets": [1, 2]}])
    with pytest.raises(ConfigError, match="adds a field 'targets', but the data has one"):
        reading(store=store, shift={"x": 1})
