import numpy as np
import pytest
import torch

from seqdata.batch.axes import Axes
from seqdata.loading.batch_metadata import make_metadata
from seqdata.plan import Plan
from seqdata.sharing import World, share

ALONE = World()


def head(plan, step=0, world=ALONE, ids=lambda numbers: numbers):
    mine = share(plan, world)[step]
    return make_metadata(mine, ids(mine.spans[:, 0]), plan, Axes())


def test_each_span_is_a_row():
    made = head(Plan([[3, 0, 4], [1, 2, 5]], offsets=[0, 2]), ids=lambda numbers: numbers * 10)
    assert made.lengths.tolist() == [4, 3]
    assert made.ids.tolist() == [30, 10]
    assert made.positions.tolist() == [3, 1]
    assert made.start.tolist() == [0, 2]
    assert made.weight.tolist() == [1.0, 1.0]
    assert (made.padded_length, made.num_tokens, made.number) == (4, 7, 0)
    assert (made.lanes, made.reset, made.burn_in, made.segments) == (None,) * 4
    assert made.lengths_of == {"time": made.lengths}
    assert made.data == {}


def test_dtypes_are_those_of_the_contract():
    made = head(Plan([[0, 0, 2]], offsets=[0, 1], lanes=1))
    assert {made.lengths.dtype, made.ids.dtype, made.start.dtype, made.lanes.dtype} == {torch.int64}
    assert (made.weight.dtype, made.reset.dtype) == (torch.float32, torch.bool)


def test_a_dummy_row_counts_no_token():
    made = head(Plan([[0, 0, 2]], offsets=[0, 1]), world=World(1, 2))
    assert made.weight.tolist() == [0.0]
    assert made.lengths.tolist() == [2]
    assert made.num_tokens == 0


def test_a_row_of_several_spans_has_the_id_and_start_of_its_first():
    plan = Plan([[5, 1, 3], [6, 0, 4], [7, 2, 3]], rows=[0, 2, 3], offsets=[0, 2])
    made = head(plan)
    assert made.lengths.tolist() == [6, 1]
    assert made.ids.tolist() == [5, 7]
    assert made.positions.tolist() == [5, 7]
    assert made.start.tolist() == [1, 2]
    assert made.segments.tolist() == [[0, 5, 1, 3], [0, 6, 0, 4], [1, 7, 2, 3]]
    assert made.num_tokens == 7


def test_a_row_without_a_span_has_no_id():
    plan = Plan([[5, 1, 3]], rows=[0, 0, 1], offsets=[0, 2], lanes=2)
    made = head(plan)
    assert made.ids.tolist() == [-1, 5]
    assert made.positions.tolist() == [-1, 5]
    assert made.lengths.tolist() == [0, 2]
    assert made.segments.tolist() == [[1, 5, 1, 3]]


@pytest.mark.parametrize("carry", [False, True])
def test_a_lane_is_reset_where_a_sequence_begins_or_with_the_epoch(carry):
    spans = [[0, 0, 2], [1, 0, 0], [2, 4, 6], [0, 2, 4], [3, 0, 2], [2, 6, 7]]
    plan = Plan(spans, offsets=[0, 3, 6], lanes=3, carry=carry)
    first, second = head(plan), head(plan, 1)
    assert first.lanes.tolist() == [0, 1, 2]
    assert first.weight.tolist() == [1.0, 0.0, 1.0]
    assert first.reset.tolist() == ([True, False, True] if carry else [True, False, False])
    assert second.reset.tolist() == ([False] * 3 if carry else [False, True, False])
    assert first.num_tokens == 4


def test_a_rank_has_its_own_lanes():
    plan = Plan([[lane, 0, lane + 1] for lane in range(4)], offsets=[0, 4], lanes=4)
    made = head(plan, world=World(1, 2))
    assert made.lanes.tolist() == [2, 3]
    assert made.num_tokens == 3 + 4


def test_overlap_is_context_where_a_row_does_not_begin_its_sequence():
    plan = Plan([[0, 0, 4], [1, 2, 6], [2, 4, 5]], offsets=[0, 3], overlap=2)
    made = head(plan)
    assert made.burn_in.tolist() == [0, 2, 1]
    assert made.num_tokens == 4 + 2 + 0
    assert plan.totals(0, 1)[0] == made.num_tokens


def test_idle_rows_are_one_timestep_wide():
    made = head(Plan([[0, 0, 0], [0, 0, 0]], offsets=[0, 2], lanes=2))
    assert made.padded_length == 1
    assert made.num_tokens == 0
    assert np.array_equal(made.lengths.numpy(), [0, 0])
