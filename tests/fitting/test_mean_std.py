"""MeanStd: means and deviations by feature and by group, and values in the unit of the data."""

import numpy as np
import pytest
import torch

from seqdata import MeanStd, fit
from seqdata.errors import ConfigError, DataError, DecodeError

X = np.random.default_rng(1).normal(3.0, 2.0, size=(6, 4, 2)).astype("f4")
SITES = ["a", "b", "a", "c", "b", "a"]


def fitted(**options):
    rows = [{"x": x, "site": site} for x, site in zip(X, SITES, strict=True)]
    return fit(rows, {"x": MeanStd(**options)}, progress=False)["x"]


def test_they_are_those_of_the_population_by_feature():
    found = fitted()
    np.testing.assert_allclose(found.mean, X.astype("f8").mean((0, 1)), rtol=1e-12)
    np.testing.assert_allclose(found.std, X.astype("f8").std((0, 1)), rtol=1e-12)


def test_each_group_is_standardized_by_its_own():
    found = fitted(by="site")
    assert found.groups == ["a", "b", "c"]
    made = found.apply(X.reshape(-1, 2), np.full(6, 4), SITES).reshape(X.shape)
    for site in "abc":
        rows = made[[site == each for each in SITES]]
        np.testing.assert_allclose(rows.mean((0, 1)), 0, atol=1e-6)
        np.testing.assert_allclose(rows.std((0, 1)), 1, atol=1e-6)
    np.testing.assert_allclose(found.inverse(made, SITES), X, atol=1e-5)


def test_a_missing_value_of_a_group_becomes_the_mean_of_the_group():
    rows = [{"x": np.array(x), "site": site} for x, site in (([1.0, 3.0], 10), ([50.0, 90.0], 2))]
    found = fit(rows, {"x": MeanStd(by="site", nan="impute")}, progress=False)["x"]
    values = np.array([np.nan, 3.0, np.nan])
    made = found.apply(values, np.array([2, 1]), np.array([10, 2]))
    assert made.tolist() == [0, 1, 0]
    assert [found.inverse(made[at : at + 1], [site])[0] for at, site in ((0, 10), (2, 2))] == [
        2,
        70,
    ]


def test_groups_are_in_the_order_of_their_values():
    rows = [{"x": np.array([0.0, site]), "site": site} for site in (10, 2, -1)]
    assert fit(rows, {"x": MeanStd(by="site")}, progress=False)["x"].groups == [-1, 2, 10]


def test_the_inverse_of_groups_needs_them():
    with pytest.raises(ConfigError, match="the inverse of 'x' needs 'site' of each sequence"):
        fitted(by="site").inverse(X)


def test_a_group_that_was_not_there_is_an_error_or_as_all():
    values, lengths = X[0], np.array([4])
    with pytest.raises(DecodeError, match="site 'z' of field 'x' had no value in the data"):
        fitted(by="site").apply(values, lengths, ["z"])
    found = fitted(by="site", unknown="overall").apply(values, lengths, ["z"])
    assert found.tolist() == fitted().apply(values, lengths, None).tolist()


def test_lengths_may_be_a_list():
    lengths, groups = [1, 0, 3], ["a", "b", "a"]
    found = fitted(by="site").apply(X[0], lengths, groups)
    assert found.tolist() == fitted(by="site").apply(X[0], np.array(lengths), groups).tolist()


@pytest.mark.parametrize("nan", ["ignore", "impute"])
def test_a_group_without_values_is_one_that_was_not_there(nan):
    rows = [
        {"x": np.array([1.0, 2.0, 3.0]), "site": "a"},
        {"x": np.array([np.nan, np.nan]), "site": "b"},
        {"x": np.array([]), "site": "c"},
    ]
    values, lengths = np.array([10.0, 20.0]), np.array([1, 1, 0])
    found = fit(rows, {"x": MeanStd(by="site", nan=nan)})["x"]
    assert found.groups == ["a"]
    assert found.apply(values, lengths, ["a", "a", "c"]).tolist() == pytest.approx(
        [9.797959, 22.0454]
    )
    with pytest.raises(DecodeError, match="site 'b' of field 'x' had no value in the data"):
        found.apply(values, lengths, ["a", "b", "c"])
    overall = fit(rows, {"x": MeanStd(by="site", nan=nan, unknown="overall")})["x"]
    assert overall.apply(values, lengths, ["b", "c", "a"]).tolist() == pytest.approx(
        [9.797959, 22.0454]
    )


def test_a_group_without_values_of_one_feature_has_those_of_all_or_is_an_error():
    rows = [
        {"x": np.array([[1.0, 5.0], [3.0, 7.0]]), "site": 4},
        {"x": np.array([[7.0, np.nan]]), "site": 9},
    ]
    with pytest.raises(DataError, match=r"each site must .*, but 9 has none of feature 1"):
        fit(rows, {"x": MeanStd(by="site", nan="ignore")})
    found = fit(rows, {"x": MeanStd(by="site", nan="ignore", unknown="overall")})["x"]
    made = found.apply(np.array([[7.0, 7.0]]), np.array([1]), np.array([9]))
    assert made.tolist() == [[0.0, 1.0]]


