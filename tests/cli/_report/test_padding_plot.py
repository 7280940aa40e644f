"""The picture of a plan."""

import numpy as np
import pytest

from seqdata.cli._report.padding_plot import draw_plan
from seqdata.index import SequenceIndex
from seqdata.policies.bucketed import Bucketed
from seqdata.policies.fixed import Fixed

HEAVY_TAIL = (4 ** (np.random.Philox(2).random_raw(300) % 7)).astype(np.int64)


@pytest.mark.parametrize(
    "lengths",
    [HEAVY_TAIL, [1], [5, 5], [0, 3, 3, 7], [2, 2, 2, 100_000]],
    ids=["heavy tail", "one", "equal", "with an empty one", "an outlier"],
)
def test_a_picture_is_drawn_of_any_lengths(tmp_path, lengths):
    index = SequenceIndex.from_lengths(lengths)
    plan = Bucketed(2).plan(index, seed=0, epoch=0)
    draw_plan(tmp_path / "p.png", index, plan, label="bucketed")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_nothing_is_drawn(tmp_path):
    index = SequenceIndex.from_lengths([0, 0])
    plan = Fixed(2).plan(index, seed=0, epoch=0)
    draw_plan(tmp_path / "p.png", index, plan, label="mine")
    assert (tmp_path / "p.png").exists()


def test_another_axis_may_be_drawn(tmp_path):
    index = SequenceIndex({"time": np.array([3, 4]), "text": np.array([1, 9])})
    plan = Bucketed(1, axis="text").plan(index, seed=0, epoch=0)
    draw_plan(tmp_path / "p.png", index, plan, label="bucketed", axis="text")
    assert (tmp_path / "p.png").exists()
