"""The checks of plans find plans and policies that break a promise, and say which."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin, PlanReport
from seqdata.plan_table import ArrayTable, BatchTable
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.packed import Packed
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata.policies.windows import Windows
from seqdata_testing import ConformanceError
from seqdata_testing.blocks import SmallBlocks
from seqdata_testing.plans import (
    check_budget,
    check_constant_count,
    check_covers,
    check_draws,
    check_policy,
    check_pure,
    check_table,
)

INDEX = SequenceIndex.from_lengths([3, 0, 2, 5])
SPANS = [[0, 0, 3], [2, 0, 2], [3, 0, 5]]
GOOD = PlanReport(sequences=3, timesteps=10, padded=11, worst=0, worst_rows=2, worst_length=3)


@dataclass(frozen=True, eq=False)
class Bent(BatchTable):
    """A table of a policy's own that says the wrong thing in one place."""

    table: ArrayTable
    told: dict = field(default_factory=dict)

    def __len__(self):
        return self.told.get("len", len(self.table))

    def batch(self, number):
        return self.table.batch(self.told.get("batch", number))

    def totals(self, first, stop, overlap):
        return self.told.get("totals", self.table.totals(first, stop, overlap))

    def tables(self):
        return self.table.tables()

    def prepare(self, number):
        return self.told.get("prepare", len(self))


ORIGIN = PlanOrigin(lambda: "f" * 32, lambda made: GOOD)


def plan_of(report=GOOD, **told):
    table = ArrayTable.from_arrays(SPANS, None, [0, 2, 3], 0)
    return Plan.lazy(Bent(table, told), PlanOrigin(lambda: "f" * 32, lambda made: report))


def test_a_good_plan_passes():
    check_table(plan_of())
    check_covers(plan_of(), INDEX)
    check_budget(plan_of(), 6, 2)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of(len=3), r"`offsets` names 2 batches, but must be len\(plan\) = 3"),
        (
            Plan.lazy(ArrayTable(np.array(SPANS), None, np.array([0, 1, 1, 3])), ORIGIN),
            "batch 1 has no rows, but must have at least one",
        ),
        (Plan([[0, 2, 2]], offsets=[0, 1]), r"span 0 is \[0, 2, 2\], but must hold a timestep"),
        (plan_of(batch=0), r"batch\(1\) differs from its place in `spans`, but must be the same"),
        (plan_of(totals=(5, 2)), r"totals of batch 1 are \(5, 2\), but must be \(5, 1\) scored"),
        (plan_of(prepare=1), r"prepare\(1\) is 1, but must be a later batch, at most 2"),
        (
            plan_of(replace(GOOD, padded=10)),
            r"the report has \(3, 10, 10\) sequences, .*, but must have \(3, 10, 11\)",
        ),
        (
            plan_of(replace(GOOD, worst=1)),
            "most expensive batch is 1 with 2 rows of 3, but must be one of 6 timesteps after pad",
        ),
    ],
)
def test_a_table_that_contradicts_itself_is_found(plan, message):
    with pytest.raises(ConformanceError, match=message):
        check_table(plan)


def test_rows_that_differ_from_the_whole_are_found():
    table = ArrayTable.from_arrays([[0, 0, 1]] * 4, [0, 2, 3, 4], [0, 1, 3], 0)
    report = PlanReport(sequences=1, timesteps=4, padded=4, worst=0, worst_rows=1, worst_length=2)
    check_table(Plan.lazy(Bent(table), PlanOrigin(str, lambda made: report)))
    with pytest.raises(ConformanceError, match=r"batch\(0\) differs from its place in `spans`"):
        check_table(Plan.lazy(Bent(table, {"batch": 1}), PlanOrigin(str, lambda made: report)))


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (
            [[0, 0, 3], [2, 1, 2], [3, 0, 5]],
            "sequence 2: the span after timestep 0 begins at 1, but each timestep must be",
        ),
        (
            [[0, 0, 3], [2, 0, 2], [3, 0, 3], [3, 2, 5]],
            "sequence 3: the span after timestep 3 begins at 2",
        ),
        ([*SPANS, [0, 0, 3]], "sequence 0: the span after timestep 3 begins at 0"),
        (
            SPANS[1:],
            "sequence 0 of 3 timesteps is planned up to 0, but must be whole, or in the report",
        ),
        ([[0, 0, 2], *SPANS[1:]], "sequence 0 of 3 timesteps is planned up to 2"),
    ],
    ids=["late", "overlapping", "twice", "missing", "short"],
)
def test_timesteps_that_are_lost_or_repeated_are_found(spans, message):
    with pytest.raises(ConformanceError, match=message):
        check_covers(Plan(spans, offsets=[0, len(spans)]), INDEX)