def test_the_inverse_of_whole_numbers_is_not_cut_to_whole_numbers():
    found = fit([[1.0, 2.0], [6.0]], {"x": MeanStd()}).inverse()
    of_tensor = found({"x": torch.tensor([1, -1])})["x"]
    of_array = found({"x": np.array([1, -1])})["x"]
    assert of_tensor.dtype == torch.float64
    assert of_tensor.tolist() == of_array.tolist() == pytest.approx([5.16024690, 0.83975310])


# the inverse of what does not fit, and of numbers at the ends


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
@pytest.mark.parametrize("shape", [(4, 5, 1), (4, 5), (5, 3), (4, 2, 5), ()])
def test_the_inverse_refuses_values_of_another_shape_than_the_field(make, shape):
    with pytest.raises(
        ConfigError,
        match=r"shape of 'x' for its inverse must be \(\.\.\., 2\), .* zeros elsewhere, and take",
    ):
        fitted().inverse(make(shape))


@pytest.mark.parametrize("shape", [(6,), (6, 4), (6, 4, 3), (6, 4, 1)])
@pytest.mark.parametrize("field_shape", [(), (1,)])
def test_values_of_a_field_of_one_feature_keep_their_shape(shape, field_shape):
    """Squeezed values, and several predictions of each timestep, are of that one feature."""
    rows = [
        {"x": np.array([site, site + 2.0]).reshape(2, *field_shape), "site": site}
        for site in range(6)
    ]
    overall = fit(rows, {"x": MeanStd()}).inverse()({"x": np.zeros(shape)})
    assert overall["x"].tolist() == np.full(shape, 3.5).tolist()
    stats = fit(rows, {"x": MeanStd(by="site")})
    found = stats.inverse()({"x": torch.ones(shape), "site": torch.arange(6)})["x"]
    due = np.broadcast_to(np.arange(6.0).reshape(6, *(1,) * (len(shape) - 1)) + 2, shape)
    assert found.tolist() == due.tolist()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_there_must_be_a_group_for_each_row(count):
    found = fitted(by="site")
    with pytest.raises(ConfigError, match=rf"'site' for .* each of 6 rows, but is {count} values"):
        found.inverse(np.zeros((6, 4, 2)), ["a"] * count)
    with pytest.raises(ConfigError, match=r"must be \(rows, \.\.\., 2\), .* but is \(2,\)"):
        found.inverse(np.zeros(2), ["a", "b"])


def test_packed_values_are_brought_into_the_padded_layout_first():
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.zeros(2, 3, 2), [3, 2], True)
    with pytest.raises(ConfigError, match=r"that of a PackedSequence.*`batch.as_layout`"):
        fitted().inverse(packed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_become_float32_which_holds_the_unit_of_the_data(dtype):
    stats = fit([[1e5, 3e5, 5e5]], {"x": MeanStd()})
    found = stats.inverse()({"x": torch.zeros(3, dtype=dtype)})["x"]
    assert found.dtype == torch.float32
    assert found.tolist() == [3e5] * 3


@pytest.mark.parametrize("scale", [1e-300, 1e-11, 1.0, 2.0**53, 1e300])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_values_come_back_whatever_their_unit(scale, offset, make):
    data = (np.array([1.0, 2.0, 4.0, 9.0]) + offset) * scale
    stats = fit([data], {"x": MeanStd()})
    made = stats["x"].apply(data, np.array([4]), None)
    assert np.isclose(made.mean(), 0, atol=1e-6)
    assert np.isclose(made.std(), 1)
    found = stats.inverse()({"x": make(made.astype(np.float32))})["x"]
    np.testing.assert_allclose(np.asarray(found), data, rtol=1e-6)


def test_times_in_seconds_come_back_to_the_second():
    """Float32 has steps of 128 there."""
    when = 1_700_000_000 + 3600 * np.arange(24)
    stats = fit([when], {"x": MeanStd()})
    made = torch.as_tensor(stats["x"].apply(when, np.array([24]), None))
    found = stats.inverse()({"x": made})["x"]
    assert made.dtype == torch.float32
    np.testing.assert_allclose(found, when, atol=0.1)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("large", [2**53, 2**60, 2**62])
def test_integers_that_floats_do_not_tell_apart_are_refused(dtype, large):
    values = np.arange(large, large + 4).astype(dtype)
    with pytest.raises(DataError, match=r"'x' must have integers that float64 can distinguish"):
        fit([values], {"x": MeanStd()})
    wide = np.array([large, large + large // 1024], dtype=dtype)
    assert fit([wide], {"x": MeanStd()})["x"].std == large // 2048
    assert fit([values[:1]], {"x": MeanStd()})["x"].std == 0


def test_one_feature_that_floats_do_not_tell_apart_is_enough_to_be_refused():
    values = np.array([[1, 2**60], [2, 2**60 + 1], [3, 2**60 + 2]])
    with pytest.raises(DataError, match=r"can distinguish, but has a mean of 1.1529"):
        fit([values], {"x": MeanStd()})


def test_a_value_too_many_deviations_away_is_refused():
    stats = fit([np.array([1e-30, 3e-30])], {"x": MeanStd()})
    with pytest.raises(DecodeError, match=r"field 'x' must be less than 3e\+38 standard"):
        stats["x"].apply(np.array([1e30], dtype=np.float32), np.array([1]), None)
