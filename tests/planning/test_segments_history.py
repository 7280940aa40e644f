"""What a run has set: weights by segments, and where other parts of a mixture began."""

import pytest

from seqdata.errors import PlanError
from seqdata.planning.part_order import PartWeights
from seqdata.planning.part_positions import PartPosition, PartPositions
from seqdata.planning.segments import WeightChange, WeightHistory

POSITIONS = PartPositions((PartPosition(3, 17), PartPosition(0, 0)))
WEIGHTS = [PartWeights((1.0, share)) for share in (0.25, 0.5, 0.75)]


def test_a_segment_has_the_weights_that_were_set_up_to_it():
    history = WeightHistory()
    for epoch, weights in enumerate(WEIGHTS):
        history.set(epoch, 4, weights)
    assert [change.weights for change in history.find(1, 8)] == WEIGHTS[:2]
    assert history.find(0, 0) == ()
    history.set(1, 4, WEIGHTS[2])  # what came after is gone
    assert [change.weights for change in history.find(9, 0)] == [WEIGHTS[0], WEIGHTS[2]]
    assert history.version == 4


def test_weights_that_are_not_kept_are_refused():
    history = WeightHistory(max_changes=1)
    history.set(0, 4, WEIGHTS[0])
    history.set(1, 4, WEIGHTS[1])
    with pytest.raises(PlanError, match=r"only those from batch 4 of epoch 1 on are kept\."):
        history.find(0, 4)
    history.restore([WeightChange(2, 0, WEIGHTS[2])], 2, 8)
    with pytest.raises(PlanError, match=r"only those from batch 8 of epoch 2 on are kept\."):
        history.find(2, 4)


def test_a_segment_that_begins_may_set_weights_once():
    history, begun = WeightHistory(), []
    history.on_begin = lambda epoch, first: begun.append((epoch, first))
    assert not history.has_begun(0, 0)
    for position in (0, 3, 4, 6):
        history.begin(0, position, 4)
    assert begun == [(0, 0), (0, 4)]
    assert history.has_begun(0, 4)
    assert not history.has_begun(0, 8)


def test_segments_before_other_parts_are_refused_and_weights_may_follow():
    history = WeightHistory()
    history.replace_parts(2, 8, POSITIONS)
    with pytest.raises(PlanError, match=r"before batch 8 of epoch 2, .* at batch 4 of epoch 2, wh"):
        history.find(2, 4)
    for _ in range(2):
        history.set(2, 8, WEIGHTS[0])
    assert [change.weights for change in history.find(2, 8)] == [POSITIONS, WEIGHTS[0]]
    assert history.origin == (2, 8, POSITIONS)
    history.restore((), 0, 0)
    assert history.find(2, 4) == ()
