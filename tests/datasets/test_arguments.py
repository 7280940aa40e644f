"""Arguments of generated datasets: ranges include their bounds, lengths have their least."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import ConfigError
from seqdata.datasets.arguments import check_number, draw_lengths, make_generator


@pytest.mark.parametrize("value", [0, 1, 0.5, np.float32(0.25), np.int64(1)])
def test_a_number_in_its_range_is_accepted_with_both_bounds(value):
    check_number("make", 0, 1, rare=value)


@pytest.mark.parametrize(
    "value", [-1e-9, 1.001, float("nan"), float("inf"), True, np.True_, "0.5", None, [0.5], 1j]
)
def test_anything_else_is_refused_by_its_name(value):
    message = f"make: `rare` must be a number in [0, 1], but is {value!r}"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check_number("make", 0, 1, median=0, rare=value)


def test_a_seed_makes_the_numbers_of_numpy():
    expected = np.random.default_rng(3).random(4).tolist()
    for seed in (3, np.int64(3)):
        assert make_generator("make", seed).random(4).tolist() == expected


@pytest.mark.parametrize("seed", [-1, 0.5, None, True, "1"])
def test_a_seed_is_an_integer_from_0(seed):
    message = f"make: `seed` must be an integer of at least 0, but is {seed!r}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_generator("make", seed)


@given(st.integers(0, 50), st.floats(0, 1e6), st.floats(0, 5), st.integers(0, 100))
def test_lengths_are_integers_of_at_least_the_least(count, median, sigma, least):
    lengths = draw_lengths(np.random.default_rng(0), count, median, sigma, least)
    assert len(lengths) == count
    assert {type(length) for length in lengths} <= {int}
    assert min(lengths, default=least) >= least


def test_half_of_the_lengths_are_above_the_median_and_a_fraction_is_rounded():
    lengths = np.array(draw_lengths(np.random.default_rng(0), 4_000, 300, 0.6, 0))
    assert abs((lengths > 300).mean() - 0.5) < 0.03
    assert abs(np.log(lengths).std() - 0.6) < 0.03
    assert draw_lengths(np.random.default_rng(0), 2, 6.7, 0, 0) == [7, 7]
