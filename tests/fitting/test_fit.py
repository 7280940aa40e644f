"""Statistics are the same bit for bit, whatever the shards, workers, chunks and order."""

import re
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqdata import (
    ConfigError,
    DataError,
    Fixed,
    Labels,
    Loader,
    MeanStd,
    Quantiles,
    Ragged,
    Vocabulary,
    concat,
    fit,
    measure_lengths,
    open_store,
    split,
    write_store,
)
from seqdata.errors import UnknownNameError
from seqdata.fitting import fit as fit_module
from tests.fitting.samples import ROWS, WHAT, apply
from tests.properties.counts import examples


def values(stats):
    return stats.plain["fields"]


@pytest.fixture(scope="module")
def fitted():
    return fit(ROWS, WHAT)


def test_fitted_values_are_those_of_numpy(fitted):
    x = np.concatenate([row["x"] for row in ROWS]).astype("float64")
    load = np.concatenate([row["load"] for row in ROWS])
    np.testing.assert_allclose(fitted["x"].mean, x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(fitted["x"].std, x.std(axis=0), rtol=1e-12)
    assert fitted["load"].values.tolist() == np.quantile(load, [0.01, 0.5, 0.99]).tolist()
    assert fitted["label"].classes == [0, 1, 2]
    assert fitted["label"].counts.tolist() == [14, 13, 13]
    words = " ".join(row["text"] for row in ROWS).split()
    assert fitted["text"].tokens == sorted(set(words), key=lambda word: (-words.count(word), word))


@pytest.mark.slow
def test_workers_shards_and_order_change_no_bit(fitted, tmp_path):
    stored = write_store(str(tmp_path / "store"), ROWS, shard_bytes=1000)
    assert len(stored.shards) > 1
    assert fit(stored, WHAT, num_workers=2) == fitted
    assert fit(ROWS[::-1], WHAT).digest == fitted.digest
    assert values(fit(concat([ROWS[:7], ROWS[7:]]), WHAT)) == values(fitted)


def test_small_chunks_add_up_to_the_whole(monkeypatch):
    rows = ROWS[:7]
    whole = values(fit(rows, WHAT))
    monkeypatch.setattr(fit_module, "_CHUNK_NUMBERS", 7)
    monkeypatch.setattr(fit_module, "_CHUNK_SEQUENCES", 2)
    assert values(fit(rows, WHAT)) == whole
    assert values(fit(rows[::-1], WHAT)) == whole


def test_tokens_of_one_count_are_in_order():
    rows = [{"x": [1], "t": "c b"}, {"x": [1], "t": "a b"}]
    assert fit(rows, {"t": Vocabulary()})["t"].tokens == ["b", "a", "c"]


@cache
def fitted_whole():
    return values(fit(ROWS[:15], WHAT))


@examples(0.0075, here=8)
@given(st.integers(1, 200), st.integers(1, 50), st.randoms(use_true_random=False))
def test_any_chunks_and_order_change_no_bit(size, sequences, random):
    rows = ROWS[:15]
    whole = fitted_whole()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_module, "_CHUNK_NUMBERS", size)
        patch.setattr(fit_module, "_CHUNK_SEQUENCES", sequences)
        assert values(fit(random.sample(rows, len(rows)), WHAT)) == whole


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "uint8", "int64", "uint64", "bool"]
)
@pytest.mark.parametrize("bits", [1 << 22, 16])
def test_quantiles_are_those_of_numpy(dtype, bits, monkeypatch):
    monkeypatch.setattr("seqdata.fitting.quantiles._COUNTS_IN_MEMORY", bits)
    rng = np.random.default_rng(1)
    numbers = rng.normal(0, 50, (57, 2)).astype(dtype)
    levels = (0.0, 0.1, 0.25, 0.5, 0.9, 1.0)
    found = fit([numbers], {"x": Quantiles(*levels)})["x"].values
    expected = np.quantile(numbers.astype("float64"), levels, axis=0)
    assert found.tolist() == expected.tolist()


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=30), st.floats(0, 1))
def test_quantiles_lie_between_their_neighbours(numbers, level):
    found = float(fit([numbers], {"x": Quantiles(level)})["x"].values[0])
    place = (len(numbers) - 1) * level
    ordered = sorted(numbers)
    assert ordered[int(place)] <= found <= ordered[min(int(place) + 1, len(numbers) - 1)]


