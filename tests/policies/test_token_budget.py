import numpy as np

from seqdata.index import SequenceIndex
from seqdata.policies.token_budget import Rungs, TokenBudget


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
    tops, rows, sizes = Rungs(1000, None, 2).walk(lengths, counts)
    assert (tops.tolist(), rows.tolist(), sizes.tolist()) == ([100, 5], [10, 23], [20, 3])


def test_a_rung_takes_all_that_are_nearly_as_long_in_whole_batches():
    lengths, counts = np.array([100, 98, 97]), np.array([30, 15, 10])
    tops, rows, sizes = Rungs(1000, None, 2).walk(lengths, counts)
    assert (tops.tolist(), rows.tolist(), sizes.tolist()) == ([100, 98], [10, 10], [40, 15])


def test_a_budget_of_longer_sequences_than_a_table_of_lengths_holds_counts_the_same():
    lengths = np.array([5_000_000, 3, 3, 4_999_999, 7])
    index = SequenceIndex.from_lengths(lengths)
    policy = TokenBudget(10_000_000)
    assert policy.num_batches(index) == len(policy.plan(index, seed=0, epoch=0))
