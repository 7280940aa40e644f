"""Generated sequences are as their docstrings say: documents, flip-flops and speech."""

import re

import numpy as np
import pytest

from seqdata import ConfigError
from seqdata.datasets import make_documents, make_flip_flops, make_speech
from seqdata.datasets.generate import RATE, WORDS, _speak


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
        words = [WORDS[token - 1] for token in sequence["tokens"]]
        assert sequence["text"] == " ".join(words)
    assert {sequence["speaker"] for sequence in store} <= {"speaker-0", "speaker-1"}


def test_every_digit_can_be_spoken():
    rng = np.random.default_rng(0)
    for word in WORDS:
        sound = _speak(word, 120.0, 1.0, rng)
        assert np.isfinite(sound).all()


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (make_documents, {"vocabulary": 1}, "`vocabulary` must be an integer of at least 2"),
        (make_documents, {"median": 1}, "`median` must be a number in [2, 1e+09], but is 1"),
        (make_documents, {"sigma": float("nan")}, "`sigma` must be a number in [0, 5], but is nan"),
        (make_flip_flops, {"bits": 17}, "`bits` must be a number in [1, 16], but is 17"),
        (make_flip_flops, {"pulses": "1"}, "`pulses` must be a number in [0, 1], but is '1'"),
        (make_speech, {"max_words": 0}, "`max_words` must be an integer of at least 1, but is 0"),
    ],
)
def test_an_argument_out_of_its_range_is_refused(make, wrong, message):
    with pytest.raises(ConfigError, match=re.escape(f"{make.__name__}: {message}")):
        make(**wrong)


def test_speech_is_as_loud_as_it_should_be_and_has_silence_around_it():
    for sequence in make_speech(3, max_words=1):
        audio = sequence["audio"]
        assert np.abs(audio).max() == pytest.approx(0.7)
        assert np.abs(audio[: RATE // 20]).max() < 0.1
        assert sequence["rate"] == RATE
