"""Views select and compose; nothing is copied but numbers."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import ConfigError
from seqdata.protocols import Store
from seqdata.storage.views import take, where
from tests.storage.speakers import made, numbers


def test_a_view_is_a_store():
    store = made(6)
    view = store.take([5, 2, 2])
    assert isinstance(view, Store)
    assert len(view) == 3
    assert view.lengths.tolist() == [5, 2, 2]
    assert view.lengths.dtype == store.lengths.dtype
    assert view.lengths_of["text"].tolist() == [6, 3, 3]
    assert list(view.lengths_of) == ["time", "text"]
    assert len(view.lengths_of) == 2
    assert view.fields == store.fields
    assert view.shards == store.shards
    assert view.title == f"View(3 of {store.title})"


def test_a_view_reads_and_names_sequences_of_its_base():
    view = made(6).take([5, 2, 2])
    spans = np.array([[2, 0, 2], [0, 1, 5]])
    columns = view.read(spans, ["x", "id", "text", "y"])
    assert [columns["x"][i].tolist() for i in range(2)] == [[2, 2], [5, 5, 5, 5]]
    assert columns["id"] == ["u2", "u5"]
    assert columns["text"].lengths.tolist() == [3, 6]
    assert spans.tolist() == [[2, 0, 2], [0, 1, 5]]  # not changed
    assert view.ids[:2] == ["u5", "u2"]


def test_views_of_views_are_one_array_of_numbers_over_the_base():
    store = made(10)
    view = store.take([9, 7, 5, 3, 1]).where([True, False, True, True, False]).take([2, 0])
    assert view.base is store
    assert numbers(view) == [3, 9]
    assert view.lengths.tolist() == [3, 9]


@given(st.data())
def test_chains_of_views_select_what_numpy_selects(data):
    store = made(8)
    view, expected = store, np.arange(8)
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()) and len(expected):
            chosen = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=9))
            view, expected = take(view, chosen), expected[np.array(chosen, dtype=int)]
        else:
            bits = st.integers(0, 1 << len(expected))
            mask = (data.draw(bits) >> np.arange(len(expected))) % 2 == 1
            view, expected = where(view, mask), expected[mask]
    assert numbers(view) == expected.tolist()
    assert view.lengths.tolist() == store.lengths[expected].tolist()


def test_a_mask_over_lengths_selects():
    store = made(6)
    assert numbers(store.where(store.lengths < 3)) == [0, 1, 2]


def test_an_empty_view_has_length_zero():
    assert len(made(3).take([])) == 0
    assert len(made(3).where(np.zeros(3, dtype=bool))) == 0


def test_a_pickled_view_is_the_same():
    view = made(6).take([4, 1])
    again = pickle.loads(pickle.dumps(view))
    assert numbers(again) == [4, 1]
    assert again.fingerprint == view.fingerprint


def test_the_fingerprint_is_of_base_and_numbers():
    store = made(4)
    prints = {
        store.fingerprint,
        store.take([0, 1]).fingerprint,
        store.take([1, 0]).fingerprint,
        made(5).take([0, 1]).fingerprint,
    }
    assert len(prints) == 4
    assert store.take([0, 1]).fingerprint == store.where([True, True, False, False]).fingerprint


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ([0, 3], r"take: `numbers` must be in \[0, 3\), but hold 3\. Choose others"),
        ([-1], r"take: `numbers` must be in \[0, 3\), but hold -1"),
        (
            [0.5],
            "take: `numbers` must be integers in one dimension, but are float64 of 1 dimensions. "
            "Pass a list such as .*; for a mask use `where`",
        ),
        ([True, False, True], "take: `numbers` must be integers in one dimension, but are bool"),
        ([[0]], "`numbers` must be integers in one dimension, but are int64 of 2 dimensions"),
    ],
)
def test_numbers_that_cannot_be_taken_are_an_error(wanted, text):
    with pytest.raises(ConfigError, match=text):
        made(3).take(wanted)


@pytest.mark.parametrize("mask", [[True], [1, 0, 1], [[True] * 3]])
def test_a_mask_that_does_not_fit_is_an_error(mask):
    with pytest.raises(
        ConfigError, match=r"where: `mask` must be bool of shape \(3,\), but is .* of shape"
    ):
        made(3).where(mask)


@pytest.mark.parametrize("number", [2, -1, 1 << 40])
def test_a_span_of_a_sequence_outside_of_the_view_is_an_error(number):
    view = made(3).take([0, 1])
    with pytest.raises(
        ConfigError, match=rf"view: .* must be in \[0, 2\), but is {number}\. Plan over"
    ):
        view.read(np.array([[number, 0, 0]]), ["x"])
