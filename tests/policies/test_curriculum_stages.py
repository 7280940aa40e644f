"""Stages of a run: which pass a batch is of, for any lengths, policies, epochs and places."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import PlanError
from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.policies.curriculum import Stage, StagedTable, make_staged_report
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.packed import Packed
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata_testing.blocks import SmallBlocks
from seqdata_testing.plans import check_table
from tests.properties.counts import examples

policies = st.one_of(
    st.builds(Fixed, st.integers(1, 9)),
    st.builds(TokenBudget, st.integers(40, 90)),
    st.builds(SmallBlocks, st.builds(Bucketed, st.integers(1, 2)), st.integers(1, 9)),
)
packed = st.builds(Packed, st.integers(1, 3), st.integers(40, 90))  # rows of several sequences


@dataclass(frozen=True)
class Run:
    """A run in stages, with its whole order as it must be."""

    index: SequenceIndex
    stages: list[Stage]
    seed: int
    count: int

    def make_plan(self, epoch):
        table = StagedTable(
            self._find(epoch), self.index, self.seed, epoch * self.count, self.count
        )
        report = lambda made: make_staged_report(made, table.first_plans())  # noqa: E731
        return Plan.lazy(table, PlanOrigin(fingerprint=str, report=report))

    def _find(self, epoch):
        first, stop = epoch * self.count, (epoch + 1) * self.count
        ends = [stage.first for stage in self.stages[1:]] + [stop]
        return [
            stage
            for stage, end in zip(self.stages, ends, strict=True)
            if stage.first < stop and end > first
        ]

    def list_batches(self, stop):
        """Return the spans of batches up to ``stop``, and the pass of each, one by one."""
        found = []
        ends = [stage.first for stage in self.stages[1:]] + [stop]
        for number, (stage, end) in enumerate(zip(self.stages, ends, strict=True)):
            passes = -(-(end - stage.first) // stage.pass_batches)
            plans = [stage.plan_pass(self.index, self.seed, own) for own in range(max(passes, 0))]
            whole = [
                (number, own, plan.batch(batch).spans.tolist())
                for own, plan in enumerate(plans)
                for batch in range(len(plan))
            ]
            found += whole[: max(end - stage.first, 0)]
        return found


@st.composite
def runs(draw):
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any))
    index = SequenceIndex.from_lengths(lengths)
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 60), max_size=4)))]
    stages = []
    kind = draw(st.sampled_from([policies, policies, packed]))
    for first in firsts:
        policy = draw(kind)
        stages.append(Stage(first, policy, policy.num_batches(index)))
    return Run(index, stages, draw(st.integers(0, 1 << 40)), draw(st.integers(1, 30)))


@examples(0.3, here=20)
@given(runs(), st.integers(0, 6))
def test_any_batch_is_the_next_one_of_its_stage(run, epoch):
    first, stop = epoch * run.count, (epoch + 1) * run.count
    run.stages[:] = [stage for stage in run.stages if stage.first < stop]
    plan, due = run.make_plan(epoch), run.list_batches(stop)[first:]
    check_table(plan)
    assert [plan.batch(number).spans.tolist() for number in range(len(plan))] == [
        spans for _, _, spans in due
    ]
    assert plan.spans.tolist() == [span for _, _, spans in due for span in spans]
    epochs = defaultdict(set)
    for number, (stage, own_pass, spans) in enumerate(due):
        drawn = plan.drawn_batch(number)
        assert drawn.spans.tolist() == spans
        epochs[stage, own_pass].add(drawn.epoch)
    assert len(set.union(*epochs.values())) == len(epochs)  # one of each pass, and no two alike
    number = 0
    while number < len(plan):  # as a reader asks for them
        end = plan.prepare(number)
        assert number < end <= len(plan)
        assert len({due[k][:2] for k in range(number, end)}) == 1
        assert plan.slice(number, end).spans.tolist() == [
            span for _, _, spans in due[number:end] for span in spans
        ]
        number = end


def test_a_stage_shuffles_unlike_the_one_before():
    index = SequenceIndex.from_lengths([1] * 100)
    stages = [Stage(first, Fixed(4), 25) for first in (0, 25, 50)]
    run = Run(index, stages, 3, 75)
    spans = run.make_plan(0).spans[:, 0].tolist()
    passes = [spans[first:stop] for first, stop in pairwise((0, 100, 200, 300))]
    assert [sorted(own) for own in passes] == [list(range(100))] * 3
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert passes[0] == Fixed(4).plan(index, seed=3, epoch=0).spans[:, 0].tolist()


def test_the_draws_and_the_parts_of_a_stage_are_told_apart():
    parts = {"a": SequenceIndex.from_lengths([1, 2]), "b": SequenceIndex.from_lengths([3])}
    index = SequenceIndex.from_parts(parts)
    mix = Mix({"a": 1, "b": 1}, Fixed(1), batches=4, keep="batch")
    plan = Run(index, [Stage(0, mix, 4), Stage(6, mix, 4)], 0, 12).make_plan(0)
    drawn = [(plan.drawn_batch(k).epoch, int(plan.batch(k).spans[0, 0])) for k in range(12)]
    assert len(set(drawn)) == 12
    weighted = Weighted(Fixed(2), [1.0, 3.0], draws=8)
    two = SequenceIndex.from_lengths([2, 4])
    plan = Run(two, [Stage(0, weighted, 4)], 0, 8).make_plan(0)
    draws = {
        (drawn.epoch, position)
        for drawn in map(plan.drawn_batch, range(8))
        for position in drawn.spans[:, 0].tolist()
    }
    assert len(draws) == 16


def test_what_some_stage_has_is_not_dropped():
    index = SequenceIndex.from_lengths([2, 5, 9])
    short = Fixed(1, max_length=4, too_long="drop")
    longer = Fixed(1, max_length=6, too_long="drop")
    cut = Fixed(1, max_length=4, too_long="truncate")
    report = Run(index, [Stage(0, short, 1), Stage(1, longer, 2)], 0, 6).make_plan(0).report
    assert report.dropped.tolist() == [2]
    report = Run(index, [Stage(0, short, 1), Stage(1, cut, 3)], 0, 6).make_plan(0).report
    assert (report.dropped.tolist(), report.truncated.tolist()) == ([], [1, 2])
    assert report.split.dtype == np.int64


def test_a_policy_whose_epochs_differ_is_refused():
    run = Run(SequenceIndex.from_lengths([1] * 9), [Stage(0, Fixed(2), 4)], 0, 3)
    with pytest.raises(PlanError, match=r"epoch 0 of Fixed must have 4 batches, .* but has 5"):
        run.make_plan(0).batch(0)
