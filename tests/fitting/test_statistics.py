"""What is missing or unknown goes by rule; statistics are copied, saved and read back."""

import hashlib
import pickle
import zlib

import numpy as np
import pytest
import torch

from seqdata import (
    ConfigError,
    DataError,
    Labels,
    Loader,
    MeanStd,
    Quantiles,
    Ragged,
    Statistics,
    Vocabulary,
    World,
    fit,
)
from seqdata.errors import DecodeError
from seqdata.policies.fixed import Fixed
from tests.fitting.samples import ROWS, WHAT, apply


@pytest.fixture(scope="module")
def fitted():
    return fit(ROWS, WHAT)


# NaN and what is unknown, by rule


@pytest.mark.parametrize(("rule", "expected"), [("ignore", [-1.0, np.nan]), ("impute", [-1.0, 0])])
def test_nan_by_rule_of_means(rule, expected):
    stats = fit([[1.0, np.nan, 3.0]], {"x": MeanStd(nan=rule)})
    assert stats["x"].mean == 2
    changed = apply(stats, x=Ragged(np.array([1.0, np.nan]), np.array([2])))
    np.testing.assert_array_equal(changed["x"].values, expected)


@pytest.mark.parametrize(("rule", "expected"), [("ignore", [1.0, np.nan]), ("impute", [1.0, 2])])
def test_nan_by_rule_of_quantiles(rule, expected):
    stats = fit([[1.0, np.nan, 3.0, 2.0]], {"x": Quantiles(0.0, 1.0, nan=rule)})
    changed = apply(stats, x=Ragged(np.array([-5.0, np.nan]), np.array([2])))
    np.testing.assert_array_equal(changed["x"].values, expected)


@pytest.mark.parametrize("what", [MeanStd(), Quantiles(0.1, 0.9)])
def test_a_nan_is_an_error_that_names_its_sequence(what):
    rows = [{"id": "good", "x": [1.0]}, {"id": "bad", "x": [2.0, np.nan]}]
    with pytest.raises(
        DataError, match=r"fit: sequence 'bad', field 'x': values .*must be .* is nan"
    ) as e:
        fit(rows, {"x": what})
    assert e.value.details["field"] == "x"
    stats = fit(rows[:1], {"x": what})
    with pytest.raises(DecodeError, match=r"field 'x' has a NaN, which .*nan='error'"):
        apply(stats, x=Ragged(np.array([np.nan]), np.array([1])))


def test_an_infinity_is_an_error_of_means_only():
    with pytest.raises(DataError, match=r"must be finite, but one is inf. Leave the sequence out"):
        fit([[1.0, np.inf]], {"x": MeanStd(nan="ignore")})
    assert fit([[1.0, np.inf]], {"x": Quantiles(0.0, 1.0)})["x"].values.tolist() == [1.0, np.inf]


def test_unknown_labels_and_tokens_are_errors_by_rule():
    rows = [{"x": [1], "y": 3, "t": "to be"}]
    stats = fit(rows, {"y": Labels(), "t": Vocabulary(unknown="error")})
    with pytest.raises(DecodeError, match="label 4 of field 'y' was not in the data"):
        apply(stats, y=np.array([4]))
    with pytest.raises(DecodeError, match="token 'or' of field 't' has no id"):
        apply(stats, t=["or"])


def test_unknown_groups_by_rule():
    rows = [{"x": [1.0, 3.0], "site": 1}, {"x": [5.0, 7.0], "site": 2}]
    x = Ragged(np.array([4.0, 6.0]), np.array([1, 1]))
    with pytest.raises(DecodeError, match="site 9 of field 'x' had no value in the data"):
        apply(fit(rows, {"x": MeanStd(by="site")}), x=x, site=np.array([9, 2]))
    stats = fit(rows, {"x": MeanStd(by="site", unknown="overall")})
    assert apply(stats, x=x, site=np.array([9, 2]))["x"].values.tolist() == [0.0, 0.0]
    assert stats["x"].groups == [1, 2]
    with pytest.raises(DecodeError, match=r"field 'x' needs 'site'.* Add 'site' to `fields`"):
        apply(stats, x=x)
    with pytest.raises(ConfigError, match="the inverse of 'x' needs 'site' of each sequence"):
        stats.inverse()({"x": np.zeros((2, 1))})


def test_a_constant_is_standardized_to_0():
    stats = fit([[4.0, 4.0]], {"x": MeanStd()})
    assert apply(stats, x=Ragged(np.array([4.0, 5.0]), np.array([2])))["x"].values.tolist() == [
        0,
        1,
    ]


