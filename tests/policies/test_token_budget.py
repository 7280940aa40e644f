import numpy as np
import pytest

from seqdata.errors import ConfigError, PlanError
from seqdata.index import SequenceIndex
from seqdata.policies.token_budget import LengthBuckets, TokenBudget


def padded_sizes(plan):
    sizes = []
    for number in range(len(plan)):
        spans = plan.batch(number).spans
        sizes.append(len(spans) * int((spans[:, 2] - spans[:, 1]).max()))
    return sizes


def test_no_batch_is_over_the_budget():
    index = SequenceIndex.from_lengths(np.random.default_rng(0).integers(1, 300, 5000))
    for epoch in range(3):
        assert max(padded_sizes(TokenBudget(1000).plan(index, seed=0, epoch=epoch))) <= 1000


def test_rows_are_capped_where_asked():
    index = SequenceIndex.from_lengths([1] * 100)
    plan = TokenBudget(1000, max_rows=7).plan(index, seed=0, epoch=0)
    sizes = [len(plan.batch(k).spans) for k in range(len(plan))]
    assert sorted(sizes) == [2] + [7] * 14


def test_a_split_sequence_fits_the_budget():
    index = SequenceIndex.from_lengths([25, 3])
    plan = TokenBudget(10, too_long="split").plan(index, seed=0, epoch=0)
    assert sorted(plan.spans.tolist()) == [[0, 0, 10], [0, 10, 20], [0, 20, 25], [1, 0, 3]]


def test_rungs_walk_from_the_longest_by_the_histogram_alone():
    # top 100: 10 rows a batch; 3 lengths >= 98 -> m = max(2, 3 // 10) = 2 -> 20 sequences; rest: 3
    lengths, counts = np.array([100, 98, 50, 5]), np.array([2, 1, 17, 3])
    tops, rows, sizes = LengthBuckets(1000, None, 2).walk(lengths, counts)
    assert (tops.tolist(), rows.tolist(), sizes.tolist()) == ([100, 5], [10, 23], [20, 3])


def test_a_rung_takes_all_that_are_nearly_as_long_in_whole_batches():
    lengths, counts = np.array([100, 98, 97]), np.array([30, 15, 10])
    tops, rows, sizes = LengthBuckets(1000, None, 2).walk(lengths, counts)
    assert (tops.tolist(), rows.tolist(), sizes.tolist()) == ([100, 98], [10, 10], [40, 15])


def test_a_budget_of_longer_sequences_than_a_table_of_lengths_holds_counts_the_same():
    lengths = np.array([5_000_000, 3, 3, 4_999_999, 7])
    index = SequenceIndex.from_lengths(lengths)
    policy = TokenBudget(10_000_000)
    assert policy.num_batches(index) == len(policy.plan(index, seed=0, epoch=0))


def two_axes(count=2000):
    random = np.random.default_rng(0)
    return SequenceIndex(
        {"time": random.integers(1, 100, count), "text": random.integers(1, 100, count)}
    )


def test_the_dearest_axis_counts_so_that_no_tensor_exceeds_the_budget():
    index = two_axes()
    policy = TokenBudget(500, cost="max")
    plan = policy.plan(index, seed=0, epoch=1)
    assert len(plan) == policy.num_batches(index)
    assert sorted(plan.spans[:, 0].tolist()) == list(range(2000))
    for number in range(len(plan)):
        rows = plan.batch(number).spans[:, 0]
        for axis in ("time", "text"):
            assert len(rows) * index.lengths_of[axis][rows].max() <= 500


def test_a_function_says_what_a_row_costs():
    def both(lengths_of):
        return lengths_of["time"] + 2 * lengths_of["text"]

    index = two_axes()
    plan = TokenBudget(900, cost=both).plan(index, seed=0, epoch=0)
    for number in range(len(plan)):
        rows = plan.batch(number).spans[:, 0]
        costs = index.lengths_of["time"][rows] + 2 * index.lengths_of["text"][rows]
        assert len(rows) * costs.max() <= 900


def test_what_costs_more_than_the_budget_along_another_axis_is_named():
    index = SequenceIndex({"time": np.array([3, 4]), "text": np.array([5, 50])})
    with pytest.raises(PlanError, match="sequence 1 costs 50, more than `max_tokens=10`"):
        TokenBudget(10, cost="max").plan(index, seed=0, epoch=0)


def test_the_cost_in_the_message_is_that_of_the_sequence_in_it():
    index = SequenceIndex({"time": np.array([3, 4, 5]), "text": np.array([5, 30, 60])})
    with pytest.raises(PlanError, match="sequence 1 costs 30, more than `max_tokens=10`"):
        TokenBudget(10, cost="max").plan(index, seed=0, epoch=0)


def test_a_cost_that_cannot_be_meant_is_refused():
    with pytest.raises(ConfigError, match="`cost` must be 'max', a function or None, but is 'sum'"):
        TokenBudget(10, cost="sum")
    free = TokenBudget(10, cost=lambda lengths_of: lengths_of["time"] * 0)
    with pytest.raises(ConfigError, match="`cost` must be at least 1 for every row"):
        free.plan(SequenceIndex.from_lengths([3]), seed=0, epoch=0)


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64", "int16", ">i4"])
def test_costs_of_any_whole_numbers_make_the_same_plan(dtype):
    index = SequenceIndex.from_lengths([3, 9, 5, 7, 2, 8])
    policy = TokenBudget(100, cost=lambda lengths_of: lengths_of["time"].astype(dtype))
    same = TokenBudget(100, cost=lambda lengths_of: lengths_of["time"])
    plan, due = (one.plan(index, seed=0, epoch=0) for one in (policy, same))
    assert len(plan) == len(due)
    for number in range(len(due)):
        assert plan.batch(number).spans.tolist() == due.batch(number).spans.tolist()


def test_a_cost_of_one_value_too_few_is_refused_by_the_plan():
    policy = TokenBudget(10, cost=lambda lengths_of: lengths_of["time"][1:])
    with pytest.raises(ConfigError, match=r"the result of `cost` must be int64 \(3,\)"):
        policy.plan(SequenceIndex.from_lengths([3, 9, 5]), seed=0, epoch=0)
