from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from seqdata import Axis, ConfigError, SequenceIndex, Windows
from seqdata.linked_axes import Link, round_half_up, to_fraction

RATES = st.fractions(min_value=Fraction(1, 50), max_value=5_000, max_denominator=1_001)
OFFSETS = st.fractions(min_value=-3, max_value=3, max_denominator=10**9)


@pytest.mark.parametrize(
    ("given_value", "meant"),
    [
        (0.1, Fraction(1, 10)),
        (1 / 3, Fraction(1, 3)),
        (29.97, Fraction(2997, 100)),
        (30_000 / 1_001, Fraction(30_000, 1_001)),
        ("30000/1001", Fraction(30_000, 1_001)),
        (np.float64(12.5), Fraction(25, 2)),
        (np.int64(500), Fraction(500)),
        (0.12, Fraction(3, 25)),
    ],
)
def test_a_number_is_the_fraction_that_is_meant(given_value, meant):
    assert to_fraction(given_value) == meant


@pytest.mark.parametrize("wrong", [0, -1, "fast", None, True, float("nan"), float("inf"), 2**31])
def test_a_rate_is_a_number_above_0(wrong):
    with pytest.raises(ConfigError, match=r"axis: `rate` must be a number above 0 and below"):
        Axis(wrong)


@pytest.mark.parametrize("wrong", [1e-12, "1/3000000000"])
def test_a_rate_is_a_fraction_of_integers_that_are_not_too_large(wrong):
    with pytest.raises(ConfigError, match=r"axis: `rate` must be a fraction of two integers below"):
        Axis(wrong)


@pytest.mark.parametrize("wrong", ["late", None, float("inf"), 2**40])
def test_an_offset_is_a_number_of_seconds(wrong):
    with pytest.raises(ConfigError, match=r"axis: `offset` must be a number of seconds"):
        Axis(100, wrong)


def test_rates_without_a_simple_ratio_are_refused():
    with pytest.raises(ConfigError, match=r"ratio of two rates must be one of integers below"):
        Link.between(Axis(Fraction(2**30 + 1, 3)), Axis(Fraction(2**30 + 3, 1_000_003)))


@given(RATES, RATES, OFFSETS, OFFSETS, st.integers(0, 10**12))
def test_a_boundary_goes_to_the_nearest_one(rate, other_rate, offset, other_offset, boundary):
    ratio = other_rate / rate
    assume(max(ratio.numerator, ratio.denominator) < 2**31)  # others are refused
    source, target = Axis(rate, offset), Axis(other_rate, other_offset)
    found = Link.between(source, target).positions(np.array([boundary]))[0]
    seconds = source.offset + boundary / source.rate
    exact = (seconds - target.offset) * target.rate
    assert found == round_half_up(exact)
    assert abs(int(found) - exact) <= Fraction(1, 2)


def test_nothing_drifts_over_a_million_steps():
    link = Link.between(Axis("30000/1001"), Axis(44_100, offset=0.12))
    steps = np.arange(0, 10**8, 100)
    found = link.positions(steps)
    for step in (0, 1, 499_999, 999_999):
        exact = (steps[step].item() * Fraction(1_001, 30_000) - Fraction(3, 25)) * 44_100
        assert abs(found[step].item() - exact) <= Fraction(1, 2)


@given(
    st.integers(0, 3_000), st.fractions(min_value=1, max_value=70, max_denominator=60),
    st.integers(1, 90), st.integers(0, 30),
)  # fmt: skip
def test_windows_of_a_fractional_stride_begin_at_the_nearest_timestep(
    length, stride, size, horizon
):
    policy = Windows(size, stride, batch_size=7, horizon=horizon, shuffle=False)
    starts = []
    while True:
        start = round_half_up(len(starts) * stride)
        if start + size + horizon > length:
            break
        starts.append(start)
    index = SequenceIndex.from_lengths([length])
    assert policy.count_items(np.array([length]))[0] == len(starts)
    if starts:
        assert policy.plan(index, seed=0, epoch=0).spans[:, 1].tolist() == starts
