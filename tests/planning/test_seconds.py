"""Options in seconds: numbers above 0, given once, and whole timesteps of the right axis."""

import re
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from seqdata import ConfigError, open_store
from seqdata.linked_axes import round_half_up
from seqdata.planning.seconds import (
    SecondsCounter,
    check_one_unit,
    check_seconds,
    refuse_seconds,
)

RATES = st.fractions(min_value=Fraction(1, 20), max_value=5_000, max_denominator=1_001)
SECONDS = st.fractions(min_value=Fraction(1, 1_000), max_value=100, max_denominator=1_000)
ROW = {"acc": np.zeros(10), "ecg": np.zeros(50), "temp": np.zeros(2), "y": 1}


def make_store(axes=None, **rates):
    if axes is None:  # each field without a rate has an axis of its own
        axes = {name: name for name in ("ecg", "temp") if name not in rates}
    return open_store([ROW], axes=axes, rates=rates)


def make_counter(store, *seconds, axis="time"):
    return SecondsCounter(store, "p", axis, seconds)


def refuses(message):
    return pytest.raises(ConfigError, match=f"^{re.escape(message)}")


# Checks


@pytest.mark.parametrize("value", [None, 2, 0.125, "1/3", Fraction(1, 7), np.float32(0.5), 2**30])
def test_seconds_are_a_number_above_0_or_not_given(value):
    check_seconds("p", SimpleNamespace(seconds=value), "seconds")


@pytest.mark.parametrize(
    ("value", "needed"),
    [
        *((value, "a number of seconds above 0") for value in (0, -1.5, "", "fast", True, [2])),
        (float("nan"), "a number of seconds above 0"),
        (float("inf"), "a number of seconds above 0"),
        (2**31, f"a number of seconds above 0 and below {2**31}"),
        (Fraction(1, 2**31), f"a fraction of two integers below {2**31}, in seconds"),
    ],
)
def test_what_are_no_seconds_is_refused_by_its_name(value, needed):
    message = (
        f"policy 'p': `stride` must be {needed}, but is {value!r}. Write e.g. 2.0, 0.125 or '1/3'"
    )
    with refuses(message):
        check_seconds("p", SimpleNamespace(seconds=1, stride=value), "seconds", "stride")


@pytest.mark.parametrize(("size", "seconds"), [(None, 2), (0, 2), (7, None), (0, None)])
def test_an_option_is_given_in_one_unit(size, seconds):
    check_one_unit("p", SimpleNamespace(size=size, seconds=seconds), ("size", "seconds"))


def test_an_option_in_both_units_is_refused():
    options = SimpleNamespace(size=None, seconds=2, stride=7, stride_seconds="1/3")
    message = (
        "policy 'p': at most one of `stride` and `stride_seconds` must be given, but both are: 7 "
        "and '1/3'. Leave one out"
    )
    with refuses(message):
        check_one_unit("p", options, ("size", "seconds"), ("stride", "stride_seconds"))


# Counts


@given(RATES, SECONDS)
def test_the_count_is_the_nearest_integer_and_the_measure_is_exact(rate, seconds):
    counter = make_counter(make_store(acc=rate), seconds)
    exact = seconds * rate
    count = round_half_up(exact)
    assume(max(exact.numerator, exact.denominator) < 2**31)
    if count:
        assert counter.count("size", seconds) == count
        assert abs(count - exact) <= Fraction(1, 2)
    else:
        with pytest.raises(
            ConfigError, match="`size` must be at least one timestep of axis 'time'"
        ):
            counter.count("size", seconds)
    if exact >= 1:
        found = counter.measure("stride", seconds)
        assert found == exact
        assert type(found) is (int if exact.denominator == 1 else Fraction)
    else:
        with pytest.raises(ConfigError, match="`stride` must be at least one timestep of axis 'ti"):
            counter.measure("stride", seconds)


