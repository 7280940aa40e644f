"""FewLanes deals chunks to lanes, and its checks find lanes that jump."""

import pytest

from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata_testing import ConformanceError
from seqdata_testing.lanes import FewLanes, check_lanes

INDEX = SequenceIndex.from_lengths([5, 2, 0, 3])


def test_few_lanes_reads_sequences_in_chunks_and_then_is_idle():
    plan = FewLanes(2, 2).plan(INDEX, seed=0, epoch=0)
    lanes = [[plan.batch(k).spans[lane].tolist() for k in range(len(plan))] for lane in (0, 1)]
    assert sorted(lanes) == [
        [[0, 0, 2], [0, 2, 4], [0, 4, 5]],
        [[3, 0, 2], [3, 2, 3], [1, 0, 2]],
    ]
    assert FewLanes(2, 2).num_batches(INDEX) == len(plan) == 3
    assert plan.lanes == 2


def test_lanes_without_a_sequence_are_idle_from_the_start():
    plan = FewLanes(5, 4).plan(INDEX, seed=0, epoch=1)
    check_lanes(plan, INDEX)
    assert plan.totals(0, 1) == (4 + 3 + 2, 3)


def test_idle_lanes_name_no_sequence_in_the_report():
    plan = FewLanes(3, 8).plan(SequenceIndex.from_lengths([0, 5]), seed=0, epoch=0)
    assert plan.report.sequences == 1


@pytest.mark.parametrize(
    ("spans", "lanes", "message"),
    [
        ([[0, 0, 5]], 0, "must have lanes, but has none"),
        ([[0, 1, 5]], 1, "lane 0 in batch 0 begins sequence 0 at timestep 1, but must begin at 0"),
        (
            [[0, 0, 2], [0, 3, 5]],
            1,
            r"lane 0 in batch 1 leaves sequence 0 at timestep 2 for \[0, 3, 5\], but must "
            r"continue to 5",
        ),
        ([[0, 0, 2], [1, 0, 2]], 1, r"lane 0 in batch 1 leaves sequence 0 at timestep 2"),
        (
            [[1, 0, 2], [3, 1, 3]],
            1,
            "lane 0 in batch 1 begins sequence 3 at timestep 1, but must begin at 0",
        ),
        ([[1, 0, 2], [0, 0, 0], [3, 0, 3]], 1, "lane 0 in batch 2 continues after it was idle"),
        (
            [[0, 0, 2], [0, 2, 4]],
            1,
            "lane 0 ends with sequence 0 at timestep 4, but must continue to 5",
        ),
    ],
)
def test_lanes_that_jump_are_found(spans, lanes, message):
    plan = Plan(spans, offsets=range(len(spans) + 1), lanes=lanes)
    with pytest.raises(ConformanceError, match=message):
        check_lanes(plan, INDEX)


def test_a_carried_state_may_begin_and_end_anywhere():
    spans = [[0, 2, 5], [1, 0, 1]]
    with pytest.raises(ConformanceError, match="begins sequence 0 at timestep 2"):
        check_lanes(Plan(spans, [0, 2], offsets=[0, 1], lanes=1), INDEX)
    check_lanes(Plan(spans, [0, 2], offsets=[0, 1], lanes=1, carry=True), INDEX)


class Short(Plan):
    """A plan whose batches lack a lane; a table of a policy's own can do that."""

    def batch(self, number):
        whole = super().batch(number)
        return whole._replace(spans=whole.spans[:1])


def test_a_batch_that_lacks_a_lane_is_found():
    plan = Short([[0, 0, 5], [1, 0, 2]], offsets=[0, 2], lanes=2)
    with pytest.raises(ConformanceError, match="batch 0 has 1 rows, but must have 2, one per lane"):
        check_lanes(plan, INDEX)


@pytest.mark.parametrize(
    ("spans", "rows", "lanes", "overlap", "message"),
    [
        (
            [[0, 0, 3], [0, 3, 5]], [0, 1, 2], 1, 2,
            r"lane 0 in batch 1 begins with \(0, 3, 5\), but must begin with the last 2 timesteps "
            r"of",
        ),
        (
            [[0, 0, 4], [1, 0, 2]], [0, 1, 2], 2, 0,
            "lane 0 has 4 timesteps of a stream of 6, but must have 3",
        ),
        (
            [[0, 0, 2], [1, 0, 2]], [0, 1, 2], 2, 0,
            "lane 1 begins with sequence 1 at timestep 0, but must continue where plan: lane 0 "
            "ended",
        ),
        (
            [[0, 0, 2], [3, 0, 3], [0, 2, 5], [1, 0, 2]], [0, 1, 2, 3, 4], 2, 0,
            r"batch 0 has rows of \[2, 3\] timesteps that continue, but must have rows of one "
            r"length",
        ),
    ],
)  # fmt: skip
def test_columns_of_a_stream_that_do_not_fit_are_found(spans, rows, lanes, overlap, message):
    offsets = range(0, len(rows), lanes)
    plan = Plan(spans, rows, offsets, lanes, carry=True, overlap=overlap)
    with pytest.raises(ConformanceError, match=message):
        check_lanes(plan, INDEX)


def test_overlapping_rows_of_a_stream_may_hold_several_sequences():
    spans = [[0, 0, 4], [0, 2, 5], [1, 0, 1], [0, 4, 5], [1, 0, 2]]
    plan = Plan(spans, [0, 1, 3, 5], [0, 1, 2, 3], 1, carry=True, overlap=2)
    check_lanes(plan, INDEX)
