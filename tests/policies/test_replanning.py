"""A plan does not depend on what was planned before over the same index."""

import numpy as np
import pytest

from seqdata.errors import PlanError
from seqdata.index import SequenceIndex
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.windows import Windows

DRAW = np.random.default_rng(0)
LENGTHS = {"time": DRAW.integers(1, 40, size=120), "text": DRAW.integers(1, 60, size=120)}


def squared(lengths_of):
    return lengths_of["time"] ** 2 // 32 + 1


POLICIES = [
    TokenBudget(256),
    TokenBudget(256, cost="max"),
    TokenBudget(256, cost=squared),
    TokenBudget(256, axis="text"),
    TokenBudget(512, cost="max"),
    TokenBudget(256, max_rows=4),
    TokenBudget(256, max_length=20, too_long="drop"),
    TokenBudget(256, max_length=20, too_long="split"),
    Bucketed(8),
    Bucketed(8, axis="text"),
    Bucketed(16),
    Sorted(8),
    Fixed(8),
    Packed(4, 64),
    Packed(2, 64),
    TBPTT(4, 8),
    TBPTT(4, 16),
    TBPTT(3, 8),
    TBPTT(4, 8, axis="text"),
    TBPTT(4, 8, segments=True),
    TBPTT(4, 8, continuous=True),
    Windows(8, 2, 4),
    Windows(8, batch_size=4, random=True, per_sequence=2),
    Windows(8, 2, 4, axis="text"),
]


def index():
    return SequenceIndex(dict(LENGTHS))


def planned(policy, over):
    plan = policy.plan(over, seed=1, epoch=1)
    rows = None if plan.rows is None else plan.rows.tolist()
    dropped = plan.report.dropped.tolist()
    return policy.num_batches(over), plan.spans.tolist(), rows, plan.offsets.tolist(), dropped


def test_one_index_gives_every_policy_the_plan_that_a_new_one_gives():
    due = [planned(policy, index()) for policy in POLICIES]
    for order in (POLICIES, POLICIES[::-1]):
        shared = index()
        found = {policy: planned(policy, shared) for policy in order}
        assert [found[policy] for policy in POLICIES] == due
    assert due[0][0] != due[1][0] != due[2][0]


def test_a_smaller_budget_is_refused_after_a_larger_one():
    shared = index()
    options = {"max_length": 45, "too_long": "drop", "cost": "max"}
    TokenBudget(100, **options).num_batches(shared)
    with pytest.raises(PlanError, match="more than `max_tokens`=50"):
        TokenBudget(50, **options).num_batches(shared)
