"""What a plan does to the data is counted from its table, batch by batch."""

import numpy as np
import pytest

from seqdata.index import SequenceIndex
from seqdata.plan_table import ArrayTable
from seqdata.policies.fixed import Bucketed
from seqdata.policies.packed import Packed
from seqdata.report import PlanReport, make_report, measure_batches

SPANS = np.array([[0, 0, 4], [1, 0, 2], [2, 0, 3], [0, 4, 9], [1, 2, 2]])


def test_batches_are_measured_with_their_padding():
    measures = measure_batches(ArrayTable(SPANS, None, np.array([0, 2, 5])))
    assert measures.rows.tolist() == [2, 3]
    assert measures.longest.tolist() == [4, 5]
    assert measures.timesteps.tolist() == [6, 8]
    assert measures.padded.tolist() == [8, 15]
    assert measures.padding.tolist() == pytest.approx([1 - 6 / 8, 1 - 8 / 15])


def test_rows_of_several_spans_are_as_long_as_these():
    table = ArrayTable(SPANS, np.array([0, 2, 4, 5]), np.array([0, 2, 3]))
    measures = measure_batches(table)
    assert measures.rows.tolist() == [2, 1]
    assert measures.longest.tolist() == [8, 0]
    assert measures.padding.tolist() == [1 - 14 / 16, 1.0]  # an idle row is nothing but padding


def test_a_sequence_of_several_spans_is_counted_once_and_an_idle_one_not_at_all():
    report = make_report(ArrayTable(SPANS, None, np.array([0, 2, 5])))
    assert (report.sequences, report.timesteps, report.padded) == (3, 14, 23)
    assert make_report(ArrayTable(SPANS[4:], None, np.array([0, 1]))).sequences == 0


def test_the_worst_batch_is_that_with_most_timesteps_after_padding():
    report = make_report(ArrayTable(SPANS, None, np.array([0, 2, 5])))
    assert (report.worst, report.worst_rows, report.worst_length) == (1, 3, 5)


def test_no_batch_is_no_worst_one_and_wastes_nothing():
    report = make_report(ArrayTable(np.empty((0, 3), dtype=np.int64), None, np.array([0])))
    assert (report.sequences, report.padded, report.worst, report.waste) == (0, 0, -1, 1.0)


def test_waste_is_what_is_moved_for_a_real_timestep():
    assert PlanReport(sequences=2, timesteps=8, padded=10).waste == 1.25


@pytest.mark.parametrize("policy", [Bucketed(4), Packed(2, 64)], ids=str)
def test_a_plans_report_is_that_of_its_batches(policy):
    index = SequenceIndex.from_lengths(np.random.default_rng(0).integers(1, 60, 200))
    plan = policy.plan(index, seed=0, epoch=1)
    padded = timesteps = 0
    for number in range(len(plan)):
        batch = plan.batch(number)
        sizes = batch.spans[:, 2] - batch.spans[:, 1]
        lengths = sizes if batch.rows is None else np.add.reduceat(sizes, batch.rows[:-1])
        padded += len(lengths) * lengths.max()
        timesteps += lengths.sum()
    assert (plan.report.padded, plan.report.timesteps) == (padded, timesteps)
    assert plan.report.timesteps == index.lengths.sum()
    assert plan.report.sequences == 200
