"""The figures that plans must reach on two datasets of many short and 40,000 longer sequences.

S: token sequences, median 60; M: frames, median 300; log-normal, batches of 64. Slow: whole epochs
of three blocks, at night of a million sequences. Nothing here is timed.
"""

import tracemalloc

import numpy as np
import pytest
from hypothesis import settings

from seqdata.index import SequenceIndex
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.token_budget import TokenBudget
from seqdata_testing.plans import check_constant_count, check_covers
from tests.properties.counts import AT_NIGHT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MANY = 1_000_000 if settings().max_examples > AT_NIGHT else 530_000
BUCKETED = Bucketed(64)
BUDGET_S, BUDGET_M = TokenBudget(64 * 83), TokenBudget(64 * 340)  # 64 rows of mean length
FEW_BYTES = 48 << 20  # a block of 2^18 sequences and its order, whatever the dataset


def log_normal(seed, count, median, spread, least, most):
    drawn = np.random.default_rng(seed).normal(np.log(median), spread, count)
    return np.clip(np.round(np.exp(drawn)), least, most).astype(np.uint32)


@pytest.fixture(scope="module")
def short():
    return SequenceIndex.from_lengths(log_normal(0, MANY, 60, 0.8, 5, 1_024))


@pytest.fixture(scope="module")
def longer():
    return SequenceIndex.from_lengths(log_normal(1, 40_000, 300, 0.5, 20, 2_000))


def lengths_by_batch(plan):
    """Return the lengths of all rows, and where each batch begins."""
    table = plan.as_arrays()
    assert table.rows is None
    return table.spans[:, 2] - table.spans[:, 1], table.offsets


def meeting_again(policy, index):
    """Say how likely two batch-mates of epoch 1 are batch-mates in epoch 2."""
    batches = []
    for epoch in (1, 2):
        table = policy.plan(index, seed=0, epoch=epoch).as_arrays()
        found = np.empty(len(index), dtype=np.int64)
        found[table.spans[:, 0]] = np.repeat(np.arange(len(table)), np.diff(table.offsets))
        batches.append(found)
    count = int(batches[1].max()) + 1
    together = np.unique(batches[0] * count + batches[1], return_counts=True)[1]
    before = np.bincount(batches[0])
    return (together * (together - 1)).sum() / (before * (before - 1)).sum()


@pytest.mark.parametrize("policy", [BUCKETED, BUDGET_S], ids=lambda policy: type(policy).__name__)
def test_short_sequences_waste_at_most_one_per_cent(short, policy):
    plan = policy.plan(short, seed=0, epoch=1)
    assert plan.report.waste <= 1.01
    check_covers(plan, short)


@pytest.mark.parametrize("policy", [BUCKETED, BUDGET_M], ids=lambda policy: type(policy).__name__)
def test_longer_sequences_waste_at_most_two_per_cent(longer, policy):
    plan = policy.plan(longer, seed=0, epoch=1)
    assert plan.report.waste <= 1.02
    check_covers(plan, longer)


@pytest.mark.parametrize(
    "policy",
    [BUCKETED, pytest.param(BUDGET_S, marks=pytest.mark.nightly)],
    ids=lambda policy: type(policy).__name__,
)
def test_no_order_of_length_is_to_be_seen_in_an_epoch(short, policy):
    seen = []
    for epoch in range(4):
        rows, edges = lengths_by_batch(policy.plan(short, seed=0, epoch=epoch))
        means = np.add.reduceat(rows, edges[:-1]) / np.diff(edges)
        ranks = np.argsort(np.argsort(means, kind="stable"), kind="stable")
        seen.append(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1])
    assert abs(np.mean(seen)) < 0.08


@pytest.mark.parametrize(
    ("policy", "most"), [(BUCKETED, 0.05), (BUDGET_S, 0.10)], ids=["Bucketed", "TokenBudget"]
)
def test_batch_mates_of_short_sequences_rarely_meet_again(short, policy, most):
    assert meeting_again(policy, short) <= most


@pytest.mark.parametrize("policy", [BUCKETED, BUDGET_M], ids=lambda policy: type(policy).__name__)
def test_batch_mates_of_longer_sequences_meet_again_in_a_quarter_at_most(longer, policy):
    assert meeting_again(policy, longer) <= 0.25


@pytest.mark.parametrize("policy", [BUCKETED, BUDGET_S], ids=lambda policy: type(policy).__name__)
def test_ranks_of_a_step_have_like_work(short, policy):
    for size in (2, 4, 8):
        rows, edges = lengths_by_batch(policy.for_ranks(size).plan(short, seed=0, epoch=1))
        longest = np.maximum.reduceat(rows, edges[:-1])
        steps = longest[: len(longest) // size * size].reshape(-1, size)
        assert steps.max(axis=1).sum() <= 1.03 * steps.mean(axis=1).sum()


@pytest.mark.parametrize(
    "count", [262_144, 262_145, pytest.param(300_000, marks=pytest.mark.nightly), 530_000]
)
def test_real_blocks_keep_counts_and_lose_nothing(count):
    index = SequenceIndex.from_lengths(np.random.default_rng(count).integers(0, 40, count))
    for policy in (Bucketed(48), TokenBudget(4_096), Fixed(7)):
        check_constant_count(policy, index, epochs=(0, 1), seeds=(0,))
        check_covers(policy.plan(index, seed=0, epoch=0), index)


def peak_of_first_batches(policy, lengths):
    """Return the most bytes that the first batch and one in mid-epoch need, count known."""
    index = SequenceIndex.from_lengths(lengths)
    count = policy.num_batches(index)
    tracemalloc.start()
    try:
        for epoch, number in ((0, 0), (3, count // 2)):
            policy.plan(index, seed=0, epoch=epoch).batch(number)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("policy", [BUCKETED, BUDGET_S, Fixed(64)], ids=lambda p: type(p).__name__)
def test_a_first_batch_needs_a_block_however_large_the_data_set(short, policy):
    lengths = np.tile(np.asarray(short.lengths), 4)
    few = peak_of_first_batches(policy, lengths[:MANY])
    assert peak_of_first_batches(policy, lengths) < 1.05 * few
    assert few < FEW_BYTES


@pytest.mark.nightly
@pytest.mark.parametrize("policy", [BUCKETED, BUDGET_S, Fixed(64)], ids=lambda p: type(p).__name__)
def test_a_hundred_million_mapped_lengths_need_no_memory_of_their_own(short, policy, tmp_path):
    mapped = np.memmap(tmp_path / "lengths", dtype=np.uint32, mode="w+", shape=(100_000_000,))
    for first in range(0, len(mapped), len(short)):
        part = mapped[first : first + len(short)]
        part[:] = short.lengths[: len(part)]
    assert peak_of_first_batches(policy, mapped) < FEW_BYTES