# files, states and copies


def test_a_file_holds_all_of_it(fitted, tmp_path):
    fitted.save(tmp_path / "stats.json")
    read = Statistics.load(tmp_path / "stats.json")
    assert (read, read.fitted_on) == (fitted, fitted.fitted_on)
    text = (tmp_path / "stats.json").read_text("utf-8")
    (tmp_path / "stats.json").write_text(text.replace('"not"', '"nut"', 1))
    with pytest.raises(ConfigError, match="must have the digest"):
        Statistics.load(tmp_path / "stats.json")
    (tmp_path / "stats.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"must be a JSON file that Statistics.save wrote"):
        Statistics.load(tmp_path / "stats.json")
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file.*Correct the path"):
        Statistics.load(tmp_path / "none.json")


def test_a_state_is_read_with_weights_only(fitted, tmp_path):
    torch.save(fitted.state_dict(), tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 100_000
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert Statistics.from_state_dict(state) == fitted
    assert Statistics.from_state_dict(state).fitted_on == fitted.fitted_on
    with pytest.raises(ConfigError, match="the strings `content` and `digest`, but has nothing"):
        Statistics.from_state_dict({})
    with pytest.raises(ConfigError, match="content must be JSON that `fit` made, but is damaged"):
        Statistics("zlib:damaged")
    with pytest.raises(ConfigError, match="`version` must be 1, but is 2"):
        Statistics('{"version":2}')


def test_a_vocabulary_of_many_words_is_small_in_a_checkpoint(tmp_path):
    words = " ".join(f"{number * 7919 % 20011:x}" for number in range(20_000))
    stats = fit([{"x": [1], "t": words}], {"t": Vocabulary()})
    torch.save(stats.state_dict(), tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 100_000
    assert len(Statistics.from_state_dict(stats.state_dict())["t"].tokens) == 20_000


def test_other_compression_does_not_change_statistics(tmp_path, monkeypatch):
    """Compressed bytes depend on the version of zlib, or on what stands in for it."""
    words = " ".join(f"word{number}" for number in range(2_000))
    ours = fit([{"x": [1], "t": words}], {"t": Vocabulary()})
    ours.save(tmp_path / "stats.json")
    state = ours.state_dict()
    compress = zlib.compress
    monkeypatch.setattr(zlib, "compress", lambda data, level: compress(data, 1))
    theirs = Statistics.load(tmp_path / "stats.json")
    assert theirs.content != ours.content
    assert theirs == ours
    assert theirs.digest == ours.digest
    assert Statistics.from_state_dict(state) == theirs
    with pytest.raises(ConfigError, match="must have the digest"):
        Statistics.from_state_dict(state | {"digest": "0" * 32})
    with pytest.raises(ConfigError, match="must have the digest"):
        Statistics.from_state_dict(state | {"content": ours.content[:-10]})


def test_statistics_that_were_saved_with_a_digest_of_what_is_compressed_are_read(tmp_path):
    words = " ".join(f"word{number}" for number in range(2_000))
    stats = fit([{"x": [1], "t": words}], {"t": Vocabulary()})
    digest = hashlib.sha256(stats.content.encode()).hexdigest()[:32]
    assert digest != stats.digest
    read = Statistics.from_state_dict(stats.state_dict() | {"digest": digest})
    assert (read, read.digest) == (stats, stats.digest)
    stats.save(tmp_path / "stats.json")
    text = (tmp_path / "stats.json").read_text("utf-8").replace(stats.digest, digest)
    (tmp_path / "stats.json").write_text(text)
    assert Statistics.load(tmp_path / "stats.json") == stats


def test_copies_are_equal_and_have_no_more_than_the_texts(fitted):
    assert fitted["x"] is not None  # parsed by now
    copy = pickle.loads(pickle.dumps(fitted.transform()))
    assert copy == fitted.transform()
    assert copy.statistics["x"].mean.tolist() == fitted["x"].mean.tolist()
    assert set(vars(copy.statistics)) >= {"content", "digest", "fitted_on"}
    assert "Statistics(x: MeanStd" in repr(fitted)
    assert len(fitted) == len(WHAT)
    assert list(fitted) == list(WHAT)
    assert "x" in fitted


# groups that are encoded, too


def of_sites(sites, encoder, unknown="error"):
    rows = [
        {"x": np.array([-1.0, 1.0]) * 10**place + 100 * place, "site": site}
        for place, site in enumerate(sites)
    ]
    return rows, fit(rows, {"x": MeanStd(by="site", unknown=unknown), "site": encoder})


@pytest.mark.parametrize("unknown", ["error", "overall"])
@pytest.mark.parametrize("sites", [[1, 2, 3], [3, 1, 2], [0, 1, 2], ["c", "a", "b"]])
def test_the_inverse_takes_groups_as_a_batch_has_them(sites, unknown):
    rows, stats = of_sites(sites, Labels(), unknown)
    x = Ragged(np.concatenate([row["x"] for row in rows]), np.array([2, 2, 2]))
    made = apply(stats, x=x, site=sites if isinstance(sites[0], str) else np.array(sites))
    batch = {"x": torch.as_tensor(made["x"].values).reshape(3, 2), "site": made["site"]}
    found = stats.inverse()(batch)
    assert found["x"].tolist() == [row["x"].tolist() for row in rows]
    assert list(found["site"]) == sites


def test_an_unknown_label_is_of_no_group():
    _, stats = of_sites([4, 7], Labels(unknown=-100), "overall")
    found = stats.inverse()({"x": np.zeros((3, 1)), "site": np.array([-100, 0, 1])})["x"]
    assert found.tolist() == [[50.0], [0.0], [100.0]]
    _, stats = of_sites([4, 7], Labels(unknown=-100))
    with pytest.raises(DecodeError, match="site None of field 'x' had no value"):
        stats.inverse()({"x": np.zeros((1, 1)), "site": np.array([-100])})
    _, stats = of_sites([4, 7], Labels(unknown=1), "overall")
    with pytest.raises(ConfigError, match=r"index of unknown labels of 'site' .*, that of class 7"):
        stats.inverse()({"x": np.zeros((1, 1)), "site": np.array([1])})


@pytest.mark.parametrize("encoder", [MeanStd(), Quantiles(0.1, 0.9), Vocabulary()])
def test_groups_that_no_longer_tell_what_was_stored_are_refused(encoder):
    _, stats = of_sites([1, 2, 3], encoder, "overall")
    with pytest.raises(ConfigError, match=r"the inverse of 'x' needs 'site' as it was stored"):
        stats.inverse()({"x": np.zeros((3, 2)), "site": np.array([1, 2, 3])})


@pytest.mark.parametrize("order", [("x", "site"), ("site", "x")])
@pytest.mark.parametrize("sites", [[1, 2, 3], [2, 0, 1], ["c", "a", "b"]])
def test_each_group_is_standardized_by_its_own_whatever_is_encoded_first(order, sites):
    rows, _ = of_sites(sites, Labels())
    what = {"x": MeanStd(by="site"), "site": Labels()}
    stats = fit(rows, {name: what[name] for name in order})
    x = Ragged(np.concatenate([row["x"] for row in rows]), np.array([2, 2, 2]))
    made = apply(stats, x=x, site=sites if isinstance(sites[0], str) else np.array(sites))
    assert made["x"].values.tolist() == [-1, 1] * 3
    assert made["site"].tolist() == np.argsort(np.argsort(sites)).tolist()
    values = {"x": made["x"].values.reshape(3, 2), "site": made["site"]}
    assert stats.inverse()(values)["x"].tolist() == [row["x"].tolist() for row in rows]


def test_a_file_is_not_named_as_a_table(fitted, tmp_path):
    with pytest.raises(ConfigError, match=r"the path must be a path that ends in \.json"):
        fitted.save(tmp_path / "stats.parquet")
    assert not list(tmp_path.iterdir())


def test_only_statistics_without_ids_of_texts_work_where_time_is_split():
    rows = [{"x": np.arange(4.0), "text": "a b"}, {"x": np.arange(6.0), "text": "b"}]
    world = World(0, 1, 0, 2)
    numbers = fit(rows, {"x": MeanStd()}).transform()
    (batch,) = Loader(rows, Fixed(2), transform=numbers, world=world)
    assert sorted(batch.lengths.tolist()) == [2, 3]
    texts = fit(rows, {"x": MeanStd(), "text": Vocabulary()}).transform()
    with pytest.raises(ConfigError, match="StatisticsTransform must work timestep by timestep"):
        Loader(rows, Fixed(2), transform=texts, world=world)


def test_equal_statistics_of_two_views_are_one_value(fitted):
    again = fit(ROWS[::-1], WHAT)
    assert again.fitted_on != fitted.fitted_on
    assert len({again, fitted}) == 1
    assert len({again.transform(), fitted.transform()}) == 1
    assert len({again.inverse(), fitted.inverse()}) == 1
