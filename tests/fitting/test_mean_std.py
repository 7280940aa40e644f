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
