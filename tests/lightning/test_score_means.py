"""Means of scores and weights of them: the same in any order of ranks, and back from a state."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqdata import Bucketed, Mix, open_store
from seqdata.errors import ConfigError
from seqdata.lightning.score_means import (
    PartScores,
    SequenceScores,
    SequenceSums,
    compute_means,
    weigh_in_proportion,
)
from seqdata.lightning.scores import FRACTION_BITS

ONE = 1 << FRACTION_BITS


def sums(**scores):
    """Return the sums of scores by number, as ``n3=(1.5, 2)``: total and count."""
    rows = sorted(
        (int(name[1:]), int(total * ONE), count) for name, (total, count) in scores.items()
    )
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return SequenceSums(*(np.array(column, dtype=np.int64) for column in columns))


@pytest.fixture
def store():
    return open_store([{"x": np.zeros(2)} for _ in range(4)])


@given(st.permutations([sums(n0=(1, 2), n3=(5, 1)), sums(), sums(n1=(2, 1), n3=(1, 2))]))
def test_ranks_are_added_in_any_order(parts):
    scores = SequenceScores(open_store([{"x": np.zeros(1)}] * 4), 4, None)
    merged = scores.merge(parts)
    assert merged.ids.tolist() == [0, 1, 3]
    assert (merged.sums // ONE).tolist() == [1, 2, 6]
    assert merged.counts.tolist() == [2, 1, 3]


def test_the_latest_mean_of_each_sequence_counts(store):
    scores = SequenceScores(store, 4, lambda means: means)
    assert np.isnan(scores.weigh(sums())).all()
    first = scores.weigh(sums(n0=(3, 2), n2=(4, 1)))
    assert first.tolist()[::2] == [1.5, 4.0]
    assert np.isnan(first[[1, 3]]).all()
    assert scores.weigh(sums(n2=(1, 1), n3=(2, 1))).tolist()[2:] == [1.0, 2.0]
    first[:] = 0  # what `weigh` gets is its own
    assert scores.weigh(sums())[0] == 1.5


def test_sequences_of_a_view_are_met_by_the_numbers_of_their_store(store):
    scores = SequenceScores(store.take([3, 1, 3]), 3, lambda means: means)
    assert scores.weigh(sums(n3=(2, 1))).tolist()[::2] == [2.0, 2.0]


def test_a_state_brings_back_scores_and_what_is_pending(store):
    scores = SequenceScores(store, 4, lambda means: means)
    scores.weigh(sums(n1=(3, 1)))
    state = scores.state(None)
    assert state["weights"] is None
    again = SequenceScores(store, 4, lambda means: means)
    assert again.load(state) is None
    assert np.array_equal(again.weigh(sums()), scores.weigh(sums()), equal_nan=True)
    pending = again.load_pending(scores.pending_state(sums(n2=(1, 2))))
    assert [column.tolist() for column in pending] == [[2], [ONE], [2]]
    assert again.load_pending(scores.pending_state(None)) is None
    with pytest.raises(ValueError, match="2 scores"):
        again.load({"scores": torch.zeros(2), "weights": None})


@pytest.fixture
def parts():
    return PartScores(Mix({"a": 3, "b": 1}, Bucketed(2)), None)


def test_weights_of_a_mixture_are_multiplied_by_scores(parts):
    assert parts.weigh({}) == {"a": 3.0, "b": 1.0}
    assert parts.weigh({"a": (4 * ONE, 2), "b": (ONE, 2)}) == {"a": 6.0, "b": 0.5}
    assert parts.merge([{"a": (1, 1)}, {"b": (2, 1), "a": (3, 2)}, {}]) == {
        "a": (4, 3), "b": (2, 1),
    }  # fmt: skip


def test_a_state_of_a_mixture_is_of_numbers(parts):
    parts.weigh({"a": (4 * ONE, 2)})
    state = parts.state({"a": 1.0})
    assert state["scores"]["a"] == 2.0
    assert math.isnan(state["scores"]["b"])
    again = PartScores(Mix({"a": 3, "b": 1}, Bucketed(2)), lambda means: means)
    assert again.load(state) is None
    assert again.weigh({})["a"] == 2.0
    pending = {"a": (1, 2)}
    assert again.load_pending(parts.pending_state(pending)) == pending
    assert again.load_pending(parts.pending_state(None)) is None


@given(st.lists(st.one_of(st.floats(0, 1e6), st.just(math.nan)), min_size=1, max_size=8))
def test_nothing_is_left_out(scores):
    weights = weigh_in_proportion(np.array(scores))
    assert (weights > 0).all() or max(score for score in scores if score == score) < 1e-300
    assert np.isfinite(weights).all()


def test_a_negative_mean_is_no_weight():
    with pytest.raises(ConfigError, match=r"a mean score must be at least 0 .* -0.5. Pass `weigh`"):
        weigh_in_proportion(np.array([1.0, -0.5]))
    assert weigh_in_proportion(np.array([0.0, 0.0])).tolist() == [1, 1]
    assert weigh_in_proportion(np.full(2, np.nan)).tolist() == [1, 1]
    assert weigh_in_proportion(np.array([0.0, 2.0, np.nan])).tolist() == [0.1, 2.0, 1.0]


@given(st.integers(1, 1 << 60), st.integers(1, 1 << 20))
def test_means_have_16_bits(total, count):
    (mean,) = compute_means(np.array([total]), np.array([count]))
    exact = total / count / ONE
    assert abs(mean - exact) <= exact * 2.0**-16
    mantissa, _ = math.frexp(mean)
    assert (mantissa * (1 << 16)).is_integer()
