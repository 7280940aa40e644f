"""The request of a step: lengths of its spans, and which draw of its sequence each one is."""

import pickle

import numpy as np

from seqdata.loading.step_requests import StepRequest

SPANS = np.array([[7, 0, 4], [2, 3, 3], [7, 4, 9]])


def test_lengths_are_those_of_the_spans():
    assert StepRequest(SPANS, SPANS[:, 0], epoch=0).lengths.tolist() == [4, 0, 5]


def test_each_span_is_the_first_draw_of_its_sequence_unless_it_is_said():
    plain = StepRequest(SPANS, SPANS[:, 0], epoch=0)
    assert plain.get_occurrences().tolist() == [0, 0, 0]
    drawn = StepRequest(SPANS, SPANS[:, 0], epoch=0, occurrences=np.array([0, 0, 1]))
    assert drawn.get_occurrences().tolist() == [0, 0, 1]


def test_a_worker_receives_all_of_it():
    sent = StepRequest(SPANS, SPANS[:, 0], epoch=3, horizon=2, joint_targets=True)
    found = pickle.loads(pickle.dumps(sent))
    assert (found.epoch, found.horizon, found.joint_targets) == (3, 2, True)
    assert found.spans.tolist() == SPANS.tolist()
    assert found.on_sequence(7) is None
