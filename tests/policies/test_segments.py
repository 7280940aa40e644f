"""Segments of an epoch: counts that are declared, and plans that follow from weights."""

from dataclasses import dataclass

import numpy as np
import pytest

from seqdata.errors import ConfigError, PlanError
from seqdata.index import SequenceIndex
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.packed import Packed
from seqdata.policies.segments import Segments
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata.policies.windows import Windows

INDEX = SequenceIndex.from_lengths(np.random.default_rng(0).integers(1, 50, 100))
INNER = [Fixed(8), Bucketed(8), TokenBudget(128), Packed(2, 64)]


def rows_of(plan, first, stop):
    return [plan.batch(number).spans.tolist() for number in range(first, stop)]


def plan_with(policy, changes, seed=0, epoch=0):
    history = policy.make_history()
    for first, weights in changes:
        history.set(epoch, first, policy.make_weights(INDEX, weights))
    return policy.plan_epoch(INDEX, seed=seed, epoch=epoch, history=history)


@pytest.mark.parametrize("inner", INNER, ids=lambda policy: type(policy).__name__)
def test_weights_hold_from_their_segment_on_and_change_nothing_before(inner):
    policy = Segments(Weighted(inner), 3)
    plan = policy.plan(INDEX, seed=1, epoch=0)
    changed = plan_with(policy, [(6, np.arange(100) < 5)], seed=1)
    assert len(plan) == len(changed) == policy.num_batches(INDEX)
    assert rows_of(changed, 0, 6) == rows_of(plan, 0, 6)
    assert max(sequence for batch in rows_of(changed, 6, 9) for sequence, _, _ in batch) < 5
    assert plan.fingerprint == changed.fingerprint  # weights are not declared: a state has them


def test_segments_of_equal_weights_draw_differently():
    policy = Segments(Weighted(Fixed(10), draws=60), 2)
    plans = [policy.plan(INDEX, seed=0, epoch=epoch) for epoch in (0, 1)]
    drawn = {str(rows_of(plan, first, first + 2)) for plan in plans for first in (0, 2, 4)}
    assert len(drawn) == 6


@pytest.mark.parametrize("batches", [13, 400])  # more than the integers that Python keeps once
def test_the_last_segment_draws_what_is_left(batches):
    index = SequenceIndex.from_lengths(np.full(8 * batches - 4, 3))
    plan = Segments(Weighted(Fixed(8)), 5).plan(index, seed=0, epoch=0)
    rows = [len(plan.batch(number).spans) for number in range(len(plan))]
    assert rows == [8] * (batches - 1) + [4]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_sequence_may_make_more_batches_than_a_segment_has(length):
    windows = Windows(5, batch_size=1, random=True, per_sequence=2)
    plan = Segments(Weighted(windows, draws=20), length).plan(INDEX, seed=0, epoch=0)
    assert len(plan) == 40
    assert all(len(rows) == 1 for rows in rows_of(plan, 0, 40))


def test_a_plan_as_arrays_is_its_batches():
    for inner in INNER:
        plan = Segments(Weighted(inner), 4).plan(INDEX, seed=0, epoch=0)
        spans = [span for batch in rows_of(plan, 0, len(plan)) for span in batch]
        assert plan.spans.tolist() == spans
        assert plan.measures.rows.sum() == len(spans) if plan.rows is None else len(plan.rows) - 1
        assert plan.totals(0, len(plan))[0] == plan.report.timesteps


def test_importance_follows_the_weights_of_the_segment():
    policy = Segments(Weighted(Fixed(4), importance=True), 5)
    weights = np.arange(1, 101)
    plan = plan_with(policy, [(5, weights)])
    assert plan.row_weights([0, 4]).tolist() == [1] * 8
    drawn = plan.batch(7).spans[:, 0]
    expected = weights.sum() / (100 * weights[drawn])
    np.testing.assert_allclose(plan.row_weights([7]), expected, rtol=1e-6)


def test_a_crop_of_a_later_segment_is_another_one():
    plan = Segments(Weighted(Fixed(4), draws=40), 5).plan(INDEX, seed=0, epoch=0)
    epochs = {plan.drawn_batch(number).epoch for number in range(10)}
    assert len(epochs) == 2


def test_a_segment_that_was_looked_at_before_it_began_gets_its_weights():
    policy = Segments(Weighted(Fixed(4)), 5)
    history = policy.make_history()
    plan = policy.plan_epoch(INDEX, seed=0, epoch=0, history=history)
    before = rows_of(plan, 5, 10)
    history.set(0, 5, policy.make_weights(INDEX, np.arange(100) < 5))
    assert rows_of(plan, 5, 10) != before
    assert plan.batch(5).spans[:, 0].max() < 5


def test_only_the_latest_weights_are_kept():
    policy = Segments(Weighted(Fixed(4)), 5)
    plan = plan_with(policy, [(first, np.arange(1, 101)) for first in (5, 10, 15)])
    plan.batch(10)
    message = (
        r"weights of batch 5 of epoch 0 must be known, but only those from batch 10 of epoch 0"
    )
    with pytest.raises(PlanError, match=message):
        plan.batch(5)


@pytest.mark.parametrize("wrong", [Fixed(4), Curriculum(Fixed(4), by=int), None, Weighted])
def test_a_policy_without_weights_is_refused(wrong):
    with pytest.raises(ConfigError, match="`policy` must be Weighted, or a Mix"):
        Segments(wrong, 4)


@pytest.mark.parametrize("too_long", ["drop", "truncate"])
def test_a_limit_that_follows_the_epoch_is_refused(too_long):
    """A segment is not an epoch: the limit was asked for a hash in place of the epoch."""
    rising = Curriculum(Fixed(4, too_long=too_long), by=lambda epoch: 3 if epoch < 2 else None)
    message = r"vary. Pass e.g. Weighted\(.*, or leave the segments out and write Curriculum\(Weigh"
    with pytest.raises(ConfigError, match=message):
        Segments(Weighted(rising), 4)


def test_batches_whose_number_follows_the_epoch_are_refused():
    @dataclass(frozen=True)
    class Growing:
        axis = "time"
        varies = True

        def plan(self, index, *, seed, epoch):
            return Fixed(epoch + 1).plan(index, seed=seed, epoch=epoch)

        def num_batches(self, index):
            return self.num_batches_of(index, 0)

        def num_batches_of(self, index, epoch):
            return Fixed(epoch + 1).num_batches(index)

    weighted = Weighted(Growing(), np.arange(100), draws=60)
    assert [len(weighted.plan(INDEX, seed=0, epoch=epoch)) for epoch in range(3)] == [60, 30, 20]
    with pytest.raises(
        ConfigError, match=r"of Growing vary. Pass e.g. Weighted\(Bucketed\(64\)\)\.$"
    ):
        Segments(weighted, 4)


@pytest.mark.parametrize("batches", [0, -1, 1.5, True])
def test_a_segment_has_a_batch(batches):
    with pytest.raises(ConfigError, match="policy 'segments': `batches` must be"):
        Segments(Weighted(Fixed(4)), batches)


def test_weights_of_sequences_that_are_left_out_draw_nothing():
    policy = Segments(Weighted(Fixed(4, max_length=10, too_long="drop")), 3)
    plan = plan_with(policy, [(3, INDEX.lengths > 10)])
    plan.batch(2)
    with pytest.raises(PlanError, match=r"a segment must have a sequence to draw, but has none"):
        plan.batch(3)
