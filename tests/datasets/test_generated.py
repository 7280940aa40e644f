"""Generated datasets: the same for a seed, and as their docstrings say."""

import re
import subprocess
import sys

import numpy as np
import pytest

from seqdata import ConfigError, datasets, open_store
from seqdata.datasets import (
    make_documents,
    make_events,
    make_flip_flops,
    make_recordings,
    make_series,
    make_speech,
)
from seqdata_testing.waiting import patient

SMALL = {
    make_documents: {"count": 20},
    make_flip_flops: {"count": 4},
    make_speech: {"count": 3, "max_words": 2},
    make_recordings: {"count": 2, "minutes": 1},
    make_series: {"count": 2, "days": 3},
    make_events: {"count": 10, "rare": 0.2},
}
MAKERS = pytest.mark.parametrize("make", SMALL, ids=lambda make: make.__name__)


def values_of(data):
    if hasattr(data, "columns"):
        return [{name: np.asarray(data[name]) for name in data.columns}]
    return list(data)


def is_equal(one, other):
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


@MAKERS
def test_a_seed_makes_the_same_data_and_another_one_other_data(make):
    first, again = values_of(make(**SMALL[make])), values_of(make(**SMALL[make], seed=0))
    assert is_equal(first, again)
    assert not is_equal(first, values_of(make(**SMALL[make], seed=1)))


@MAKERS
def test_there_are_as_many_as_are_asked_for(make):
    data = make(**SMALL[make])
    if hasattr(data, "columns"):
        data = open_store(data, group=data.columns[0], order="time")
    assert len(data) == SMALL[make]["count"]


@MAKERS
@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_a_seed_is_an_integer(make, seed):
    expected = f"{make.__name__}: `seed` must be an integer of at least 0, but is {seed}"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        make(seed=seed)


@MAKERS
@pytest.mark.parametrize("count", [0, 2.5, "3"])
def test_a_count_is_an_integer_from_1(make, count):
    expected = f"{make.__name__}: `count` must be an integer of at least 1, but is {count!r}"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        make(count)


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (make_documents, {"vocabulary": 1}, "`vocabulary` must be an integer of at least 2"),
        (make_documents, {"median": 1}, "`median` must be a number in [2, 1e+09], but is 1"),
        (make_documents, {"sigma": float("nan")}, "`sigma` must be a number in [0, 5], but is nan"),
        (make_flip_flops, {"bits": 17}, "`bits` must be a number in [1, 16], but is 17"),
        (make_flip_flops, {"pulses": "1"}, "`pulses` must be a number in [0, 1], but is '1'"),
        (make_speech, {"max_words": 0}, "`max_words` must be an integer of at least 1, but is 0"),
        (make_recordings, {"minutes": 0}, "`minutes` must be a number in [0.1, 1440], but is 0"),
        (make_series, {"days": 0}, "`days` must be an integer of at least 1, but is 0"),
        (make_events, {"rare": True}, "`rare` must be a number in [0, 1], but is True"),
    ],
)
def test_an_argument_out_of_its_range_is_refused(make, wrong, message):
    with pytest.raises(ConfigError, match=re.escape(f"{make.__name__}: {message}")):
        make(**wrong)


def test_documents_end_with_0_and_differ_by_topic():
    documents = list(make_documents(400, vocabulary=50, topics=2))
    for document in documents:
        assert document["tokens"].dtype == "int32"
        assert document["tokens"][-1] == 0
        assert ((document["tokens"][:-1] > 0) & (document["tokens"][:-1] < 50)).all()
    most = [
        np.bincount(np.concatenate([d["tokens"][:-1] for d in documents if d["topic"] == t]))
        for t in range(2)
    ]
    assert most[0].argmax() != most[1].argmax()


def test_lengths_of_documents_are_log_normal():
    logarithms = np.log(make_documents(4_000, median=300, sigma=0.6).lengths)
    assert abs(np.exp(np.median(logarithms)) - 300) < 15
    assert abs(logarithms.std() - 0.6) < 0.03


def test_equal_lengths_are_possible():
    assert set(make_documents(10, sigma=0).lengths.tolist()) == {200}


def test_flip_flops_remember_the_last_pulse_of_each_line():
    for sequence in make_flip_flops(5, bits=3, median=60, pulses=0.1):
        state = np.zeros(3, dtype=int)
        for pulses, y in zip(sequence["x"], sequence["y"], strict=True):
            state = np.where(pulses != 0, pulses > 0, state)
            assert y == state @ [1, 2, 4]


def test_speech_has_sound_text_and_tokens():
    store = make_speech(5, speakers=2)
    for sequence in store:
        assert sequence["audio"].dtype == "float32"
        assert np.abs(sequence["audio"]).max() <= 1
        words = [datasets.generate.WORDS[token - 1] for token in sequence["tokens"]]
        assert sequence["text"] == " ".join(words)
    assert {sequence["speaker"] for sequence in store} <= {"speaker-0", "speaker-1"}


def test_every_digit_can_be_spoken():
    rng = np.random.default_rng(0)
    for word in datasets.generate.WORDS:
        sound = datasets.generate._speak(word, 120.0, 1.0, rng)
        assert np.isfinite(sound).all()


def test_recordings_have_four_rates_and_last_equally_long_on_all():
    for sequence in make_recordings(3, minutes=1):
        seconds = len(sequence["activity"])
        assert 30 <= seconds <= 120
        lengths = [len(sequence[name]) for name in ("acc", "ecg", "temp")]
        assert lengths == [100 * seconds, 250 * seconds, 4 * seconds]
        assert set(sequence["activity"].tolist()) <= {0, 1, 2}


def test_more_motion_is_more_acceleration():
    sequence = make_recordings(1, minutes=5)[0]
    each = np.repeat(sequence["activity"], 100)
    swing = [sequence["acc"][each == kind, 2].std() for kind in range(3)]
    assert swing[0] < swing[1] < swing[2]


def test_series_are_hourly_and_have_a_season():
    table = make_series(2, days=28)
    one = table[table["site"] == "site-0"]
    assert (np.diff(one["time"].to_numpy()) == np.timedelta64(1, "h")).all()
    by_hour = one.groupby(one["time"].dt.hour)["load"].mean()
    assert by_hour.max() > 1.5 * by_hour.min()
    assert table.groupby("site")["region"].nunique().tolist() == [1, 1]


@pytest.mark.parametrize(("rare", "count"), [(0.0, 0), (0.05, 2), (1.0, 40)])
def test_as_many_users_are_fraudulent_as_are_asked_for(rare, count):
    labels = make_events(40, rare=rare).groupby("user")["label"].first()
    assert (labels == "fraud").sum() == count


def test_tables_say_that_pandas_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="make_events: pandas must be installed, but is not"):
        make_events(2)


def test_every_dataset_has_an_example_and_a_licence():
    assert sorted(datasets.__all__) == datasets.__all__
    for name in datasets.__all__:
        assert ">>>" in getattr(datasets, name).__doc__
        assert "icence:" in getattr(datasets, name).__doc__


def test_loading_the_module_loads_neither_torch_nor_pandas():
    code = "import seqdata.datasets, sys; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(), check=True)
    assert not set(done.stdout.split()) & {"torch", "lightning", "pandas", "matplotlib"}
