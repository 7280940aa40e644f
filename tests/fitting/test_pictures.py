"""Fitted statistics in a notebook."""

import numpy as np

from seqdata import Labels, MeanStd, Quantiles, Robust, Vocabulary, fit
from seqdata.fitting.pictures import _iter_charts

ROWS = [
    {"x": np.full((4, 3), at, dtype=np.float32), "z": [float(at)] * 4, "<y>": ["a", "<b>"][at % 2]}
    for at in range(6)
]


def test_each_field_has_a_line_and_those_of_several_values_a_picture():
    found = fit(ROWS, {"x": MeanStd(), "z": Quantiles(0.5), "<y>": Labels()})
    page = found._repr_html_()
    assert f"Statistics {found.digest}" in page
    assert "<td>z</td><td>Quantiles</td><td>0.5: 2.5</td>" in page
    assert "<td>x</td><td>MeanStd</td><td>3 means and standard deviations</td>" in page
    assert "<td>&lt;y&gt;</td><td>Labels</td><td>2 classes, 6 labels</td>" in page
    assert "<b>" not in page.replace("<b>Statistics", "")
    assert page.count("<svg") == 2


def test_pictures_have_the_fitted_numbers():
    found = fit(ROWS, {"x": MeanStd(), "<y>": Labels()})
    (features,) = _iter_charts(found["x"])
    assert features.lines["mean"][1].tolist() == [2.5] * 3
    assert np.allclose(features.lines["mean + std"][1], 2.5 + found["x"].std)
    (classes,) = _iter_charts(found["<y>"])
    assert dict(zip(classes.names, classes.series["labels"].tolist(), strict=True)) == {
        "<b>": 3, "a": 3,
    }  # fmt: skip


def test_quantiles_of_features_and_tokens_are_shown():
    found = fit(ROWS, {"x": Quantiles(0.0, 1.0), "<y>": Vocabulary()})
    page = found._repr_html_()
    assert "2 levels of 3 features" in page
    assert "ids, padding and unknown included" in page
    assert page.count("<svg") == 1


def test_many_classes_are_drawn_in_part():
    rows = [{"x": [1.0], "y": f"class number {at}"} for at in range(100)]
    (chart,) = _iter_charts(fit(rows, {"y": Labels()})["y"])
    assert len(chart.names) == 40
    assert chart.title == "y: 100 classes (the first 40 drawn)"
    assert chart.names[0] == "class numbe…"


def test_robust_statistics_are_shown_as_medians():
    found = fit(ROWS, {"x": Robust(), "z": Robust()})
    page = found._repr_html_()
    assert "<td>x</td><td>Robust</td><td>3 medians and interquartile ranges</td>" in page
    assert "<td>z</td><td>Robust</td><td>median 2.5, interquartile range 3</td>" in page
    (features,) = _iter_charts(found["x"])
    assert list(features.lines) == ["median", "median + IQR", "median - IQR"]
    assert repr(found) == f"Statistics(x: Robust, z: Robust; {found.digest})"
