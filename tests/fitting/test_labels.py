"""Labels: classes in order, their counts, and what a label is that was not there."""

import numpy as np
import pytest

from seqdata import Labels, Vocabulary, fit
from seqdata.errors import ConfigError, DecodeError

TEXTS = ["no", "yes", "no", "maybe"]


def labels_of(values, **options):
    rows = [{"x": [1], "y": value} for value in values]
    return fit(rows, {"y": Labels(**options)}, progress=False)["y"]


def test_classes_are_in_order_with_their_counts():
    found = labels_of(TEXTS)
    assert found.classes == ["maybe", "no", "yes"]
    assert found.counts.tolist() == [1, 2, 1]
    numbers = labels_of([7, -1, 10, 7])
    assert numbers.classes == [-1, 7, 10]


def test_numbers_are_places_among_the_classes_and_back():
    found = labels_of(TEXTS)
    codes = found.apply(TEXTS, None, None)
    assert codes.tolist() == [1, 2, 1, 0]
    assert found.inverse(codes) == TEXTS
    numbers = labels_of([7, -1, 10])
    assert numbers.apply(np.array([10, -1, 10]), None, None).tolist() == [2, 0, 2]
    assert numbers.inverse([2, 0]).tolist() == [10, -1]


def test_a_label_that_was_not_there_is_an_error_or_its_number():
    with pytest.raises(DecodeError, match="label 'never' of field 'y' was not in the data"):
        labels_of(TEXTS).apply(["never"], None, None)
    assert labels_of(TEXTS, unknown=-100).apply(["never", "no"], None, None).tolist() == [-100, 1]


def test_numbers_of_no_class_are_refused():
    with pytest.raises(ConfigError, match=r"a class index of 'y' must be in \[0, 3\), but is 3"):
        labels_of(TEXTS).inverse([3])
    with pytest.raises(ConfigError, match=r"a class index of 'y' must be in \[0, 3\), but is -1"):
        labels_of(TEXTS).inverse([0, -1])
    with pytest.raises(ConfigError, match="class indices must be an integer type, but is float"):
        labels_of(TEXTS).inverse([0.5])


@pytest.mark.parametrize(
    ("dtype", "first"), [("int64", 2**53), ("int64", -(2**63)), ("uint64", 2**64 - 3)]
)
@pytest.mark.parametrize("estimator", [Labels(), Vocabulary()])
def test_large_integers_are_told_apart(estimator, dtype, first):
    values = np.array([first + 1, first, first + 2], dtype=dtype)
    stats = fit([values, values[1:], values[1:2]], {"x": estimator})
    codes = stats["x"].apply(values, np.array([3]), None)
    assert sorted(codes - codes.min()) == [0, 1, 2]
    assert list(map(int, stats.inverse()({"x": codes})["x"])) == values.tolist()


def test_the_number_of_an_unknown_label_comes_back_as_none():
    rows = [{"x": [1], "y": "a", "n": 5}]
    stats = fit(rows, {"y": Labels(unknown=-100), "n": Labels(unknown=-1)})
    found = stats.inverse()({"y": np.array([-100, 0]), "n": np.array([[0, -1]])})
    assert found == {"y": [None, "a"], "n": [[5, None]]}


@pytest.mark.parametrize("unknown", [0, 1])
def test_the_number_of_unknown_labels_may_be_that_of_a_class(unknown):
    found = labels_of(["a", "b"], unknown=unknown)
    assert found.apply(["never", "a", "b"], None, None).tolist() == [unknown, 0, 1]
    assert found.inverse([0, 1]) == ["a", "b"]
    with pytest.raises(ConfigError, match=f"different from those of classes.*but is {unknown}"):
        found.decode_groups([0, 1])


@pytest.mark.parametrize("unknown", [2**63, -(2**63) - 1, 2**70, -(2**70)])
def test_the_number_of_an_unknown_label_has_64_bits(unknown):
    with pytest.raises(ConfigError, match="`unknown` must be 'error' or an integer such as -100"):
        Labels(unknown=unknown)