def test_floats_are_the_fractions_that_are_meant():
    counter = make_counter(make_store(acc=30), 0.1)
    assert counter.measure("stride", 0.1) == 3
    assert counter.measure("stride", "1/30") == 1
    assert counter.count("size", 1 / 3) == 10


def test_less_than_a_timestep_is_refused():
    counter = make_counter(make_store(acc=4), 0.1)
    message = (
        "policy 'p': `size` must be at least one timestep of axis 'time' (4 Hz), but 0.1 s are "
        "0.4. Pass a longer time, or the `axis` of a higher rate"
    )
    with refuses(message):
        counter.count("size", 0.1)
    message = (
        "policy 'p': `stride` must be at least one timestep of axis 'time' (4 Hz), but 0.1 s are "
        "2/5. Pass a longer time, or the `axis` of a higher rate"
    )
    with refuses(message):
        counter.measure("stride", 0.1)


def test_a_measure_is_a_fraction_of_numbers_that_do_not_overflow():
    counter = make_counter(make_store(acc=Fraction(999, 1000)), 1)
    with pytest.raises(ConfigError, match="that is a fraction of integers below"):
        counter.measure("stride", Fraction(2**30 + 1, 2**20))


# Axes


@pytest.mark.parametrize(
    ("seconds", "axis"),
    [
        ((1,), "time"),  # the axis of the policy, where it fits
        ((0.5, None), "time"),
        ((0.125,), "ecg"),  # 1.25 timesteps of `time`, 6.25 of ecg: none fits, so the fastest
        ((0.02,), "ecg"),
        ((1, 0.02), "ecg"),
        ((), "time"),
    ],
)
def test_time_is_the_first_axis_of_which_all_seconds_are_whole(seconds, axis):
    store = make_store(acc=10, ecg=50, temp=2)
    counter = make_counter(store, *seconds)
    assert counter.axis == axis
    assert counter.count("size", 10) == 10 * {"time": 10, "ecg": 50}[axis]


def test_another_axis_stays_even_if_seconds_are_no_timesteps_of_it():
    counter = make_counter(make_store(acc=10, ecg=50, temp=2), 0.02, axis="temp")
    assert counter.axis == "temp"
    assert counter.count("size", 0.3) == 1


def test_without_an_axis_time_the_fastest_that_fits_is_chosen():
    store = make_store({"acc": "body", "ecg": "heart", "temp": "skin"}, acc=10, ecg=50, temp=2)
    assert make_counter(store, 1).axis == "heart"
    store = make_store({"acc": "body", "ecg": "heart", "temp": "skin"}, acc=9, ecg=50)
    assert make_counter(store, "1/9").axis == "body"


@pytest.mark.parametrize(
    ("rates", "axis", "message"),
    [
        (
            {}, "time",
            "policy 'p': `seconds` needs the sampling rate of axis 'time', which is not known "
            "(known: none). Pass e.g. rates={'acc': 100} to open_store or to the DataModule, or "
            "timesteps in place of seconds",
        ),
        (
            {"acc": 50, "ecg": 0.5}, "temp",
            "policy 'p': `seconds` needs the sampling rate of axis 'temp', which is not known "
            "(known: 'time' 50 Hz, 'ecg' 0.5 Hz). Pass e.g. rates={'temp': 100} to open_store or "
            "to the DataModule, or the `axis` of a known one, or timesteps in place of seconds",
        ),
    ],
)  # fmt: skip
def test_a_rate_that_is_not_known_is_asked_for(rates, axis, message):
    store = make_store(**rates)
    with refuses(message):
        make_counter(store, 1, axis=axis)


def test_an_index_of_lengths_has_no_rates():
    message = (
        "policy 'p': `seconds` needs sampling rates, which an index of lengths does not have. Pass "
        "the policy and the store to a Loader or DataModule, or `policy.in_timesteps(store)` for a "
        "plan by hand"
    )
    with refuses(message):
        refuse_seconds("p")
