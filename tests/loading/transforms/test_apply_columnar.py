"""Columnar transforms: what they see, what they may give."""

import numpy as np
import pytest

from seqdata.collators.varlen import Varlen
from seqdata.errors import ConfigError, DecodeError
from seqdata.loading.transforms.declare import Ragged, columnar
from seqdata.policies.fixed import Fixed
from seqdata.policies.packed import Packed
from seqdata.storage.memory import MemoryStore
from tests.loading.transforms.samples import LONG, halve, make_batch


@columnar
def halve_all(columns, seeds):
    x = columns["x"]
    keep = x.lengths // 2 * 2
    places = np.arange(len(x.values)) - np.repeat(np.cumsum(x.lengths) - x.lengths, x.lengths)
    values = x.values[places < np.repeat(keep, x.lengths)].reshape(-1, 2).sum(axis=1)
    return {**columns, "x": Ragged(values, x.lengths // 2), "seed": seeds.astype(np.int64)}


halve_all.lengths = halve.lengths


def test_a_columnar_transform_sees_the_batch_by_field():
    seen = {}

    @columnar
    def look(columns, seeds):
        seen.update(columns, seeds=seeds)
        return columns

    made = make_batch(look).validate()
    assert seen["x"].values.tolist() == [40, 41, 42, 43, 20, 21, 30, 31, 32]
    assert seen["x"].lengths.tolist() == [4, 2, 3]
    assert seen["y"].tolist() == [4, 2, 3]
    assert seen["v"].shape == (3, 2)
    assert seen["text"].lengths.tolist() == [4, 4, 4]
    assert seen["id"] == ["s4", "s2", "s3"]
    assert (seen["seeds"].dtype, seen["seeds"].shape) == (np.uint64, (3,))
    plain = make_batch(None)
    assert made["x"].tolist() == plain["x"].tolist()
    assert made["v"].tolist() == plain["v"].tolist()
    assert made.lengths_of["text"].tolist() == [4, 4, 4]


@pytest.mark.parametrize("collator", [None, Varlen()])
@pytest.mark.parametrize("shift", [0, 1])
def test_a_columnar_transform_gives_what_one_by_one_gives(shift, collator):
    for policy in (
        Fixed(9, shuffle=False, max_length=2, too_long="split"),
        Fixed(9, shuffle=False),
        Packed(rows=1, row_length=9),
    ):
        options = {"store": LONG, "policy": policy, "shift": shift, "collator": collator}
        one, all_ = make_batch(halve, **options), make_batch(halve_all, **options).validate()
        assert one["x"].tolist() == all_["x"].tolist()
        assert one.lengths.tolist() == all_.lengths.tolist()
        assert not shift or one["targets"].tolist() == all_["targets"].tolist()


def test_a_columnar_transform_may_make_text_and_what_is_per_sequence():
    @columnar
    def make(columns, seeds):
        return {"sum": np.add.reduceat(columns["x"].values, [0, 4, 6]), "id": tuple(columns["id"])}

    made = make_batch(make)
    assert made["sum"].tolist() == [166, 41, 93]
    assert made["id"] == ["s4", "s2", "s3"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda c: None, "must return a dict of columns for all 3 sequences, but returned None"),
        (lambda c: [c], "must return a dict of columns for all 3 sequences, but returned list"),
        (
            lambda c: {"y": c["y"][1:]},
            "field 'y' must have one value for each of 3 sequences, but has 2",
        ),
        (
            lambda c: {"y": ["a"]},
            "field 'y' must have one value for each of 3 sequences, but has 1",
        ),
        (
            lambda c: {"y": 3},
            "field 'y' must be a Ragged, an array of numbers or a list of strings, but is 3",
        ),
        (
            lambda c: {"y": ["a", 1, 2]},
            "field 'y' must be a Ragged, an array of numbers or a list of strings, but is",
        ),
        (
            lambda c: {"x": Ragged(c["x"].values, c["x"].lengths[1:])},
            r"but are int64\[2\]\. Change",
        ),
        (lambda c: {"x": Ragged(c["x"].values[1:], c["x"].lengths)}, r"values, 8, .* a sum of 9"),
        (
            lambda c: {"x": Ragged(c["x"].values, -c["x"].lengths)},
            "the lengths of field 'x' must be 3 integers, one for each",
        ),
        (lambda c: {"x": Ragged(c["x"].values, c["x"].lengths / 1)}, r"but are float64\[3\]"),
        (
            lambda c: {"x": Ragged(c["x"].values.astype(str), c["x"].lengths)},
            "must be a Ragged of numbers, but is",
        ),
    ],
)
def test_a_columnar_result_that_does_not_fit_is_an_error(make, message):
    transform = columnar(lambda columns, seeds: make(columns))
    match = f"transform of sequences 's4', 's2', 's3': (.|\n)*{message}(.|\n)*epoch 0, batch 0"
    with pytest.raises(DecodeError, match=match):
        make_batch(transform)


def test_a_columnar_length_that_was_not_planned_names_the_sequence():
    @columnar
    def shorten(columns, seeds):
        x = columns["x"]
        return {"x": Ragged(x.values[:-1], x.lengths - np.array([0, 0, 1]))}

    with pytest.raises(
        DecodeError,
        match=(
            r"of sequence 's3': returned 2 timesteps .* 3 are planned. Change the "
            r"transform, or declare with"
        ),
    ):
        make_batch(shorten)


def test_what_a_columnar_transform_raises_says_where():
    @columnar
    def broken(columns, seeds):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        make_batch(
            broken, store=MemoryStore.from_sequences([[1]] * 7), policy=Fixed(7, shuffle=False)
        )
    assert caught.value.__notes__ == [
        "in the transform of sequences '0', '1', '2', '3', '4', …",
        "in epoch 0, batch 0 (step 0, rank 0 of 1)",
    ]


def test_columnar_marks_functions_only():
    with pytest.raises(ConfigError, match="columnar: `transform` must be a function"):
        columnar("x")
