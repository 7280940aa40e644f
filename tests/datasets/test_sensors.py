"""Generated recordings: four rates, and signals that follow the activity."""

import re

import numpy as np
import pytest

from seqdata import ConfigError
from seqdata.datasets import make_recordings


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


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (make_recordings, {"minutes": 0}, "`minutes` must be a number in [0.1, 1440], but is 0"),
    ],
)
def test_an_argument_out_of_its_range_is_refused(make, wrong, message):
    with pytest.raises(ConfigError, match=re.escape(f"{make.__name__}: {message}")):
        make(**wrong)


def test_two_recordings_are_of_one_person():
    assert [row["person"] for row in make_recordings(3, minutes=0.1)] == [
        "person-0", "person-0", "person-1",
    ]  # fmt: skip


def test_the_heart_beats_faster_and_the_skin_is_warmer_in_motion():
    sequence = make_recordings(1, minutes=30)[0]
    activity, is_sharp = sequence["activity"], sequence["ecg"] > 0.6
    beats = np.diff(is_sharp, prepend=False).reshape(-1, 250).sum(axis=1) / 2  # of each second
    changed = np.convolve(np.diff(activity, prepend=activity[0]) != 0, np.ones(30), "full")
    settled = changed[: len(activity)] == 0  # for half a minute
    rest, run = (beats[settled & (activity == kind)].mean() for kind in (0, 2))
    assert 60 * rest == pytest.approx(62, rel=0.1)
    assert 60 * run == pytest.approx(150, rel=0.1)
    temp = sequence["temp"].reshape(-1, 4).mean(axis=1)
    assert temp[activity == 0].mean() < temp[activity == 2].mean()
    assert 32 < temp.min() < temp.max() < 36


def test_no_activity_follows_itself_and_bouts_last_a_while():
    activity = make_recordings(1, minutes=60)[0]["activity"]
    changes = np.flatnonzero(np.diff(activity))
    assert (np.diff(changes) >= 20).all()
    assert (np.diff(changes) < 90).all()
