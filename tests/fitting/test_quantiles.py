"""Quantiles: those of NumPy, by counts of digits, and values clipped between them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata import Log1p, MeanStd, Quantiles, Robust, fit, open_store
from seqdata.errors import ConfigError, DataError, DecodeError


def quantiles_of(values, *levels, **options):
    rows = [{"x": part} for part in np.array_split(values, 3)]
    return fit(rows, {"x": Quantiles(*levels, **options)}, progress=False)["x"]


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u1"])
def test_they_are_those_of_numpy(dtype):
    values = (np.random.default_rng(3).normal(size=40) * 50 + 100).clip(0, 255).astype(dtype)
    levels = (0.0, 0.1, 0.37, 0.5, 0.99, 1.0)
    found = quantiles_of(values, *levels).values
    assert found.tolist() == np.quantile(values.astype("f8"), levels).tolist()


def test_those_of_flags_are_of_zeros_and_ones():
    flags = np.array([True, False, True, True, False])
    assert quantiles_of(flags, 0.0, 0.25, 0.5, 1.0).values.tolist() == [0, 0, 1, 1]
    assert quantiles_of(flags[flags], 0.0, 1.0).values.tolist() == [1, 1]


def test_values_are_clipped_between_the_lowest_and_the_highest():
    values = np.array([0, 1, 2, 3, 100], "f4")
    assert quantiles_of(values, 0.25, 0.75).apply(values, None, None).tolist() == [1, 1, 2, 3, 3]
    assert quantiles_of(values, 0.75).apply(values, None, None).tolist() == [0, 1, 2, 3, 3]
    assert quantiles_of(values, 0.25).apply(values, None, None).tolist() == [1, 1, 2, 3, 100]


def test_a_nan_is_what_the_rule_says():
    values = np.array([np.nan, 1, 2, 4], "f4")
    with pytest.raises(DataError, match="must be numbers, but one is nan"):
        quantiles_of(values, 0.5)
    imputed = quantiles_of(values, 0.0, 1.0, nan="impute").apply(values, None, None)
    assert imputed.tolist() == [2, 1, 2, 4]
    ignored = quantiles_of(values, 0.0, 1.0, nan="ignore").apply(values, None, None)
    assert np.isnan(ignored).tolist() == [True, False, False, False]


@pytest.mark.parametrize("levels", [(), (0.5, 0.5), (0.9, 0.1), (-0.1,), (True,), ("a",)])
def test_levels_must_rise_in_0_to_1(levels):
    with pytest.raises(ConfigError, match=r"must be one or more rising numbers"):
        Quantiles(*levels)


@pytest.mark.parametrize("level", [0.0, 1e-300, 0.25, 0.49, 0.5, 0.51, 0.75, 1.0])
@pytest.mark.parametrize("nan", ["error", "ignore", "impute"])
def test_one_level_clips_one_side(level, nan):
    """Below the median from below, else from above: no level makes the field a constant."""
    values = np.arange(11.0)
    found = fit([values], {"x": Quantiles(level, nan=nan)})["x"]
    bound = np.quantile(values, level)
    assert found.values.tolist() == [bound]
    wide = np.arange(-5.0, 16.0)
    clipped = np.maximum(wide, bound) if level < 0.5 else np.minimum(wide, bound)
    made = found.apply(wide, np.array([21]), None)
    assert made.tolist() == clipped.tolist()
    assert len(set(made.tolist())) > 1


@pytest.mark.parametrize(
    "levels", [(0.0, 1.0), (0.1, 0.2), (0.5, 0.9), (0.2, 0.5, 0.6), (0.4, 0.5)]
)
def test_more_levels_clip_both_sides(levels):
    values = np.arange(11.0)
    found = fit([values], {"x": Quantiles(*levels)})["x"]
    low, high = np.quantile(values, [levels[0], levels[-1]])
    wide = np.arange(-5.0, 16.0)
    assert found.apply(wide, np.array([21]), None).tolist() == np.clip(wide, low, high).tolist()


def test_integers_that_float32_does_not_tell_apart_are_refused():
    with pytest.raises(DataError, match=r"'x' of Quantiles must have integers that float32 can"):
        fit([np.array([2**53 + 1, 2**53 + 3])], {"x": Quantiles(0.0, 1.0)})
    seconds = 1_700_000_000 + 3600 * np.arange(24 * 30)  # steps of 128 s in a month
    assert fit([seconds], {"x": Quantiles(0.0, 1.0)})["x"].values.tolist() == [
        seconds[0],
        seconds[-1],
    ]
    floats = np.array([2.0**40, 2.0**40 + 1])  # clipped in float64
    assert fit([floats], {"x": Quantiles(0.0, 1.0)})["x"].values.tolist() == floats.tolist()
    same = fit([np.array([2**53 + 1] * 2)], {"x": Quantiles(0.0, 1.0)})["x"]
    assert same.values.tolist() == [2**53] * 2


@pytest.mark.parametrize("nan", ["error", "ignore", "impute"])
def test_the_median_that_is_imputed_is_no_bound_of_the_values(nan):
    values = np.array([2**53 + 1] * 3 + [2**53 + 3])
    with pytest.raises(DataError, match="integers that float32 can"):
        fit([values], {"x": Quantiles(0.0, 1.0, nan=nan)})


@settings(max_examples=15)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=3, unique=True).map(sorted),
    st.lists(
        st.tuples(*[st.one_of(st.integers(-9, 9).map(float), st.just(np.nan))] * 3),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["ignore", "impute"]),
)
def test_each_feature_has_its_own_quantiles_and_its_own_missing_values(levels, rows, nan):
    values = (np.array([(1.0, 20.0, 3.0), *rows]) * [1, 10, 100]).astype(np.float32)
    found = fit([{"x": values[:1]}, {"x": values[1:]}], {"x": Quantiles(*levels, nan=nan)})["x"]
    due = np.nanquantile(values.astype(np.float64), levels, axis=0)
    np.testing.assert_allclose(found.values, due, rtol=1e-12, atol=1e-12)
    made = found.apply(values, np.array([len(values)]), None)
    low = due[0] if len(levels) > 1 or levels[0] < 0.5 else -np.inf
    high = due[-1] if len(levels) > 1 or levels[0] >= 0.5 else np.inf
    clipped = np.clip(values, low, high)
    if nan == "impute":
        clipped = np.where(np.isnan(values), np.nanmedian(values, axis=0), clipped)
    np.testing.assert_allclose(made, clipped, rtol=1e-6, atol=1e-6)


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=4, unique=True).map(sorted),
    st.lists(st.integers(-120, 120), min_size=1, max_size=30),
    st.sampled_from(["float64", "float32", "int16", "int64", "uint8", "bool"]),
    st.sampled_from(["error", "ignore", "impute"]),
)
def test_any_levels_of_any_numbers_are_those_of_numpy(levels, numbers, dtype, nan):
    values = np.array(numbers).astype(dtype)
    rows = [{"x": np.atleast_1d(part)} for part in np.array_split(values, 2) if len(part)]
    found = fit(rows, {"x": Quantiles(*levels, nan=nan)})["x"]
    due = np.quantile(values.astype(np.float64), levels)
    np.testing.assert_allclose(found.values, due, rtol=1e-12, atol=1e-12)
    if dtype.startswith("float") and nan != "error":
        missing = np.append(values, np.nan).astype(dtype)
        again = fit([missing], {"x": Quantiles(*levels, nan=nan)})["x"]
        assert again.values.tolist() == found.values.tolist()
        last = again.apply(missing, np.array([len(missing)]), None)[-1]
        median = np.median(values.astype(np.float64)).astype(dtype)
        assert np.isnan(last) if nan == "ignore" else np.isclose(last, median)


def test_robust_scales_large_integers_that_float64_tells_apart():
    values = 10**12 + np.arange(9)
    found = fit([values], {"x": Robust()})["x"]
    assert found.apply(values, np.array([9]), None).tolist() == ((np.arange(9) - 4) / 4).tolist()


@pytest.mark.parametrize("estimator", [Robust(), Robust(by="site"), Quantiles(0.5), Log1p()])
def test_a_nan_is_told_with_how_to_allow_it(estimator):
    told = "values must be numbers, but one is nan. Fit with nan='ignore' or"
    with pytest.raises(DataError, match=told):
        fit([{"x": [1.0, np.nan], "site": "a"}], {"x": estimator})


@pytest.mark.parametrize("estimator", [Robust(), MeanStd(), Log1p()])
def test_a_nan_of_a_batch_is_told_with_how_to_allow_it(estimator):
    transform = fit([[1.0, 2.0]], {"x": estimator}).transform()
    with pytest.raises(DecodeError, match="has a NaN, which nan='error' does not allow"):
        transform({"x": np.array([[np.nan]])}, None)


def test_robust_by_group_needs_a_sequence():
    view = open_store([{"x": [1.0], "site": "a"}]).take([])
    with pytest.raises(DataError, match=r"'x' must have at least one value to fit, but the view"):
        fit(view, {"x": Robust(by="site")})
