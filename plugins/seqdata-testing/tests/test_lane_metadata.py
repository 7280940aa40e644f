"""The checks of what a model is told of lanes find each way to tell it wrong."""

import pytest
import torch

from seqdata import TBPTT
from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata_testing import ConformanceError, lane_metadata
from seqdata_testing.lane_metadata import check_heads

INDEX = SequenceIndex.from_lengths([9, 4, 7])
PLAN = TBPTT(2, 4, advance=3).plan(INDEX, seed=0, epoch=0)
IDLE = TBPTT(5, 4).plan(INDEX, seed=0, epoch=0)
STREAM = TBPTT(2, 4, continuous=True).plan(INDEX, seed=0, epoch=0)


def changed(monkeypatch, change):
    """Let every head be changed after it is made."""
    made = lane_metadata.make_metadata

    def head_of(step, ids, plan, axes):
        head = made(step, ids, plan, axes)
        change(head)
        return head

    monkeypatch.setattr(lane_metadata, "make_metadata", head_of)


def never_reset(head):
    head.reset[:] = False


def always_reset(head):
    head.reset[:] = head.weight > 0


def without_burn_in(head):
    head.num_tokens += int(head.burn_in[head.weight > 0].sum())
    head.burn_in = None


def other_overlap(head):
    head.overlap += 1


def lanes_turned(head):
    head.lanes = torch.flip(head.lanes, (0,))


def idle_reset(head):
    head.reset[head.lengths == 0] = True


def one_token_more(head):
    head.num_tokens += 1


def carried_too_far(head):
    head.ids += head.number


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("plan", [PLAN, STREAM], ids=["sequences", "stream"])
def test_what_is_told_is_right(plan, size):
    check_heads(plan, size)


@pytest.mark.parametrize(
    ("plan", "change", "message"),
    [
        (PLAN, never_reset, "reset is False at timestep 0 of sequence ., but must be True"),
        (STREAM, always_reset, "batch 1 on rank 0 of 1, lane 0: reset is True at timestep"),
        (
            PLAN,
            other_overlap,
            r"overlap and lr_scale must be \d and .* as in the plan, but are 2 and 1.0",
        ),
        (PLAN, lanes_turned, r"lanes are \[1, 0\], but must be .*, as in the step"),
        (IDLE, idle_reset, "is idle and reset, but must not be"),
        (
            PLAN,
            one_token_more,
            r"num_tokens is \d+ and the rows score \d+ tokens, but both must be \d+",
        ),
        (
            PLAN,
            without_burn_in,
            r"num_tokens is \d+ and the rows score \d+ tokens, but both must be \d+",
        ),
        (PLAN, carried_too_far, r"the state is that of \(\d, \d\), but must be that of \(\d, \d\)"),
    ],
)
def test_what_is_told_wrong_is_found(monkeypatch, plan, change, message):
    changed(monkeypatch, change)
    with pytest.raises(ConformanceError, match=message):
        check_heads(plan)


def test_context_that_is_not_the_overlap_is_found():
    """A row that is shorter than the overlap has no place to go on from."""
    plan = Plan([[0, 0, 4], [0, 4, 5]], offsets=[0, 1, 2], lanes=1, overlap=3)
    with pytest.raises(
        ConformanceError, match="burn_in is 1 at timestep 4 of sequence 0, but must be"
    ):
        check_heads(plan)


def test_a_plan_that_counts_otherwise_is_found():
    class Miscounting(type(PLAN._table)):
        def totals(self, first, stop, overlap):
            scored, rows = super().totals(first, stop, overlap)
            return scored + 1, rows

    table = Miscounting(PLAN._table.schedule, PLAN._table.window_size)
    plan = Plan.lazy(table, PLAN._origin, lanes=2, overlap=1)
    with pytest.raises(ConformanceError, match=r"batch 0 has \d scored timesteps on 1 ranks, but"):
        check_heads(plan)
