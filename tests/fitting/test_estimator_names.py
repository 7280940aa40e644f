"""Estimators by name: that of their class, a scale, or an import path with arguments."""

import re
from argparse import Namespace

import pytest

from seqdata import ConfigError, Labels, Log1p, MeanStd, Quantiles, Robust, Vocabulary, fit
from seqdata.fitting.estimator_names import ESTIMATORS, resolve_estimators


@pytest.mark.parametrize(
    ("named", "due"),
    [
        ("MeanStd", MeanStd()),
        ("standard", MeanStd()),
        ("robust", Robust()),
        ("log1p", Log1p()),
        ("seqdata.Labels", Labels()),
        ("seqdata.fitting.vocabulary.Vocabulary", Vocabulary()),
        ({"class_path": "Robust"}, Robust()),
        ({"class_path": "Robust", "init_args": None}, Robust()),
        ({"class_path": "seqdata.Robust", "init_args": {"nan": "ignore"}}, Robust(nan="ignore")),
        (
            {"class_path": "Quantiles", "init_args": {"levels": [0.1, 0.9], "nan": "impute"}},
            Quantiles(0.1, 0.9, nan="impute"),
        ),
        (
            Namespace(class_path="Robust", init_args=Namespace(nan="ignore")),
            Robust(nan="ignore"),
        ),  # as jsonargparse has it
    ],
)
def test_a_name_is_the_estimator_with_its_arguments(named, due):
    assert resolve_estimators({"x": named}) == {"x": due}


def test_every_name_makes_an_estimator():
    for name, kind in ESTIMATORS.items():
        arguments = {"levels": [0.5]} if kind is Quantiles else {}
        found = resolve_estimators({"x": {"class_path": name, "init_args": arguments}})["x"]
        assert type(found) is kind


def test_what_is_no_name_stays_as_it_is():
    def function(store):
        return {}

    fitted = fit([[1.0, 2.0]], {"x": MeanStd()})
    for given in (None, function, fitted):
        assert resolve_estimators(given) is given
    estimator = Robust()
    assert resolve_estimators({"x": estimator, "y": 3}) == {"x": estimator, "y": 3}


def test_the_given_mapping_is_not_changed():
    given = {"x": {"class_path": "Quantiles", "init_args": {"levels": [0.5]}}}
    assert resolve_estimators(given) == resolve_estimators(given)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("MeanStdd", " must be one of MeanStd, Robust, Log1p, Quantiles, Labels, Vocabulary, standard, robust, log1p, or an import path, but is 'MeanStdd'. did you mean 'MeanStd'?"),  # noqa: E501
        ("seqdata.Abc", " must be one of MeanStd, Robust, Log1p, Quantiles, Labels, Vocabulary, standard, robust, log1p, or an import path, but is 'seqdata.Abc'"),  # noqa: E501
        ("nowhere.MeanStd", ": 'nowhere.MeanStd' cannot be imported (No module named 'nowhere')"),
        ("seqdata.fitting.scales.Rob", ": 'seqdata.fitting.scales.Rob' cannot be imported (mod"),
        ({"init_args": {}}, " must be a name, or class_path and init_args, but is {'init_args': {}}"),  # noqa: E501
        ({"class_path": "MeanStd", "init_args": {"bye": 1}}, ": MeanStd does not take the given ar"),  # noqa: E501
    ],
)  # fmt: skip
def test_what_is_no_estimator_is_refused_with_its_field(named, message):
    expected = f"datamodule: the estimator of 'x' in `statistics`{message}"
    with pytest.raises(ConfigError, match="^" + re.escape(expected)):
        resolve_estimators({"y": "MeanStd", "x": named})
