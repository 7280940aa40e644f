"""The checks of sharing find every way in which a share can be wrong, and say which."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from seqdata.plan import Plan
from seqdata.sharing import RankPlan, World, share
from seqdata_testing import ConformanceError, simulate
from seqdata_testing.sharing import (
    check_elastic,
    check_equal_steps,
    check_exactly_once,
    check_order,
    check_resume,
    check_shares,
    check_totals,
)
from seqdata_testing.simulate import play

FIVE = Plan([(number, 0, 1 + number) for number in range(5)], offsets=range(6))
LANES = Plan([(lane, 0, lane + step) for step in (0, 1) for lane in range(3)], None, [0, 3, 6], 3)
ROWS = Plan([(0, 0, 1)] * 6, [0, 2, 3, 4, 6], [0, 2, 4])
PACKED = Plan([(0, 0, 1)] * 4, [0, 1, 2, 4], [0, 1, 3], 0)


@dataclass(frozen=True)
class Bent:
    """A share that is wrong on one rank, in one place."""

    share: RankPlan
    told: dict[str, Any] = field(default_factory=dict)

    def __len__(self):
        return self.told.get("len", len(self.share))

    @property
    def first_step(self):
        return self.told.get("first_step", self.share.first_step)

    def position(self, step):
        return self.told.get("position", self.share.position(step))

    def totals(self, first, stop):
        return self.told.get("totals", self.share.totals(first, stop))

    def __getitem__(self, step):
        if "open" in self.told:
            return self.share[min(step, len(self.share) - 1)]
        step = self.told.get("step", {}).get(step, step)
        return self.share[step]._replace(**self.told.get("replace", {}).get(step, {}))


@pytest.fixture
def bend(monkeypatch):
    def bend(rank=1, size=2, **told):
        def bent(plan, world, **options):
            made = share(plan, world, **options)
            return Bent(made, told) if world == World(rank, size) else made

        monkeypatch.setattr(simulate, "share", bent)

    return bend


@pytest.mark.parametrize("plan", [FIVE, LANES, ROWS, PACKED])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shares_of_good_plans_pass(plan, size):
    for first in range(len(plan) + 1):
        check_shares(plan, size, first=first)
        check_shares(plan, size, first=first, tail="repeat")
    check_resume(plan, size, [0, 1, 1])
    check_elastic(plan, [(size, 1), (2, 1), (size + 1, 0)])


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"len": 4}, "rank 1 of 2 from batch 1 has 4 steps, but must have 3"),
        (
            {"first_step": 0},
            "rank 1 of 2 from batch 1 begins at step 0, but must begin at 1: first_s",
        ),
        ({"position": 3}, "the position before step 1 is 3, but must be 1 batches"),
        ({"open": True}, "from batch 1 returns a step 3, which does not exist, but must raise Ind"),
    ],
)
def test_unequal_steps_are_found(bend, told, message):
    bend(**told)
    with pytest.raises(ConformanceError, match=message):
        check_equal_steps(FIVE, 2, first=1)


ZERO, ONE = np.zeros(1, dtype=np.float32), np.ones(1, dtype=np.float32)


@pytest.mark.parametrize(
    ("plan", "told", "message"),
    [
        (
            FIVE,
            {"step": {0: 1}},
            r"from batch 0 on 2 ranks are batches \[3, 2, 3\] at position 1, but must be \[1, 2, "
            r"3\]",
        ),
        (
            FIVE,
            {"replace": {1: {"spans": FIVE.spans[:1]}}},
            "batch 3 on 2 ranks has other rows than in the plan",
        ),
        (
            FIVE,
            {"replace": {2: {"spans": FIVE.spans[:1]}}},
            r"the padding row of rank 1 is \[\[0, 0, 1\]\] of batch 4, but must be row 0 of",
        ),
        (FIVE, {"replace": {2: {"weights": ONE}}}, r"are batches \[4\] at position 5, but must"),
        (
            FIVE,
            {"replace": {1: {"lanes": np.zeros(1)}}},
            r"batch 3 on rank 1 has weights \[1.0\], but must be all 1, before any padding rows",
        ),
        (
            LANES,
            {"replace": {0: {"weights": np.array([0, 1], dtype=np.float32)}}},
            r"batch 0 has weights \[0.0, 1.0\] on rank 1 of 2, but must be \[1.0, 1.0\]: 0 where",
        ),
        (
            LANES,
            {"replace": {1: {"lanes": np.array([1, 1])}}},
            r"the lanes of 2 ranks are \[0, 1, 1\], but must be 0 to 2, each on one rank",
        ),
        (LANES, {"replace": {1: {"lanes": None}}}, r"the lanes of 2 ranks are \[0\], but must be"),
    ],
)
def test_another_order_is_found(bend, plan, told, message):
    bend(**told)
    with pytest.raises(ConformanceError, match=message):
        check_order(play(plan, 2))


def test_weights_of_a_batch_that_differ_are_found(bend):
    two = Plan(FIVE.spans[:4], offsets=[0, 2, 4])
    bend(replace={0: {"weights": np.array([0, 1], dtype=np.float32)}})
    with pytest.raises(
        ConformanceError, match=r"are batches \[\] at position 1, but must be \[1\]"
    ):
        check_order(play(two, 2))


@pytest.mark.parametrize(
    ("told", "count"),
    [({"replace": {1: {"weights": ZERO}}}, 4), ({"replace": {2: {"weights": ONE}}}, 6)],
    ids=["lost", "repeated"],
)
def test_rows_that_are_lost_or_repeated_are_found(bend, told, count):
    bend(**told)
    message = f"{count} spans of weight > 0 on 2 ranks from batch 0, but must be the plan's 5, each"
    with pytest.raises(ConformanceError, match=message):
        check_exactly_once(play(FIVE, 2))


def test_totals_that_one_rank_alone_believes_are_found(bend):
    bend(totals=(9, 2))
    message = r"from step 0 to 1 on 2 ranks are \(9, 2\), but must be \(3, 2\): no padding row"
    with pytest.raises(ConformanceError, match=message):
        check_totals(play(FIVE, 2))


def test_a_resume_at_another_step_is_found(bend):
    bend(rank=0, size=1, first_step=2)
    with pytest.raises(
        ConformanceError, match="resumed at step 1, goes from step 2 to 5, but must go"
    ):
        check_resume(FIVE, 1, [1])


def test_a_resume_with_other_batches_is_found(monkeypatch):
    def forgetful(plan, world, *, first, tail):
        made = share(plan, world, first=first, tail=tail)
        return Bent(made, {"step": {4: 3}} if first else {})

    monkeypatch.setattr(simulate, "share", forgetful)
    message = (
        "rank 0 of 1, resumed at step 2: step 4 is batch 3, but must be batch 4 just as without"
    )
    with pytest.raises(ConformanceError, match=message):
        check_resume(FIVE, 1, [2])


def test_ranks_that_save_different_states_are_found(bend):
    bend(position=1)
    message = (
        r"at step 1 the ranks must save .*, but save \['{\"position\": 1}', '{\"position\": 2}'\]"
    )
    with pytest.raises(ConformanceError, match=message):
        check_resume(FIVE, 2, [1])


def test_worlds_that_lose_a_batch_are_found(bend):
    bend(replace={0: {"weights": ZERO}})
    message = (
        r"worlds of \[2, 3\] ranks train 4 batches, but must train each of 5 once .* batches \[1\]"
    )
    with pytest.raises(ConformanceError, match=message):
        check_elastic(FIVE, [(2, 1), (3, 0)])


def test_worlds_that_change_a_batch_are_found(bend):
    bend(replace={0: {"spans": FIVE.spans[4:]}})
    message = r"batch 1 changes with the world, but must be the same on \[2, 3\]"
    with pytest.raises(ConformanceError, match=message):
        check_elastic(FIVE, [(2, 1), (3, 0)])
