import dataclasses

import numpy as np
import pytest

from seqdata.errors import PlanError
from seqdata.plan import Plan

SPANS = [[0, 0, 3], [1, 0, 2], [2, 0, 5], [2, 5, 9]]


def test_a_batch_is_its_spans():
    plan = Plan(SPANS, offsets=[0, 2, 4])
    assert len(plan) == 2
    spans, rows = plan.batch(1)[:2]
    assert spans.tolist() == SPANS[2:]
    assert rows is None


def test_rows_of_several_spans_are_rebased_to_the_batch():
    plan = Plan(SPANS, rows=[0, 1, 2, 4], offsets=[0, 1, 3])
    assert plan.batch(1).spans.tolist() == SPANS[1:]
    assert plan.batch(1).rows.tolist() == [0, 1, 3]
    assert plan.totals(1, 2) == (11, 2)


def test_totals_leave_out_context_and_idle_rows():
    plan = Plan([[0, 0, 8], [0, 6, 10], [1, 0, 0]], offsets=[0, 3], overlap=2)
    assert plan.totals(0, 1) == (8 + 2, 2)


def test_a_plan_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Plan(SPANS, offsets=[0, 4]).lanes = 3


@pytest.mark.parametrize("number", [-1, 2])
def test_a_batch_that_is_not_there_is_refused(number):
    with pytest.raises(PlanError, match=rf"no batch {number}: indices are in \[0, 2\)"):
        Plan(SPANS, offsets=[0, 2, 4]).batch(number)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`offsets` must be the first row of each batch"),
        ({"offsets": [0, 3]}, r"must begin with 0 and end with 4, but its ends are \[0, 3\]"),
        ({"offsets": [1, 4]}, r"must begin with 0 and end with 4, but its ends are \[1, 4\]"),
        ({"offsets": []}, r"must begin with 0 and end with 4, but it has shape \(0,\)"),
        ({"offsets": [0, 3, 2, 4]}, "`offsets` must be non-decreasing, but has 3 before 2"),
        ({"rows": [0, 3], "offsets": [0, 1]}, "`rows` must begin with 0 and end with 4"),
        ({"rows": [0, 3, 2, 4], "offsets": [0, 3]}, "`rows` must be non-decreasing"),
        ({"offsets": [0, 1, 4], "lanes": 2}, "must have exactly 2 rows, .* but batch 0 has 1"),
        ({"offsets": [0, 4, 4]}, "batch 1 must have at least one row"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(PlanError, match=message):
        Plan(SPANS, **arguments)


@pytest.mark.parametrize("spans", [[[0, 0]], [[0, 0, 3, 1]], [0, 0, 3, 1], [[0, 0]] * 3])
def test_spans_of_another_shape_are_refused(spans):
    with pytest.raises(PlanError, match=r"`spans` must have shape \(n, 3\).*, but have shape"):
        Plan(spans, offsets=[0, 1])


def test_a_span_that_ends_before_it_starts_is_refused():
    with pytest.raises(PlanError, match=r"every span must have 0 <= .*, but span 0 is \[0, 3, 2\]"):
        Plan([[0, 3, 2]], offsets=[0, 1])


def test_equal_plans_have_equal_fingerprints():
    one, same = Plan(SPANS, offsets=[0, 2, 4]), Plan(np.array(SPANS), offsets=[0, 2, 4])
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != Plan(SPANS, offsets=[0, 1, 4]).fingerprint


def test_the_report_of_a_plan_made_by_hand_adds_up():
    report = Plan(SPANS, offsets=[0, 2, 4]).report
    assert (report.sequences, report.timesteps, report.padded) == (3, 14, 6 + 10)
    assert (report.worst, report.worst_rows, report.worst_length) == (1, 2, 5)
    assert report.waste == pytest.approx(16 / 14)


def test_an_empty_plan_reports_no_waste():
    plan = Plan([], offsets=[0])
    assert len(plan) == 0
    assert (plan.report.waste, plan.report.worst) == (1.0, -1)
    assert plan.spans.shape == (0, 3)


def test_a_lookahead_changes_nothing_else():
    plan = Plan(SPANS, offsets=[0, 2, 4]).with_lookahead(1)
    assert (plan.lookahead, len(plan)) == (1, 2)


def test_a_carried_row_has_context_in_every_batch_but_the_first():
    spans = [[0, 2, 5], [1, 0, 4], [0, 3, 5], [2, 0, 2], [1, 2, 6]]
    plan = Plan(spans, [0, 1, 2, 4, 5], [0, 2, 4], 2, carry=True, overlap=2)
    assert plan.totals(0, 1) == (3 + 4, 2)
    assert plan.totals(1, 2) == (2 + 2, 2)


def test_a_plan_without_a_stream_extends_nothing_and_scales_nothing():
    plan = Plan([[0, 0, 4]], offsets=[0, 1])
    assert plan.extend(0, 1) is None
    assert plan.lr_scale(0) == 1.0
