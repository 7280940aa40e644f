"""A plan does not depend on what was planned before over the same index."""

import numpy as np
import pytest

from seqdata.errors import PlanError
from seqdata.index import SequenceIndex
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.mix import Mix, Part
from seqdata.policies.packed import Packed
from seqdata.policies.segments import Segments
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted, balanced
from seqdata.policies.windows import Windows
from seqdata.policies.zip import Zip
from seqdata.storage.memory import MemoryStore

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


SHORT = Bucketed(8, max_length=20, too_long="drop")
DRAWN = [
    Weighted(Bucketed(8)),
    Weighted(Bucketed(8), draws=60),
    Weighted(Bucketed(8), draws=200),
    Weighted(Bucketed(8), weights="weight"),
    Weighted(Bucketed(8), weights="label"),
    Weighted(Bucketed(8), weights=balanced("label")),
    Weighted(Bucketed(8), weights=balanced("weight")),
    Weighted(Bucketed(16), weights="weight"),
    Weighted(SHORT, weights="weight"),
    Weighted(SHORT, weights=balanced("label")),
    Weighted(TokenBudget(256), weights="weight"),
    Weighted(TokenBudget(128), weights="weight"),
    Weighted(TokenBudget(128), weights="weight", draws=60),
    Segments(Weighted(Bucketed(8), weights="weight"), batches=4),
    Segments(Weighted(Bucketed(8), weights="weight"), batches=6),
    Segments(Weighted(Bucketed(8), weights="label", draws=100), batches=4),
    Segments(Weighted(TokenBudget(128), weights="weight"), batches=4),
    Curriculum(Bucketed(8), max_length=[(0, 10), (1, 20)]),
    Curriculum(Bucketed(8), max_length=[(0, 20), (1, 30)]),
    Curriculum(Bucketed(8), max_length=[(0, 10), (2, 20)], segment=4),
    Curriculum(Bucketed(4), max_length=[(0, 10), (2, 20)], segment=4),
    Curriculum(Bucketed(4), max_length=[(0, 10), (2, 20)], segment=4, batches=9),
]
MIXED = [
    Mix({"a": 3, "b": 1}, Bucketed(4)),
    Mix({"a": 1, "b": 3}, Bucketed(4)),
    Mix({"a": 1, "b": 3}, Bucketed(8)),
    Mix({"a": 1, "b": 3}, SHORT),
    Mix({"a": 1, "b": 3}, Bucketed(4), by="timesteps"),
    Mix({"a": 1, "b": 3}, Bucketed(4), temperature=3),
    Mix({"a": Part(1, Fixed(3)), "b": Part(1, Sorted(4))}),
    Mix({"a": Part(1, Weighted(Fixed(3))), "b": Part(1, Weighted(Fixed(3), draws=30))}),
    *(Mix({"a": 1, "b": 3}, policy, rows=True) for policy in (Bucketed(4), SHORT)),
    *(Mix({"a": 1, "b": 3}, TokenBudget(size), rows=True) for size in (100, 200)),
    *(Mix({"a": 3, "b": 1}, TokenBudget(size), rows=True) for size in (100, 200)),
    *(Segments(Mix({"a": 1, "b": 3}, Bucketed(4)), batches=size) for size in (3, 5)),
    *(Segments(Mix({"a": 1, "b": 3}, Bucketed(4), rows=True), batches=size) for size in (3, 5)),
    Segments(Mix({"a": 1, "b": 3}, Bucketed(6), rows=True), batches=3),
    Segments(Mix({"a": 1, "b": 3}, Bucketed(4, max_length=9, too_long="drop"), rows=True), 3),
    Zip({"a": Bucketed(4), "b": Fixed(3)}),
    Zip({"a": Bucketed(4), "b": Fixed(4)}),
    Zip({"a": Bucketed(4), "b": Fixed(3)}, lead="b"),
    Zip({"a": Bucketed(4), "b": Fixed(3)}, shuffle=False),
    Zip({"a": Weighted(Bucketed(4)), "b": Weighted(Fixed(3), draws=20)}),
]


def index_with_fields():
    rows = [
        {"x": np.zeros(length), "weight": float(k % 7), "label": k % 3}
        for k, length in enumerate(LENGTHS["time"][:80].tolist())
    ]
    return SequenceIndex.from_store(
        MemoryStore.from_sequences(rows, {"weight": None, "label": None})
    )


def index_of_parts():
    lengths = LENGTHS["time"]
    parts = {"a": lengths[:50], "b": lengths[50:80]}
    return SequenceIndex.from_parts(
        {name: SequenceIndex.from_lengths(own) for name, own in parts.items()}
    )


def draw_all(policies, make):
    """Return what each policy draws for some seeds and epochs, over the index that is made."""
    found = []
    for seed, epoch in ((1, 1), (2, 1), (1, 0)):
        for policy in policies:
            plan = policy.plan(make(), seed=seed, epoch=epoch)
            dropped = plan.report.dropped.tolist()
            found.append((plan.spans.tolist(), plan.offsets.tolist(), dropped))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policies", "make"),
    [(DRAWN, index_with_fields), (MIXED, index_of_parts)],
    ids=["drawn", "mixed"],
)
def test_one_index_gives_every_policy_the_draws_that_a_new_one_gives(policies, make):
    """Whatever was drawn of it before, for other policies, seeds and epochs."""
    due = draw_all(policies, make)
    count = len(policies)
    for number, policy in enumerate(policies):
        is_shuffled = getattr(policy, "shuffle", True)
        assert (due[number] != due[count + number]) == is_shuffled, policy
    shared = make()
    assert draw_all(policies, lambda: shared) == due


def test_a_smaller_budget_is_refused_after_a_larger_one():
    shared = index()
    options = {"max_length": 45, "too_long": "drop", "cost": "max"}
    TokenBudget(100, **options).num_batches(shared)
    with pytest.raises(PlanError, match="more than `max_tokens=50`"):
        TokenBudget(50, **options).num_batches(shared)
