"""Vocabulary: which tokens have ids, in which order, and texts as ids and back."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata import Vocabulary, fit
from seqdata.errors import ConfigError, DecodeError

TEXTS = ["to be or not to be", "", "be"]


def vocabulary_of(values, **options):
    rows = [{"x": [1], "text": value} for value in values]
    return fit(rows, {"text": Vocabulary(**options)}, progress=False)["text"]


def test_frequent_tokens_come_first_and_equal_ones_by_code_points():
    found = vocabulary_of(TEXTS)
    assert found.tokens == ["be", "to", "not", "or"]
    assert found.size == 6  # with padding and the unknown token
    assert vocabulary_of(TEXTS, min_count=2).tokens == ["be", "to"]
    assert vocabulary_of(TEXTS, max_size=1).tokens == ["be"]
    assert vocabulary_of(["ab a"], tokens="characters").tokens == ["a", " ", "b"]


def test_texts_become_ids_and_how_many_each_has():
    ids, counts = vocabulary_of(TEXTS, max_size=2).apply(TEXTS, None, None)
    assert ids.tolist() == [3, 2, 1, 1, 3, 2, 2]
    assert counts.tolist() == [6, 0, 1]


def test_a_text_with_the_boundary_of_texts_is_split_like_others():
    ids, counts = vocabulary_of(["a"]).apply(["a \0 a", "a"], None, None)
    assert (ids.tolist(), counts.tolist()) == ([2, 1, 2, 2], [3, 1])


def test_ids_become_tokens_and_padding_none():
    found = vocabulary_of(TEXTS)
    assert found.inverse(np.array([[2, 0], [5, 1]])) == [["be", None], ["or", None]]
    with pytest.raises(
        ConfigError, match=r"the range of ids of 'text' must be within \[0, 6\), but is 2 to 6"
    ):
        found.inverse([2, 6])


def test_a_token_without_an_id_is_an_error_if_that_is_asked_for():
    with pytest.raises(DecodeError, match="token 'or' of field 'text' has no id"):
        vocabulary_of(["to be"], unknown="error").apply(["to be or"], None, None)


# every combination of what can be asked for, beside a simple count


@settings(max_examples=80)
@given(
    st.lists(st.text("ab \t\n\0\u2003", max_size=9), min_size=1, max_size=6),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 4)),
    st.sampled_from(["words", "characters"]),
)
def test_tokens_are_those_of_a_simple_count(texts, min_count, max_size, kind):
    split = str.split if kind == "words" else list
    counts = Counter(token for text in texts for token in split(text))
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    due = [token for token in ranked if counts[token] >= min_count][:max_size]
    rows = [{"x": [1], "t": text} for text in texts]
    if not counts:
        return
    estimator = Vocabulary(min_count=min_count, max_size=max_size, tokens=kind)
    found = fit(rows, {"t": estimator})["t"]
    assert found.tokens == due
    assert found.size == len(due) + 2
    ids, lengths = found.apply(texts, np.ones(len(texts)), None)
    assert lengths.tolist() == [len(split(text)) for text in texts]
    number_of = {token: number for number, token in enumerate(due, 2)}
    assert ids.tolist() == [number_of.get(token, 1) for text in texts for token in split(text)]


def test_an_estimator_is_used_for_several_fields_and_fits():
    estimator = Vocabulary(min_count=2)
    rows = [{"x": [1], "a": "u v u", "b": "w w"}]
    stats = fit(rows, {"a": estimator, "b": estimator})
    assert (stats["a"].tokens, stats["b"].tokens) == (["u"], ["w"])
    assert fit(rows, {"a": estimator, "b": estimator}) == stats
    assert fit([{"x": [1], "a": "z z", "b": "w"}] * 2, {"a": estimator})["a"].tokens == ["z"]