def test_context_is_not_scored_twice():
    index = SequenceIndex.from_lengths([6])
    check_covers(Plan([[0, 0, 4], [0, 2, 6]], offsets=[0, 1, 2], overlap=2), index)
    with pytest.raises(ConformanceError, match="sequence 0: the span after timestep 4 begins at 3"):
        check_covers(Plan([[0, 0, 4], [0, 2, 6]], offsets=[0, 1, 2], overlap=1), index)


def test_what_the_report_declares_is_missed_by_nobody():
    dropped = replace(GOOD, dropped=np.array([1, 2]))
    table = ArrayTable.from_arrays([SPANS[0], SPANS[2]], None, [0, 2], 0)
    check_covers(Plan.lazy(table, PlanOrigin(str, lambda made: dropped)), INDEX)
    cut = replace(GOOD, truncated=np.array([3]))
    table = ArrayTable.from_arrays([*SPANS[:2], [3, 0, 4]], None, [0, 3], 0)
    check_covers(Plan.lazy(table, PlanOrigin(str, lambda made: cut)), INDEX)
    with pytest.raises(ConformanceError, match="sequence 3 of 5 timesteps is planned up to 5"):
        check_covers(Plan.lazy(plan_of()._table, PlanOrigin(str, lambda made: cut)), INDEX)


def test_batches_over_budget_are_found():
    with pytest.raises(
        ConformanceError, match=r"batch 0 has 6 timesteps .*, but must have at most 5"
    ):
        check_budget(plan_of(), 5)
    with pytest.raises(ConformanceError, match="batch 0 has 2 rows, but must have at most 1"):
        check_budget(plan_of(), 6, 1)


@dataclass(frozen=True)
class Wrong:
    """A policy that breaks one promise."""

    what: str
    axis: str = "time"
    calls: list = field(default_factory=list, compare=False)

    def num_batches(self, index):
        return 2 if self.what == "count" else len(index)

    def plan(self, index, *, seed, epoch):
        self.calls.append(epoch)
        plan = Fixed(1, shuffle=self.what != "order").plan(index, seed=seed, epoch=epoch)
        if self.what == "state":
            return Fixed(1).plan(index, seed=seed, epoch=len(self.calls))
        if self.what in ("print", "one print"):
            text = str(len(self.calls)) if self.what == "print" else "same"
            return Plan.lazy(plan._table, PlanOrigin(lambda: text, lambda made: plan.report))
        return plan


TWENTY = SequenceIndex.from_lengths(range(1, 21))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("state", "epoch 1 of seed 0 was planned twice and differs, but must be the same"),
        ("print", "equal plans have fingerprints 1 and 2, but must have one"),
        ("one print", r"\(0, 1\) and \(1, 1\) have different plans and the same"),
        ("order", r"\(0, 1\) and \(1, 1\) have the same order, but must differ. Draw"),
    ],
)
def test_impure_policies_are_found(what, message):
    with pytest.raises(ConformanceError, match=message):
        check_pure(Wrong(what), TWENTY)


