"""Medians, ranges and logarithms: those of NumPy, whatever the groups, NaN and chunks."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqdata import ConfigError, DataError, Log1p, MeanStd, Ragged, Robust, fit
from seqdata.errors import DecodeError
from seqdata.fitting.scales import make_scale
from tests.fitting.samples import apply
from tests.properties.counts import examples

NUMBERS = st.floats(-1e6, 1e6, width=32)


def ragged(*numbers):
    return Ragged(np.array(numbers), np.array([len(numbers)]))


def fit_x(rows, estimator):
    return fit(rows, {"x": estimator}, progress=False)


def quartiles_of(numbers):
    return np.nanquantile(np.asarray(numbers, dtype=np.float64), (0.25, 0.5, 0.75), axis=0)


# Robust


@examples(0.5, here=15)
@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=6), min_size=1, max_size=5))
def test_the_median_and_the_range_are_those_of_numpy(rows):
    low, median, high = quartiles_of(np.concatenate(rows))
    for order in (rows, rows[::-1]):
        found = fit_x(order, Robust())["x"]
        assert found.mean.item() == median
        assert found.std.item() == pytest.approx(high - low)


def test_a_value_is_the_distance_from_the_median_in_ranges():
    stats = fit_x([[0.0, 1.0, 2.0], [3.0, 900.0]], Robust())
    found = apply(stats, x=ragged(2.0, 4.0, 0.0))["x"].values
    assert found.tolist() == [0.0, 1.0, -1.0]
    assert stats.inverse()({"x": found})["x"].tolist() == [2.0, 4.0, 0.0]


def test_values_without_a_range_are_divided_by_1():
    stats = fit_x([[4.0] * 9 + [100.0]], Robust())
    assert apply(stats, x=ragged(4.0, 7.0))["x"].values.tolist() == [0.0, 3.0]


@pytest.mark.parametrize(("stored", "due"), [("f8", "f8"), ("f4", "f4"), ("i8", "f4")])
def test_results_are_floats_of_the_width_of_the_data(stored, due):
    stats = fit_x([np.arange(9, dtype=stored)], Robust())
    values = Ragged(np.arange(3, dtype=stored), np.array([3]))
    assert apply(stats, x=values)["x"].values.dtype == due


@st.composite
def make_grouped(draw):
    """Rows with a group each; two features, some values of which are NaN."""
    value = st.one_of(NUMBERS, st.just(np.nan))
    step = st.tuples(value, value)
    count = draw(st.integers(1, 5))
    rows = [
        {
            "x": np.array(draw(st.lists(step, min_size=1, max_size=4))),
            "site": draw(st.integers(0, 2)),
        }
        for _ in range(count)
    ]
    rows.append({"x": np.array([[1.0, 2.0], [5.0, 7.0]]), "site": 1})
    return rows


@examples(0.5, here=25)
@given(make_grouped())
def test_each_feature_of_a_group_has_its_own_median_or_that_of_all(rows):
    stats = fit_x(rows, Robust(by="site", nan="ignore"))
    found = stats["x"]
    overall = quartiles_of(np.concatenate([row["x"] for row in rows]))
    np.testing.assert_allclose(found.mean, overall[1])
    np.testing.assert_allclose(found.std, overall[2] - overall[0])
    due = {}
    for site in range(3):
        own = [row["x"] for row in rows if row["site"] == site]
        values = np.concatenate(own) if own else np.full((1, 2), np.nan)
        if np.isnan(values).all():
            continue  # such a group is one that was not fitted
        columns = [
            quartiles_of(column) if not np.isnan(column).all() else overall[:, at]
            for at, column in enumerate(values.T)
        ]
        due[site] = np.stack(columns, axis=1)
    assert found.groups == list(due)
    for site, quartiles in due.items():
        scale = quartiles[2] - quartiles[0]
        scale = np.where(scale > 0, scale, 1.0)
        back = stats.inverse()({"x": np.array([[[0.0, 0.0], [1.0, 1.0]]]), "site": [site]})["x"][0]
        np.testing.assert_allclose(back, [quartiles[1], quartiles[1] + scale])


def test_a_group_is_scaled_by_its_own_and_an_unknown_one_by_rule():
    rows = [{"x": [0.0, 1.0, 2.0], "site": "n"}, {"x": [10.0, 30.0, 50.0], "site": "s"}]
    x = Ragged(np.array([2.0, 50.0]), np.array([1, 1]))
    stats = fit_x(rows, Robust(by="site"))
    assert apply(stats, x=x, site=["n", "s"])["x"].values.tolist() == [1.0, 1.0]
    message = (
        "site 'w' of field 'x' had no value in .* fitted. Fit over it, too, or with unknown='o"
    )
    with pytest.raises(DecodeError, match=message):
        apply(stats, x=x, site=["n", "w"])
    stats = fit_x(rows, Robust(by="site", unknown="overall"))
    low, median, high = quartiles_of([0, 1, 2, 10, 30, 50])
    found = apply(stats, x=x, site=["n", "w"])["x"].values
    assert found.tolist() == [1.0, (50 - median) / (high - low)]


@pytest.mark.parametrize(("rule", "due"), [("ignore", [-1.0, np.nan]), ("impute", [-1.0, 0.0])])
@pytest.mark.parametrize("by", [None, "site"])
def test_nan_by_rule(rule, due, by):
    rows = [{"x": [1.0, np.nan, 2.0, 3.0], "site": 0}]
    stats = fit_x(rows, Robust(by=by, nan=rule))
    assert stats["x"].mean == 2
    assert stats.plain["fields"]["x"]["count"] == 3
    found = apply(stats, x=ragged(1.0, np.nan), site=np.array([0]))
    np.testing.assert_array_equal(found["x"].values, due)


@pytest.mark.parametrize("by", [None, "site"])
def test_a_nan_is_an_error_that_names_its_sequence(by):
    rows = [{"id": "good", "x": [1.0], "site": 0}, {"id": "bad", "x": [2.0, np.nan], "site": 0}]
    message = (
        r"fit: sequence 'bad', field 'x': values must be numbers, but one is nan\. Fit "
        r"with nan='ignore' or nan='impute'"
    )
    with pytest.raises(DataError, match=message):
        fit_x(rows, Robust(by=by))
    stats = fit_x(rows[:1], Robust(by=by))
    message = r"^statistics: field 'x' has a NaN, which nan='error' does not allow\. Fit with nan="
    with pytest.raises(DecodeError, match=message):
        apply(stats, x=ragged(np.nan), site=np.array([0]))


@pytest.mark.parametrize("by", [None, "site"])
def test_large_integers_such_as_dates_keep_their_distances(by):
    numbers = np.arange(9) + 2**40  # float32 has steps of 2**17 there
    stats = fit_x([{"x": numbers, "site": 0}], Robust(by=by))
    values = Ragged(numbers, np.array([9]))
    found = apply(stats, x=values, site=np.array([0]))["x"].values
    assert found.dtype == np.float32
    assert found.tolist() == ((np.arange(9) - 4) / 4).tolist()


# Log1p


@given(st.lists(st.floats(-0.999, 1e6), min_size=1, max_size=9))
def test_logarithms_are_those_of_numpy_and_come_back(numbers):
    stats = fit_x([numbers], Log1p())
    found = apply(stats, x=ragged(*numbers))["x"].values
    assert found.tolist() == np.log1p(numbers).tolist()
    for make in (np.asarray, torch.as_tensor):
        back = stats.inverse()({"x": make(found)})["x"]
        assert type(back) is type(make(found))
        np.testing.assert_allclose(back, numbers, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("stored", "due"), [("f8", "f8"), ("f4", "f4"), ("u1", "f4")])
def test_logarithms_are_floats_of_the_width_of_the_data(stored, due):
    values = np.arange(4).astype(stored)
    found = apply(fit_x([values], Log1p()), x=Ragged(values, np.array([4])))["x"].values
    assert found.dtype == due
    np.testing.assert_allclose(found, np.log1p(np.arange(4)), rtol=1e-6)


@pytest.mark.parametrize(("bad", "shown"), [(-1.0, "-1.0"), (-7.5, "-7.5")])
def test_a_value_without_a_logarithm_is_an_error_that_names_its_sequence(bad, shown):
    rows = [{"id": "good", "x": [1.0]}, {"id": "bad", "x": [2.0, bad]}]
    message = (
        f"fit: sequence 'bad', field 'x': values of Log1p must be above -1, but one is {shown}"
    )
    with pytest.raises(DataError, match=re.escape(message) + r".*Use another scale"):
        fit_x(rows, Log1p())
    stats = fit_x(rows[:1], Log1p())
    with pytest.raises(DecodeError, match="'x' must be above -1 to have a logarithm") as caught:
        apply(stats, x=ragged(1.0, bad))
    assert caught.value.details["field"] == "x"


@pytest.mark.parametrize(("rule", "due"), [("ignore", [0.0, np.nan]), ("impute", [0.0, 0.0])])
def test_nan_of_logarithms_by_rule(rule, due):
    stats = fit_x([[1.0, np.nan]], Log1p(rule))
    np.testing.assert_array_equal(apply(stats, x=ragged(0.0, np.nan))["x"].values, due)
    with pytest.raises(DecodeError, match="must be above -1"):
        apply(stats, x=ragged(-2.0))


# Arguments


def test_scales_have_names():
    assert make_scale(None) is None
    assert make_scale("standard") == MeanStd()
    assert make_scale("robust", "site", "ignore") == Robust("site", "ignore", "overall")
    assert make_scale("standard", "site") == MeanStd("site", "error", "overall")
    assert make_scale("log1p", "site", "impute") == Log1p("impute")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Robust(nan="skip"), "Robust: `nan` must be 'error', 'ignore' or 'impute', but"),
        (lambda: Robust(unknown=0), "Robust: `unknown` must be 'error' or 'overall', but is 0"),
        (lambda: Log1p("skip"), "Log1p: `nan` must be 'error', 'ignore' or 'impute', but"),
        (lambda: make_scale("minmax"), "`scale` must be 'standard', 'robust', 'log1p' or None, b"),
        (lambda: fit_x([{"x": ["a"]}], Robust()), "field 'x' of Robust must be of numbers"),
        (lambda: fit_x([{"x": ["a"]}], Log1p()), "field 'x' of Log1p must be of numbers"),
    ],
)
def test_arguments_that_are_refused(make, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make()
