"""Columns of a request: what is read for a shift and a horizon, and what a reader plans."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from seqdata.batch.axes import TARGETS, Axes
from seqdata.loading.fetcher import Fetcher, FieldReader
from seqdata.loading.options import ValueOptions
from seqdata.loading.step_requests import StepRequest
from seqdata.storage.memory import MemoryStore

STORE = MemoryStore.from_sequences([{"x": np.arange(n, dtype="f8"), "y": n} for n in (6, 9)])
AXES = Axes("time", {"x": "time", "y": None})
READER = FieldReader(STORE, "time", ("x", "y"), None, 0, AXES)
SHIFTED = FieldReader(STORE, "time", ("y",), "x", 2, AXES)
SPANS = np.array([[1, 3, 6], [0, 0, 4]])


def values_of(column):
    return [column[i].tolist() for i in range(len(column))]


def repeated(sequence):
    return {"x": np.repeat(sequence["x"], 2)}


repeated.lengths = lambda lengths: lengths * 2


def test_spans_are_read_with_the_horizon_after_them():
    columns = READER.read_columns(SPANS, joint_targets=False, horizon=1)
    assert values_of(columns["x"]) == [[3, 4, 5, 6], [0, 1, 2, 3, 4]]
    assert READER.field_names == ("x", "y")


def test_targets_of_a_shift_are_a_column_or_joint_with_the_inputs():
    apart = SHIFTED.read_columns(SPANS, joint_targets=False)
    assert values_of(apart["x"]) == [[3, 4, 5], [0, 1, 2, 3]]
    assert values_of(apart[TARGETS]) == [[5, 6, 7], [2, 3, 4, 5]]
    joint = SHIFTED.read_columns(SPANS, joint_targets=True)
    assert values_of(joint["x"]) == [[3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5]]
    assert TARGETS not in joint
    assert SHIFTED.field_names == ("y", "x", TARGETS)


def test_an_idle_span_is_not_widened_by_the_shift():
    assert SHIFTED.extend(np.array([[0, 0, 0], [1, 2, 4]]), 1).tolist() == [[0, 0, 1], [1, 2, 7]]


def test_a_shift_shortens_what_is_planned():
    assert READER.build_index().lengths.tolist() == [6, 9]
    assert SHIFTED.build_index().lengths.tolist() == [4, 7]


@pytest.mark.parametrize("copied", [False, True])
def test_a_transform_that_changes_lengths_receives_whole_sequences(copied):
    reader = FieldReader(
        STORE, "time", ("x",), None, 0, AXES, repeated, length_map=repeated.lengths
    )
    assert reader.build_index().lengths.tolist() == [12, 18]
    assert values_of(reader.read_inputs(SPANS)["x"]) == [list(range(9)), list(range(6))]
    assert reader.compute_planned_lengths(np.array([1])).tolist() == [18]
    assert reader.length_advice == "Change the transform, or its `.lengths`"
    assert reader.transform_label.split(" (")[0].endswith("repeated")
    assert READER.transform_label == "none"


def test_a_copy_reads_the_same():
    found = pickle.loads(pickle.dumps(SHIFTED))
    columns = found.read_columns(SPANS, joint_targets=True)
    assert values_of(columns["x"]) == [[3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5]]


def test_a_fetcher_converts_values_and_says_which_axis_they_run_along():
    request = StepRequest(SPANS, SPANS[:, 0], epoch=0)
    plain = Fetcher(READER, None)
    columns, axes = plain.fetch(request)
    assert columns["x"].dtype == np.float64
    assert axes is AXES
    converted, _ = replace(plain, value_options=ValueOptions("float32")).fetch(request)
    assert converted["x"].dtype == np.float32
    stream = StepRequest(SPANS, SPANS[:, 0], epoch=0, is_shifted_stream=True)
    columns, _ = Fetcher(SHIFTED, None).fetch(stream)
    assert values_of(columns["x"]) == [[3, 4, 5], [0, 1, 2, 3]]  # the look-ahead is in the spans