def test_an_order_that_should_not_be_random_is_found():
    check_pure(Fixed(1, shuffle=False), TWENTY, shuffled=False)
    with pytest.raises(ConformanceError, match="differ in order, but must not, since it is no"):
        check_pure(Fixed(1), TWENTY, shuffled=False)


def test_a_count_that_is_not_what_was_declared_is_found():
    message = r"epoch 0 of seed 0 has 20 batches, but `count_batches` returns 2"
    with pytest.raises(ConformanceError, match=message):
        check_constant_count(Wrong("count"), TWENTY)
    with pytest.raises(ConformanceError, match=message):
        check_policy(Wrong("count"), TWENTY)


@pytest.mark.parametrize(
    "policy",
    [
        Bucketed(4),
        TokenBudget(16),
        TokenBudget(64),
        SmallBlocks(Bucketed(1), 64),
        SmallBlocks(TokenBudget(64), 7),
        Windows(size=5, batch_size=4),
        Windows(size=5, batch_size=4, random=True, per_sequence=2),
    ],
)
def test_the_policies_of_the_core_pass(policy):
    index = SequenceIndex.from_lengths(np.arange(300) % 17)
    check_policy(policy, index)


def test_a_verdict_is_an_assertion_error():
    with pytest.raises(AssertionError, match="batch 0 has 6 timesteps"):
        check_budget(plan_of(), 5)


DRAWN = SequenceIndex.from_lengths(np.random.default_rng(0).integers(0, 30, 100))
WEIGHTS = np.arange(100) % 6


@pytest.mark.parametrize(
    "inner",
    [
        Fixed(3),
        Bucketed(3),
        TokenBudget(40),
        Packed(2, 40),
        Bucketed(3, max_length=9, too_long="split"),
        Fixed(3, max_length=9, too_long="truncate"),
        Fixed(3, max_length=9, too_long="drop"),
    ],
    ids=repr,
)
def test_policies_that_draw_with_repetition_are_held_to_their_law(inner):
    check_policy(Weighted(inner, WEIGHTS, draws=170), DRAWN)
    check_policy(Weighted(inner), DRAWN)


def drawn_plan(*numbers, cut=0):
    spans = [[number, 0, int(INDEX.lengths[number]) - cut] for number in numbers]
    return Plan(spans, offsets=[0, len(spans)])


def test_draws_that_follow_their_law_pass():
    check_draws(drawn_plan(0, 2, 2, 3), INDEX, np.array([0.5, 0, 2.0, 1.5]))
    check_draws(drawn_plan(2, 2, 3, 3), INDEX, np.array([0.5, 0, 2.0, 1.5]))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (drawn_plan(0, 0, 2, 2), "sequence 0 is drawn 2 times, but must be drawn 0.5 times"),
        (drawn_plan(0, 2, 3, 3), "sequence 2 is drawn 1 times, but must be drawn 2 times"),
        (drawn_plan(2, 2), "sequence 3 is drawn 0 times, but must be drawn 1.5 times"),
        (drawn_plan(2, 2, 3, 3, cut=1), "sequence 2 of 2 timesteps is planned up to 1"),
        (
            Plan([[2, 0, 1], [2, 0, 1], [2, 1, 2], [3, 0, 5]], offsets=[0, 4]),
            "timesteps of sequence 2 are drawn 1 to 2 times, but must all be drawn equally",
        ),
    ],
)
def test_draws_that_break_their_law_are_found(plan, message):
    with pytest.raises(ConformanceError, match=message):
        check_draws(plan, INDEX, np.array([0.5, 0, 2.0, 1.5]))


@dataclass(frozen=True)
class Favouring(Weighted):
    """Draws otherwise than it says."""

    def expected_draws(self, index):
        return Weighted(self.policy, None, self.draws).expected_draws(index)


def test_a_policy_that_draws_otherwise_than_it_says_is_found():
    with pytest.raises(ConformanceError, match="times, but must be drawn 2 times"):
        check_policy(Favouring(Fixed(3), WEIGHTS, 200), SequenceIndex.from_lengths([4] * 100))
