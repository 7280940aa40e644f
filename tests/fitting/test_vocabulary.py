"""Vocabulary: which tokens have ids, in which order, and texts as ids and back."""

import numpy as np
import pytest

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
    with pytest.raises(ConfigError, match=r"ids of 'text' must be in \[0, 6\), but is 2 to 6"):
        found.inverse([2, 6])


def test_a_token_without_an_id_is_an_error_if_that_is_asked_for():
    with pytest.raises(DecodeError, match="token 'or' of field 'text' has no id"):
        vocabulary_of(["to be"], unknown="error").apply(["to be or"], None, None)
