"""Weights of sequences: what is refused of them, and weights that balance labels."""

import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.policies.weighted import (
    balance_labels,
    check_labels,
    check_weights,
    make_weight_array,
)

INDEX = SequenceIndex({"time": np.array([3, 1, 2])})


def test_arrays_of_the_same_weights_are_equal():
    weights = make_weight_array([1, 2, 0])
    assert weights == make_weight_array(np.array([1.0, 2.0, 0.0]))
    assert hash(weights) == hash(make_weight_array((1, 2, 0)))
    assert weights != make_weight_array([1, 2, 3])
    assert weights.values.tolist() == [1.0, 2.0, 0.0]
    assert repr(weights) == f"WeightArray(3 of digest {weights.digest})"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([[1.0]], r"one number per sequence, but has dtype float64 and shape \(1, 1\)"),
        (["a"], "must be an array of one number per sequence"),
        ([1.0, -1.0], "must be finite and at least 0, but is -1.0 for sequence 1"),
        ([np.nan, 1.0], "must be finite and at least 0, but is nan for sequence 0"),
        ([0, 0], "must be above 0 for at least one sequence, but all are 0"),
    ],
)
def test_weights_that_are_not_finite_or_negative_are_refused(values, said):
    with pytest.raises(ConfigError, match=said):
        check_weights(np.array(values), "`weights`")


def test_every_label_has_the_same_weight_in_all():
    labels = np.array(["a", "b", "a", "a", "c", "b"])
    is_planned = np.array([1, 1, 1, 0, 1, 1], dtype=bool)
    weights = balance_labels(is_planned, labels)
    assert weights[3] == 0
    assert [weights[labels == label].sum() for label in "abc"] == [1, 1, 1]


def test_a_label_that_is_not_a_number_is_named():
    check_labels(np.array([1.0, 2.0, 1.0]), "y", INDEX)
    with pytest.raises(ConfigError, match="field 'y' must be a label to balance by, but is nan"):
        check_labels(np.array([1.0, np.nan, 1.0]), "y", INDEX)
