"""Sums and sums of squares are integers: exact, and the same in any order and any chunks."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.fitting.exact_sums import MAX_ROWS, ExactSums, sum_exactly
from tests.properties.counts import examples

SUM_UNIT, SQUARE_UNIT = 1 << 1074, 1 << 2148
FINITE = st.floats(allow_nan=False, allow_infinity=False)
EDGES = st.sampled_from([5e-324, -5e-324, 2.0**-450, 2.0**500, 1.7e308, -1.7e308, 1.0, 0.1, 0.0])


def total(values, dtype="float64", groups=None, count=1, present=None):
    array = np.array(values, dtype=dtype).reshape(len(values), -1)
    numbers = np.zeros(len(array), dtype=np.int64) if groups is None else np.array(groups)
    return sum_exactly(array, present, numbers, count)


def check(sums, values, group=0, feature=0):
    exact = [Fraction(value) for value in values]
    assert Fraction(int(sums.sums[group, feature]), SUM_UNIT) == sum(exact)
    assert Fraction(int(sums.squares[group, feature]), SQUARE_UNIT) == sum(x * x for x in exact)
    assert sums.counts[group, feature] == len(exact)


@examples(1, here=40)
@given(st.lists(FINITE | EDGES, min_size=1, max_size=40))
def test_sums_are_exact(values):
    check(total(values), values)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@examples(1, here=20)
@given(data=st.data())
def test_sums_of_narrow_floats_are_exact(dtype, data):
    width = int(dtype[5:])
    numbers = st.floats(allow_nan=False, allow_infinity=False, width=width)
    values = data.draw(st.lists(numbers, min_size=1, max_size=40))
    check(total(values, dtype), values)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "uint32", "int64", "uint64"])
@examples(1, here=20)
@given(data=st.data())
def test_sums_of_integers_are_exact(dtype, data):
    most = 1 if dtype == "bool" else np.iinfo(dtype).max
    least = 0 if dtype == "bool" else np.iinfo(dtype).min
    values = data.draw(st.lists(st.integers(int(least), int(most)), min_size=1, max_size=40))
    check(total(values, dtype), values)


@examples(1, here=40)
@given(
    st.lists(st.tuples(FINITE | EDGES, st.integers(0, 2)), min_size=1, max_size=40),
    st.integers(1, 7),
    st.randoms(use_true_random=False),
)
def test_any_chunks_in_any_order_give_the_same_integers(rows, size, random):
    values, groups = zip(*rows, strict=True)
    whole = total(values, groups=groups, count=3)
    random.shuffle(rows)
    merged = ExactSums.zeros(3, 1)
    for first in range(0, len(rows), size):
        part, part_groups = zip(*rows[first : first + size], strict=True)
        merged.add(total(part, groups=part_groups, count=3))
    assert (merged.sums == whole.sums).all()
    assert (merged.squares == whole.squares).all()
    for group in range(3):
        check(merged, [value for value, place in rows if place == group], group)


def test_groups_that_come_back_and_features_are_kept_apart():
    values = np.arange(24.0).reshape(12, 2) / 3
    groups = np.array([1, 1, 0, 1, 2, 2, 0, 0, 1, 2, 2, 2])
    sums = sum_exactly(values, None, groups, 4)
    for group in range(4):
        for feature in range(2):
            check(sums, values[groups == group, feature].tolist(), group, feature)


def test_what_is_absent_is_not_summed_up():
    values = np.array([[1.0, np.nan], [2.0, 3.0]])
    sums = sum_exactly(values, np.isfinite(values), np.zeros(2, dtype=np.int64), 1)
    check(sums, [1.0, 2.0])
    check(sums, [3.0], feature=1)


def test_sums_of_others_go_to_their_groups():
    sums = ExactSums.zeros(1, 1)
    sums.grow(3)
    sums.add(total([2.0, 3.0], groups=[0, 1], count=2), np.array([2, 0]))
    check(sums, [3.0], 0)
    check(sums, [], 1)
    check(sums, [2.0], 2)


@examples(1, here=40)
@given(st.lists(FINITE, min_size=1, max_size=20))
def test_moments_are_those_of_exact_arithmetic(values):
    mean, deviation = total(values).compute_moments()
    exact = [Fraction(value) for value in values]
    true_mean = sum(exact) / len(exact)
    variance = sum((x - true_mean) ** 2 for x in exact) / len(exact)
    assert mean[0, 0] == true_mean.numerator / true_mean.denominator
    root = Fraction(float(deviation[0, 0]))
    room = Fraction(math.ulp(float(deviation[0, 0])))
    assert max(root - room, 0) ** 2 <= variance <= (root + room) ** 2


def test_moments_of_nothing_are_nan():
    mean, deviation = ExactSums.zeros(1, 1).compute_moments()
    assert np.isnan(mean).all()
    assert np.isnan(deviation).all()


def test_too_many_rows_are_refused():
    values = np.broadcast_to(np.zeros((1, 1)), (MAX_ROWS + 1, 1))
    with pytest.raises(ValueError, match="`values` must have at most 4194304 rows"):
        sum_exactly(values, None, np.zeros(MAX_ROWS + 1, dtype=np.int64), 1)


def test_no_rows_are_nothing():
    assert sum_exactly(np.empty((0, 2)), None, np.empty(0, np.int64), 1).counts.tolist() == [[0, 0]]
