import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.policies.windows import Windows
from seqdata.storage.memory import MemoryStore


def spans(policy, lengths, epoch=0):
    return policy.plan(SequenceIndex.from_lengths(lengths), seed=0, epoch=epoch).spans.tolist()


def test_windows_start_at_every_multiple_of_the_stride_while_the_horizon_fits():
    still = Windows(4, 2, 2, horizon=2, shuffle=False)
    assert spans(still, [10, 5, 6]) == [[0, 0, 4], [0, 2, 6], [0, 4, 8], [2, 0, 4]]


def test_the_horizon_is_read_past_the_span():
    plan = Windows(4, 1, horizon=3).plan(SequenceIndex.from_lengths([9]), seed=0, epoch=0)
    assert plan.lookahead == 3


def test_sequences_too_short_for_a_window_are_listed():
    plan = Windows(4, 1).plan(SequenceIndex.from_lengths([9, 3, 4, 0]), seed=0, epoch=0)
    assert plan.report.dropped.tolist() == [1, 3]


def test_a_billion_windows_cost_no_memory():
    index = SequenceIndex.from_lengths([10**9, 50])
    policy = Windows(100, 1, 64)
    plan = policy.plan(index, seed=0, epoch=1)
    assert len(plan) == policy.num_batches(index) == -(-(10**9 - 99) // 64)
    assert plan.batch(10**6).spans.shape == (64, 3)


def test_random_windows_lie_inside_and_differ_by_epoch():
    policy = Windows(5, random=True, per_sequence=3, batch_size=4, horizon=1)
    one, two = (np.array(spans(policy, [6, 5, 100, 40], epoch)) for epoch in (0, 1))
    assert sorted(one[:, 0].tolist()) == [0] * 3 + [2] * 3 + [3] * 3
    lengths = np.array([6, 5, 100, 40])
    assert (one[:, 1] >= 0).all()
    assert (one[:, 2] + 1 <= lengths[one[:, 0]]).all()
    assert sorted(map(tuple, one.tolist())) != sorted(map(tuple, two.tolist()))


def test_a_random_window_depends_on_its_sequence_alone():
    policy = Windows(5, random=True, shuffle=False)
    alone = {s: start for s, start, _ in spans(policy, [50, 60, 70])}
    longer = {s: start for s, start, _ in spans(policy, [50, 60, 70, *[80] * 500])}
    assert all(longer[s] == start for s, start in alone.items())


def test_random_windows_reach_every_place():
    policy = Windows(3, random=True, per_sequence=500)
    starts = {start for _, start, _ in spans(policy, [10])}
    assert starts == set(range(8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "policy 'windows': `size` must be an integer of at least 1, but is 0"),
        ({"size": 4, "stride": 0}, "`stride` must be an integer of at least 1, but is 0"),
        ({"size": 4, "horizon": -1}, "`horizon` must be an integer of at least 0, but is -1"),
        (
            {"size": 4, "stride": 2, "random": True},
            "`stride` must be None, but is 2 with `random`=True",
        ),
        (
            {"size": 4, "per_sequence": 2},
            "`per_sequence` must be 1, but is 2 without `random`=True",
        ),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Windows(**options)


def test_a_random_window_knows_its_number():
    index = SequenceIndex.from_lengths([500, 600, 700])
    policy = Windows(5, random=True, per_sequence=4, shuffle=False)
    spans = policy.plan(index, seed=3, epoch=2).spans
    assert policy.crop_numbers(index, spans, seed=3, epoch=2).tolist() == [0, 1, 2, 3] * 3
    assert policy.crop_numbers(index, spans[[7, 2]], seed=3, epoch=2).tolist() == [3, 2]
    grid = Windows(5, shuffle=False)
    spans = grid.plan(index, seed=3, epoch=2).spans
    assert not grid.crop_numbers(index, spans, seed=3, epoch=2).any()


def crops_by_sequence(store, policy, *, epoch=1, seed=3):
    """Number of each sequence in the data -> where its crops begin."""
    plan = policy.plan(SequenceIndex.from_store(store), seed=seed, epoch=epoch)
    found: dict[int, list[int]] = {}
    for number, start, _ in plan.spans.tolist():
        found.setdefault(int(store.base_numbers(np.array([number]))[0]), []).append(start)
    return {base: sorted(starts) for base, starts in found.items()}


def test_crops_in_a_view_are_those_of_the_data():
    store = MemoryStore.of([np.arange(200 + 10 * k) for k in range(12)])
    policy = Windows(50, batch_size=4, random=True, per_sequence=2)
    due = crops_by_sequence(store, policy)
    for numbers in ([7, 2, 11], range(12), range(5, 12), [11, 10, 0]):
        view = store.take(list(numbers))
        assert crops_by_sequence(view, policy) == {k: due[k] for k in numbers}
        again = view.take([1, 0])
        assert crops_by_sequence(again, policy) == {k: due[k] for k in list(numbers)[:2]}
    twice = crops_by_sequence(store.take([7, 2, 7]), policy)
    assert twice[2] == due[2]
    assert set(due[7]) < set(twice[7])  # the second time it has crops of its own
    assert len(set(twice[7])) == 4


def test_the_number_of_a_crop_is_told_in_a_view_too():
    store = MemoryStore.of([np.arange(500 + k) for k in range(5)])
    policy = Windows(20, batch_size=4, random=True, per_sequence=3, shuffle=False)
    index = SequenceIndex.from_store(store.take([4, 1, 4]))
    spans = policy.plan(index, seed=3, epoch=2).spans
    assert policy.crop_numbers(index, spans, seed=3, epoch=2).tolist() == [0, 1, 2] * 3
