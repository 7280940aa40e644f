"""Labels: classes in order, their counts, and what a label is that was not there."""

import numpy as np
import pytest

from seqdata import Labels, fit
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
    with pytest.raises(ConfigError, match=r"numbers of 'y' must be in \[0, 3\), but is 3"):
        labels_of(TEXTS).inverse([3])
    with pytest.raises(ConfigError, match="numbers must be integers, but is float"):
        labels_of(TEXTS).inverse([0.5])
