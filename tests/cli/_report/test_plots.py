"""Plots of plans: the padding, and the lanes."""

import numpy as np
import pytest

from seqdata import TBPTT
from seqdata.cli._report.plots import draw_lanes, draw_plan, paint_lanes
from seqdata.index import SequenceIndex
from seqdata.policies.fixed import Bucketed, Fixed

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


PAPER, IDLE, RESET = (255, 255, 255), (176, 176, 176), (0, 0, 0)


def painted(policy, lengths):
    """Return the picture's pixels and those of a cell: of one lane in one step."""
    plan = policy.plan(SequenceIndex.from_lengths(lengths), seed=0, epoch=0)
    image, _ = paint_lanes(plan, np.arange(len(plan)))
    high, wide = image.shape[0] // plan.lanes, image.shape[1] // len(plan)

    def cell(lane, step):
        return image[lane * high : lane * high + high - 1, step * wide : (step + 1) * wide]

    return cell


def colours(cell):
    return set(map(tuple, cell.reshape(-1, 3).tolist()))


def test_a_cell_shows_the_sequence_its_reset_its_padding_and_what_is_idle():
    cell = painted(TBPTT(2, 4, shuffle=False), [8, 2, 1])  # lane 1 reads two short ones
    whole, goes_on, short = cell(0, 0), cell(0, 1), cell(1, 0)
    (colour,) = colours(goes_on)
    assert colours(whole) == {colour, RESET}
    assert tuple(whole[0, 0]) == RESET
    assert len(colours(short)) == 3
    assert tuple(short[0, -1]) == PAPER
    assert np.mean((short != PAPER).any(axis=2)) == 0.5  # two of four timesteps


def test_a_lane_that_has_run_dry_is_grey():
    cell = painted(TBPTT(2, 4, shuffle=False), [8, 2])
    assert colours(cell(1, 1)) == {IDLE}


def test_context_is_paler_than_what_is_scored():
    cell = painted(TBPTT(1, 4, advance=2, shuffle=False), [6])
    second = cell(0, 1)
    pale, scored = second[0, 0].astype(int), second[0, -1].astype(int)
    assert (pale >= scored).all()
    assert (pale > scored).any()


def test_a_stream_is_reset_with_the_epoch_only():
    cell = painted(TBPTT(1, 4, continuous=True, shuffle=False), [3, 5])
    assert RESET in colours(cell(0, 0))
    assert RESET not in colours(cell(0, 1))
    assert len(colours(cell(0, 0))) == 3  # the reset and two sequences


@pytest.mark.parametrize(
    ("policy", "lengths"),
    [
        (TBPTT(3, 4, segments=True), [3, 9, 5, 1, 1]),
        (TBPTT(2, 8, continuous=True, jitter=True), [50, 60, 70]),
        (TBPTT(300, 2), [5] * 400),
        (TBPTT(1, 1), [4000]),  # more steps than pixels
        (TBPTT(2, 4), []),
    ],
)
def test_a_picture_is_drawn_of_any_lanes(tmp_path, policy, lengths):
    plan = policy.plan(SequenceIndex.from_lengths(lengths), seed=0, epoch=0)
    draw_lanes(tmp_path / "new" / "lanes.png", plan)
    assert (tmp_path / "new" / "lanes.png").read_bytes().startswith(b"\x89PNG")
