"""Statistics and then a transform: as if the data had been standardized before."""

import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqdata import (
    ConfigError,
    Fixed,
    Labels,
    Loader,
    MeanStd,
    Ragged,
    Vocabulary,
    columnar,
    fit,
    open_store,
)
from seqdata.fitting.compose import then_transform
from seqdata.loading.transforms.declare import is_by_timestep, is_columnar
from seqdata.protocols import Field

ROWS = [
    {
        "x": np.array([[1.0, 5.0], [3.0, 9.0], [8.0, 2.0]])[: 1 + number % 3],
        "scale": 2.0 * number,
        "corner": np.array([number, 1.0]),
        "text": ("to be", "or not")[number % 2],
        "label": "ab"[number % 2],
        "site": "nnss"[number % 4],
    }
    for number in range(8)
]
STORE = open_store(ROWS, axes={"x": "time", "corner": None})
WHAT = {
    "x": MeanStd(by="site"), "scale": MeanStd(), "corner": MeanStd(), "text": Vocabulary(),
    "label": Labels(),
}  # fmt: skip
STATS = fit(STORE, WHAT, progress=False)


def double(sequence, rng):
    return {**sequence, "x": 2 * sequence["x"]}


@columnar
def double_columns(columns, seeds):
    x = columns["x"]
    return {**columns, "x": Ragged(2 * x.values, x.lengths)}


def standardize(row):
    """Return a row as the statistics of one field after the other make it."""
    columns = {
        "x": Ragged(row["x"], np.array([len(row["x"])])), "scale": np.array([row["scale"]]),
        "corner": row["corner"][None], "text": [row["text"]], "label": [row["label"]],
        "site": [row["site"]],
    }  # fmt: skip
    found = STATS.transform()(columns, None)
    return {
        name: each.values if isinstance(each, Ragged) else each[0] for name, each in found.items()
    }


@given(st.integers(0, len(ROWS) - 1), st.lists(st.sampled_from([*WHAT]), unique=True))
def test_a_sequence_is_standardized_field_by_field_before_the_transform(number, names):
    row = ROWS[number]
    given_row = {name: row[name] for name in [*names, "site"]}
    seen = []

    def look(sequence, rng):
        seen.append((sequence, rng))
        return {"seen": 1}

    composed = then_transform(STATS, look, STORE.fields)
    assert composed(given_row, "rng") == {"seen": 1}
    ((sequence, rng),) = seen
    assert rng == "rng"
    assert sequence.keys() == given_row.keys()
    due = standardize(row)
    for name in names:
        np.testing.assert_array_equal(sequence[name], due[name])
    assert sequence["site"] == row["site"]


def test_a_columnar_transform_and_that_of_a_sequence_make_the_same_batches():
    found = []
    for then in (double, double_columns):
        composed = then_transform(STATS, then, STORE.fields)
        assert is_columnar(composed) == (then is double_columns)
        found.append(list(Loader(STORE, Fixed(3), transform=composed, seed=1)))
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            if isinstance(one[name], torch.Tensor):
                assert torch.equal(one[name], other[name])
            else:
                assert one[name] == other[name]
    (batch, *_) = found[0]
    row = int(batch.ids[0])
    due = 2 * standardize(ROWS[row])["x"]
    np.testing.assert_allclose(batch["x"][0, : len(due)], due)


def test_a_columnar_transform_gets_the_seeds():
    seen = []

    @columnar
    def look(columns, seeds):
        seen.append((columns["scale"], seeds))
        return {}

    then_transform(STATS, look, STORE.fields)({"scale": np.array([14.0])}, "seeds")
    ((scale, seeds),) = seen
    assert seeds == "seeds"
    assert scale.tolist() == STATS.transform()({"scale": np.array([14.0])}, None)["scale"].tolist()


def test_without_a_transform_statistics_are_all():
    assert then_transform(STATS, None, STORE.fields) == STATS.transform()


class Cropped:
    """A transform that shortens sequences, with an axis of its own."""

    by_timestep = True

    def __init__(self, fields=()):
        self.fields = fields
        self.axes = {"crop": "crops"}

    def bind_fields(self, fields):
        return Cropped(tuple(fields))

    def lengths(self, lengths):
        return lengths // 2

    def __call__(self, sequence, rng):
        return sequence


@columnar
class CroppedColumns(Cropped):
    """The same for columns."""

    def bind_fields(self, fields):
        return CroppedColumns(tuple(fields))


@pytest.mark.parametrize("then", [Cropped(), CroppedColumns()])
def test_both_declare_and_lengths_are_those_of_the_second(then):
    numbers = fit(STORE, {"scale": MeanStd()}, progress=False)
    for composed in (
        then_transform(STATS, then, STORE.fields),
        pickle.loads(pickle.dumps(then_transform(STATS, then, STORE.fields))),
    ):
        assert composed.axes == {"text": "text", "crop": "crops"}
        assert composed.statistics == STATS
        assert composed.lengths(np.array([6])).tolist() == [3]
        assert not hasattr(composed, "max_length")
        assert not hasattr(composed, "anything")
    assert not is_by_timestep(composed)  # token ids need the whole text
    assert is_by_timestep(then_transform(numbers, then, STORE.fields))
    plain = columnar(lambda columns, seeds: columns) if is_columnar(then) else double
    assert not is_by_timestep(then_transform(numbers, plain, STORE.fields))


@pytest.mark.parametrize("then", [Cropped(), CroppedColumns()])
def test_the_transform_is_bound_to_the_fields_at_once_and_to_others_later(then):
    composed = then_transform(STATS, then, STORE.fields)
    assert composed.then.fields == tuple(STORE.fields)
    again = composed.bind_fields({"y": Field("int64", (), None)})
    assert again.then.fields == ("y",)
    assert type(again) is type(composed)


@pytest.mark.parametrize(
    ("statistics", "shown"),
    [({"x": MeanStd(), "y": Labels()}, "`statistics` (x, y)"), (lambda store: {}, "`statistics`")],
)
def test_statistics_that_are_not_fitted_make_no_batch(statistics, shown):
    unfitted = then_transform(statistics, double, STORE.fields)
    assert is_columnar(unfitted)
    message = (
        f"datamodule: {shown} are fitted on `train`, but `train` is None, and no checkpoint was "
        "loaded. Pass `train`, `ckpt_path`, or fitted statistics"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        unfitted({}, None)
