"""Sequences cut to spans: nothing outside of them can be read, and ids stay."""

import pickle

import numpy as np
import pytest

from seqdata import concat, open_store
from seqdata.errors import ConfigError, UnknownNameError
from seqdata.storage.span_store import SpanStore, find_longest_context
from seqdata_testing.stores import check_store

ROWS = [
    {"id": name, "x": np.arange(size) + 10 * number, "label": number}
    for number, (name, size) in enumerate([("a", 5), ("b", 0), ("c", 7)])
]
SPANS = [(2, 1, 4), (0, 0, 5), (2, 4, 7), (1, 0, 0)]
CONTEXTS = [0, 0, 2, 0]


@pytest.fixture
def base():
    return open_store(ROWS)


def cut(base, spans=SPANS, contexts=CONTEXTS):
    columns = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    return SpanStore(base, "time", *columns, np.array(contexts, np.int64))


def test_a_span_is_a_sequence_of_its_own(base):
    rows = [{**ROWS[number], "x": ROWS[number]["x"][first:stop]} for number, first, stop in SPANS]
    store = cut(base)
    assert store.keys([0, 1, 2]) == ["c", "a", "c"]
    assert store.lengths.tolist() == [3, 5, 3, 0]
    for at, row in enumerate(rows):
        columns = store.read(np.array([[at, 0, len(row["x"])]]), ["x", "label"])
        assert columns["x"][0].tolist() == row["x"].tolist()
        assert columns["label"][0].tolist() == [row["label"]]
    assert "Spans(4 along 'time' of " in store.title
    assert (store.base, store.axis) == (base, "time")
    assert store.spans.tolist() == [list(span) for span in SPANS]


def test_where_each_sequence_is_there_once_it_is_a_store_like_any(base):
    spans = [(2, 1, 4), (0, 0, 5), (1, 0, 0)]
    rows = [{**ROWS[number], "x": ROWS[number]["x"][first:stop]} for number, first, stop in spans]
    check_store(cut(base, spans, [0, 0, 0]), rows)


@pytest.mark.parametrize(("span", "text"), [
    ((0, 0, 4), r"timesteps of sequence 0 must be in \[0, 3\), but 0\.\.4 were requested"),
    ((2, -1, 2), r"timesteps of sequence 2 must be in \[0, 3\), but -1\.\.2"),
    ((4, 0, 0), r"the index of a sequence must be in \[0, 4\), but is 4"),
    ((-1, 0, 0), r"the index of a sequence must be in \[0, 4\), but is -1"),
])  # fmt: skip
def test_nothing_outside_of_a_span_is_read(base, span, text):
    with pytest.raises(ConfigError, match=text):
        cut(base).read(np.array([[0, 0, 1], span]), ["x"])


def test_the_axis_is_the_one_that_is_cut(base):
    with pytest.raises(UnknownNameError, match="no axis 'frames'"):
        cut(base).read(np.array([[0, 0, 1]]), ["x"], axis="frames")


def test_the_request_is_not_changed(base):
    spans = np.array([[0, 0, 1]])
    cut(base).read(spans, ["x"])
    assert spans.tolist() == [[0, 0, 1]]


def test_spans_and_contexts_are_in_the_fingerprint(base):
    stores = [
        cut(base),
        cut(base, [(2, 1, 5), *SPANS[1:]]),
        cut(base, SPANS[::-1]),
        cut(base, SPANS, [0, 0, 1, 0]),
    ]
    assert len({store.fingerprint for store in stores}) == 4
    again = pickle.loads(pickle.dumps(stores[0]))
    assert again.fingerprint == stores[0].fingerprint
    assert again.contexts.tolist() == CONTEXTS


def test_a_span_is_located_in_its_own_store(base):
    assert cut(base).locate(2).sequence == 2
    assert cut(base).locate(4).sequence is None


def test_the_longest_context_is_found_below_views(base):
    store = cut(base)
    assert find_longest_context(base) == 0
    assert find_longest_context(store) == 2
    assert find_longest_context(store.take([0, 2])) == 2
    assert find_longest_context(concat([base, store.take([2])])) == 2
