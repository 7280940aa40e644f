import numpy as np
import pytest

from seqdata.errors import ConfigError, PlanError
from seqdata.index import SequenceIndex
from seqdata.policies.packed import Packed, pack_lengths


def index_of(count=3000, seed=0, most=300):
    return SequenceIndex.from_lengths(np.random.default_rng(seed).integers(1, most, count))


def row_lengths(plan):
    lengths = plan.spans[:, 2] - plan.spans[:, 1]
    return np.add.reduceat(lengths, plan.rows[:-1])


def test_every_sequence_lies_whole_in_one_row_and_no_row_is_too_long():
    plan = Packed(4, 512).plan(index_of(), seed=0, epoch=1)
    assert sorted(plan.spans[:, 0].tolist()) == list(range(3000))
    assert (plan.spans[:, 2] == index_of().lengths[plan.spans[:, 0]]).all()
    assert row_lengths(plan).max() <= 512


def test_rows_are_nearly_full():
    plan = Packed(4, 512).plan(index_of(), seed=0, epoch=0)
    rows = row_lengths(plan)
    assert len(rows) * 512 / rows.sum() < 1.01


def test_the_count_of_every_epoch_is_the_same_and_other_sequences_meet():
    index, policy = index_of(), Packed(4, 512)
    plans = [policy.plan(index, seed=0, epoch=epoch) for epoch in range(3)]
    assert [len(plan) for plan in plans] == [policy.num_batches(index)] * 3
    rows = [
        {
            frozenset(plan.spans[a:b, 0].tolist())
            for a, b in zip(plan.rows, plan.rows[1:], strict=False)
        }
        for plan in plans
    ]
    assert len(rows[0] & rows[1]) < len(rows[0]) // 10


def test_a_batch_has_its_rows():
    plan = Packed(2, 10, shuffle=False).plan(
        SequenceIndex.from_lengths([6, 4, 9, 1]), seed=0, epoch=0
    )
    assert len(plan) == 1
    spans, rows = plan.batch(0)[:2]
    assert len(rows) == 3
    assert sorted(row_lengths(plan).tolist()) == [10, 10]
    assert len(spans) == 4


def test_unshuffled_plans_are_alike():
    still = Packed(4, 512, shuffle=False)
    first, later = (still.plan(index_of(), seed=e, epoch=e) for e in (0, 3))
    assert np.array_equal(first.spans, later.spans)


def test_blocks_pack_by_themselves():
    index = index_of(300_000, most=100)
    policy = Packed(16, 1024)
    plan = policy.plan(index, seed=0, epoch=0)
    assert len(plan) == policy.num_batches(index)
    assert np.array_equal(np.sort(plan.spans[:, 0]), np.arange(300_000))
    assert row_lengths(plan).max() <= 1024


def test_a_sequence_longer_than_a_row_is_an_error_or_split():
    index = SequenceIndex.from_lengths([25, 3])
    with pytest.raises(PlanError, match="sequence 0 has 25 timesteps, more than `row_length=10`"):
        Packed(1, 10).plan(index, seed=0, epoch=0)
    plan = Packed(1, 10, too_long="split").plan(index, seed=0, epoch=0)
    assert row_lengths(plan).sum() == 28


def test_an_empty_index_packs_nothing():
    assert len(Packed(2, 8).plan(SequenceIndex.from_lengths([]), seed=0, epoch=0)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 8), "policy 'packed': `rows` must be an integer of at least 1, but is 0"),
        ((1, 0), "policy 'packed': `row_length` must be an integer of at least 1, but is 0"),
        (
            (1, 8, True, "time", 9),
            r"`max_length` must be at most `row_length` \(8\), but is 9. Reduce",
        ),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Packed(*arguments)


def test_packing_places_as_many_of_each_length_as_there_are():
    lengths, counts = np.array([7, 5, 3, 2]), np.array([3, 4, 5, 1])
    slots = pack_lengths(lengths, counts, 10)
    assert sorted(slots.lengths.tolist()) == sorted(np.repeat(lengths, counts).tolist())
    sums = np.add.reduceat(slots.lengths, slots.offsets[:-1])
    assert sums.max() <= 10
    assert len(sums) == 6  # 7+3, 7+3, 7+3, 5+5, 5+5, 3+3+2: the least there can be
