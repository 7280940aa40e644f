"""Chunk lengths that vary: AWD-LSTM's law, as many as the length says, the same on any machine."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import Jitter
from seqdata.errors import ConfigError


def lengths_of(chunk, timesteps, seed=0, epoch=0, jitter=None):
    return np.diff((jitter or Jitter()).chunks(chunk, timesteps, seed, epoch).offsets)


def test_lengths_follow_the_law_of_awd_lstm():
    """70 with a share of 0.95, else 35; normal around it with 5; at least 5; rounded down."""
    lengths = lengths_of(70, 4_000_000)
    long, short = lengths[lengths > 52], lengths[lengths <= 52]
    assert abs(len(short) / len(lengths) - 0.05) < 0.003
    assert abs(long.mean() - 69.5) < 0.3
    assert abs(short.mean() - 34.5) < 0.5
    assert abs(long.std() - 5) < 0.1
    inside = np.mean(np.abs(long - 69.5) < 5)
    assert abs(inside - 0.683) < 0.01  # of a normal law


def test_the_first_lengths_are_these():
    """They are part of every plan: never change them."""
    assert lengths_of(70, 1000, seed=7, epoch=None).tolist() == GOLDEN
    assert lengths_of(70, 1000, seed=7, epoch=3).tolist() == GOLDEN_ORDER


@given(st.integers(1, 100), st.integers(0, 3000), st.integers(0, 9))
def test_lengths_are_all_timesteps_and_their_number_follows_from_these(chunk, timesteps, seed):
    one = lengths_of(chunk, timesteps, seed)
    assert one.sum() == timesteps
    assert (one > 0).all()
    assert len(one) == Jitter().count(chunk, timesteps)
    assert sorted(lengths_of(chunk, timesteps, seed, epoch=1)) == sorted(one)


def test_epochs_have_the_same_lengths_in_another_order():
    one, other = (lengths_of(70, 10_000, epoch=epoch) for epoch in range(2))
    assert one.tolist() != other.tolist()
    assert lengths_of(70, 10_000, seed=1).tolist() != one.tolist()


def test_without_a_spread_all_are_alike():
    jitter = Jitter(short=0, spread=0)
    assert lengths_of(64, 64_000, jitter=jitter).tolist() == [64] * 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"short": "0.1"}, "jitter: `short` must be a fraction from 0 to 1, but is '0.1'"),
        ({"short": 1.5}, "jitter: `short` must be a fraction from 0 to 1, but is 1.5"),
        ({"spread": -1}, "jitter: `spread` must be an integer of at least 0, but is -1"),
        ({"spread": 2.5}, "jitter: `spread` must be an integer of at least 0, but is 2.5"),
        ({"least": True}, "jitter: `least` must be an integer of at least 1, but is True"),
        ({"least": 0}, "jitter: `least` must be an integer of at least 1, but is 0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Jitter(**options)


GOLDEN = [65, 67, 69, 71, 61, 64, 68, 79, 61, 66, 70, 69, 72, 59, 59]
GOLDEN_ORDER = [71, 64, 59, 79, 69, 59, 67, 69, 72, 61, 66, 61, 65, 68, 70]