def test_only_the_view_is_looked_at():
    parts = split(ROWS, {"train": 0.5, "val": 0.5})
    train = [ROWS[number] for number in parts["train"].numbers]
    stats = fit(parts["train"], WHAT)
    assert values(stats) == values(fit(train, WHAT))
    assert stats.fitted_on["fingerprint"] == parts["train"].fingerprint
    assert stats.fitted_on["sequences"] == len(train)
    assert stats.fitted_on["timesteps"] == sum(len(row["x"]) for row in train)
    assert stats == fit(train, WHAT)


def test_transformed_values_have_mean_0_and_deviation_1(fitted):
    lengths = np.array([len(row["x"]) for row in ROWS])
    x = Ragged(np.concatenate([row["x"] for row in ROWS]), lengths)
    sites = [row["site"] for row in ROWS]
    changed = apply(fitted, x=x, site_x=x, site=sites)
    assert changed["x"].values.dtype == np.float32
    assert changed["x"].lengths is lengths
    np.testing.assert_allclose(changed["x"].values.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(changed["x"].values.std(axis=0), 1, rtol=1e-6)
    north = np.repeat(np.array(sites) == "north", lengths)
    for chosen in (north, ~north):
        np.testing.assert_allclose(changed["site_x"].values[chosen].mean(axis=0), 0, atol=1e-6)


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_the_inverse_brings_values_back(fitted, make):
    x = ROWS[1]["x"].astype("float64")
    ragged = Ragged(x, np.array([len(x)]))
    changed = apply(fitted, x=ragged, site_x=ragged, site=["north"])
    predictions = {
        "x": make(changed["x"].values),
        "site_x": make(changed["site_x"].values[None]),
        "site": ["north"],
        "other": 7,
    }
    found = fitted.inverse()(predictions)
    np.testing.assert_allclose(np.asarray(found["x"]), x, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(found["site_x"][0]), x, rtol=1e-12)
    assert type(found["x"]) is type(predictions["x"])
    assert found["other"] == 7


def test_clipped_labels_and_tokens(fitted):
    low, _, high = fitted["load"].values
    load = Ragged(np.array([-9.0, 0.0, 9.0], dtype="float32"), np.array([3]))
    changed = apply(fitted, load=load, label=np.array([2, 0]), text=["be of to", ""])
    assert changed["load"].values.tolist() == [np.float32(low), 0.0, np.float32(high)]
    assert changed["label"].tolist() == [2, 0]
    tokens = fitted["text"].tokens
    ids = [tokens.index("be") + 2, 1, tokens.index("to") + 2]
    assert changed["text"].values.tolist() == ids
    assert changed["text"].lengths.tolist() == [3, 0]
    assert fitted["text"].inverse(changed["text"].values) == ["be", None, "to"]
    assert fitted["label"].inverse(torch.tensor([1, 2])).tolist() == [1, 2]
    assert fitted["load"].inverse(3.0) == 3.0
    assert fitted["text"].size == 7


def test_a_loader_delivers_what_was_transformed(fitted):
    loader = Loader(open_store(ROWS), Fixed(4, empty="drop"), transform=fitted.transform())
    for batch in loader:
        for row, number in enumerate(batch.ids.tolist()):
            words = ROWS[number]["text"].split()
            ids = batch["text"][row, : len(words)]
            assert fitted["text"].inverse(ids) == words
            mean, std = fitted["x"].mean, fitted["x"].std
            x = batch["x"][row, : len(ROWS[number]["x"])].numpy()
            np.testing.assert_allclose(x, (ROWS[number]["x"] - mean) / std, rtol=1e-5, atol=1e-6)


def test_token_ids_are_planned_on_where_they_run_along_its_axis():
    rows = [{"raw": np.arange(3), "text": "to be"}, {"raw": np.arange(9), "text": "or not to"}]
    view = open_store(rows)
    stats = fit(view, {"text": Vocabulary(axis="time")})

    measured = measure_lengths(view.select("raw", "text"), keep_text(stats))
    assert measured.lengths.tolist() == [2, 3]


def keep_text(stats):
    from seqdata import columnar

    @columnar
    def tokens(columns, seeds):
        return {"text": stats.transform()(columns, seeds)["text"]}

    tokens.axes = stats.transform().axes
    return tokens


def test_characters_and_integers_are_tokens_too():
    rows = [{"x": np.array([7, 7, 300]), "t": "abba"}, {"x": np.array([7]), "t": "b\0 c"}]
    what = {"x": Vocabulary(), "t": Vocabulary(tokens="characters")}
    stats = fit(rows, what)
    assert stats["x"].tokens == [7, 300]
    assert stats["t"].tokens == ["b", "a", "\0", " ", "c"]
    changed = apply(stats, x=Ragged(np.array([300, 8]), np.array([2])), t=["cab"])
    assert changed["x"].values.tolist() == [3, 1]
    assert changed["t"].values.tolist() == [6, 3, 2]
    assert stats.transform().axes == {"t": "t"}


def test_texts_that_hold_the_boundary_are_split_all_the_same():
    texts = ["a \0 b", "\0", "", "c\0 d"]
    stats = fit([{"x": [1], "t": text} for text in texts], {"t": Vocabulary()})
    changed = apply(stats, t=texts)
    assert changed["t"].lengths.tolist() == [3, 1, 0, 2]
    assert stats["t"].inverse(changed["t"].values) == " ".join(texts).split()
    assert apply(stats, t=[])["t"].lengths.tolist() == []


def test_labels_of_texts():
    rows = [{"x": [1], "y": label} for label in ("no", "yes", "no")]
    stats = fit(rows, {"y": Labels(unknown=-100)})
    assert apply(stats, y=["yes", "perhaps"])["y"].tolist() == [1, -100]
    assert stats["y"].inverse(np.array([[0, 1]])) == [["no", "yes"]]


# errors


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MeanStd(nan="skip"), "MeanStd: `nan` must be 'error', 'ignore' or 'impute', but"),
        (lambda: MeanStd(unknown="0"), "MeanStd: `unknown` must be 'error' or 'overall', but is"),
        (
            lambda: Quantiles(),
            "Quantiles: `levels` must be one or more rising numbers",
        ),
        (
            lambda: Quantiles(0.9, 0.1),
            "Quantiles: `levels` must be one or more rising numbers",
        ),
        (
            lambda: Quantiles(1.5),
            "Quantiles: `levels` must be one or more rising numbers",
        ),
        (lambda: Quantiles(0.5, nan=0), "Quantiles: `nan` must be 'error', 'ignore' or 'impute'"),
        (lambda: Labels(unknown=0.5), "Labels: `unknown` must be 'error' or an integer such as"),
        (lambda: Vocabulary(0), "Vocabulary: `min_count` must be an integer of at least 1, but is"),
        (lambda: Vocabulary(max_size=0), "Vocabulary: `max_size` must be an integer of at least 1"),
        (lambda: Vocabulary(tokens="x"), "Vocabulary: `tokens` must be 'words' or 'characters'"),
        (lambda: Vocabulary(unknown=7), "Vocabulary: `unknown` must be 'token' or 'error', but is"),
        (lambda: fit(ROWS, {}), "fit: `fields` must map fields to estimators, but is {}"),
        (lambda: fit(ROWS, {"x": MeanStd}), "fit: the estimator of 'x' must be MeanStd(), Robust"),
        (lambda: fit(ROWS, WHAT, num_workers=-1), "fit: `num_workers` must be an integer of at le"),
        (lambda: fit(ROWS, {"text": MeanStd()}), "fit: field 'text' of MeanStd must be of numbers"),
        (lambda: fit(ROWS, {"text": Quantiles(0.5)}), "field 'text' of Quantiles must be of numb"),
        (lambda: fit(ROWS, {"load": Labels()}), "field 'load' of Labels must be of strings or of"),
        (lambda: fit(ROWS, {"x": Labels()}), "but is of float32 of shape (3,)"),
        (lambda: fit(ROWS, {"x": Vocabulary()}), "field 'x' of Vocabulary must be of `str` or of"),
        (
            lambda: fit(ROWS, {"x": MeanStd(by="load")}),
            "fit: `by` of 'x' must be a field with one string or integer per sequence, but is",
        ),
    ],
)
def test_arguments_that_are_refused(make, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make()


def test_names_that_are_not_there():
    with pytest.raises(UnknownNameError, match=r"fit: no field 'lable'.*did you mean 'label'"):
        fit(ROWS, {"lable": Labels()})
    with pytest.raises(UnknownNameError, match="fit: `by` of 'x': no field 'sites'"):
        fit(ROWS, {"x": MeanStd(by="sites")})
    with pytest.raises(UnknownNameError, match="statistics: no field 'y'"):
        fit(ROWS, {"x": MeanStd()})["y"]


def test_a_field_without_values_is_refused():
    with pytest.raises(DataError, match="field 'x' must have at least one value of each feature"):
        fit([[np.nan, np.nan]], {"x": MeanStd(nan="ignore")})


def test_a_view_that_carries_a_transform_is_refused():
    view = measure_lengths([[1, 2], [3]], lambda sequence, rng: sequence)
    with pytest.raises(
        ConfigError,
        match=r"the view must not carry a transform, but carries .*lam.*\. Statistics describe "
        r"stored data; .* Fit on the view before `measure_lengths`, or write the results as a st",
    ):
        fit(view, {"x": MeanStd()})


def test_numbers_that_are_not_those_of_classes_or_tokens(fitted):
    with pytest.raises(
        ConfigError, match=r"a class index of 'label' must be in \[0, 3\), but is 3"
    ):
        fitted["label"].inverse([0, 3])
    with pytest.raises(ConfigError, match="dtype of class indices must be an integer type, but is"):
        fitted["label"].inverse([0.5])
    with pytest.raises(ConfigError, match=r"ids of 'text' must be within \[0, 7\), but is 2 to 7"):
        fitted["text"].inverse([2, 7])


def test_a_long_fit_shows_the_bar(capfd):
    fit(ROWS, {"x": MeanStd(), "load": Quantiles(0.5)}, progress=True)
    shown = capfd.readouterr().err
    assert "fitting" in shown
    assert "pass 2" in shown


@pytest.mark.parametrize("num_workers", [0, 1])
def test_context_is_of_another_part_and_not_counted(num_workers):
    rows = [{"x": np.arange(20.0), "y": np.arange(20) % 3} for _ in range(3)]
    parts = split(rows, {"test": "..10", "train": "10.."}, along="time", context=4)
    alone = split(rows, {"test": "..10", "train": "10.."}, along="time")
    what = {"x": MeanStd(), "y": Labels()}
    for view, expected in (
        (parts["train"], alone["train"]),
        (parts["train"].take([2, 0]), alone["train"].take([2, 0])),
        (concat([parts["train"], parts["test"]]), concat([alone["train"], alone["test"]])),
    ):
        found, must = (fit(one, what, num_workers=num_workers) for one in (view, expected))
        assert found["x"].mean == must["x"].mean
        assert found["x"].std == must["x"].std
        assert found["y"].counts.tolist() == must["y"].counts.tolist()


def test_a_field_that_is_empty_everywhere_is_told():
    store = open_store([{"x": np.ones(3), "t": np.zeros(0)}], axes={"x": "time", "t": "text"})
    with pytest.raises(DataError, match="'t'"):
        fit(store, {"t": MeanStd()})
