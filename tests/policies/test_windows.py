import tracemalloc
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from seqdata.api import open_store, split
from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.loading.loader import Loader
from seqdata.planning.build import describe_policy
from seqdata.policies.windows import Windows
from seqdata.storage.memory import MemoryStore
from seqdata_testing.plans import check_policy


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
    tracemalloc.start()
    try:
        plan = policy.plan(index, seed=0, epoch=1)
        assert len(plan) == policy.num_batches(index) == -(-(10**9 - 99) // 64)
        assert plan.batch(10**6).spans.shape == (64, 3)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


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
            {"size": 4, "stride": 2, "random": True, "per_sequence": 2},
            "`per_sequence` must be 1, but is 2 with `stride`",
        ),
        (
            {"size": 4, "per_sequence": 2},
            "`per_sequence` must be 1, but is 2 without `random=True`",
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
    store = MemoryStore.from_sequences([np.arange(200 + 10 * k) for k in range(12)])
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
    store = MemoryStore.from_sequences([np.arange(500 + k) for k in range(5)])
    policy = Windows(20, batch_size=4, random=True, per_sequence=3, shuffle=False)
    index = SequenceIndex.from_store(store.take([4, 1, 4]))
    spans = policy.plan(index, seed=3, epoch=2).spans
    assert policy.crop_numbers(index, spans, seed=3, epoch=2).tolist() == [0, 1, 2] * 3


@pytest.mark.parametrize("stride", [1, 3, 7])
def test_windows_anchored_at_the_end_end_there(stride):
    index = SequenceIndex.from_lengths([30, 9, 12, 5])
    policy = Windows(6, stride, 4, horizon=3, anchor="end", shuffle=False)
    found = policy.plan(index, seed=0, epoch=0).spans.tolist()
    due = [
        [number, start, start + 6]
        for number, length in enumerate([30, 9, 12, 5])
        for start in sorted(range(length - 9, -1, -stride))
    ]
    assert found == due


@pytest.mark.parametrize("stride", [1, 4, 9])
def test_one_random_window_is_in_each_stride_and_all_starts_are_drawn(stride):
    lengths = [40, 8, 7, 23]
    index = SequenceIndex.from_lengths(lengths)
    policy = Windows(5, stride, 4, horizon=3, random=True, shuffle=False)
    drawn = set()
    for epoch in range(120):
        spans = policy.plan(index, seed=1, epoch=epoch).spans
        numbers = policy.crop_numbers(index, spans, seed=1, epoch=epoch)
        for sequence, length in enumerate(lengths):
            room = length - 8
            of_sequence = spans[:, 0] == sequence
            starts = spans[of_sequence, 1]
            assert len(starts) == (room // stride + 1 if room >= 0 else 0)
            assert numbers[of_sequence].tolist() == list(range(len(starts)))
            last = np.arange(len(starts)) * stride + room % stride
            assert ((starts <= last) & (starts > last - stride) & (starts >= 0)).all()
            drawn |= {(sequence, start) for start in starts.tolist()}
    assert drawn == {(s, t) for s, length in enumerate(lengths) for t in range(length - 7)}


def test_an_anchor_is_the_start_or_the_end():
    with pytest.raises(ConfigError, match="`anchor` must be 'start' or 'end', but is 'middle'"):
        Windows(4, anchor="middle")


LAWS = [
    {"size": 8, "stride": 3, "min_size": 2},
    {"size": 8, "stride": 11, "min_size": 2},
    {"size": 8, "stride": 3, "min_size": 2, "anchor": "end", "horizon": 2},
    {"size": 8, "min_size": 3, "random": True, "per_sequence": 2},
    {"size": 8, "stride": 5, "min_size": 3, "random": True},
    {"size": (3, 8), "stride": 4},
    {"size": [3, 8], "stride": 4, "anchor": "end", "horizon": 1},
    {"size": (3, 8), "random": True, "per_sequence": 3, "horizon": 2},
    {"size": (3, 8), "stride": 6, "random": True},
    {"size": 5, "stride": 2, "horizon": 1, "aligned": True},
    {"size": 5, "stride": 2, "aligned": True, "anchor": "end"},
]


@pytest.mark.parametrize("options", LAWS, ids=repr)
@pytest.mark.parametrize("seed", range(4))
def test_the_laws_of_plans_hold_for_every_kind_of_window(options, seed):
    lengths = np.random.default_rng(seed).integers(0, 40, 37)
    policy = Windows(batch_size=6, **options)
    found = []
    index = SequenceIndex.from_lengths(lengths)
    check_policy(policy, index, seed=seed, shuffled=None)
    for epoch in (0, 1):
        found.append(policy.plan(index, seed=seed, epoch=epoch))
    spans = found[0].spans
    horizon = options.get("horizon", 0)
    size = options["size"]
    low, high = (options.get("min_size", size), size) if isinstance(size, int) else size
    sizes = spans[:, 2] - spans[:, 1]
    assert (spans[:, 1] >= 0).all()
    assert (spans[:, 2] + horizon <= lengths[spans[:, 0]]).all()
    assert low <= sizes.min() <= sizes.max() <= high
    counts = np.bincount(spans[:, 0], minlength=len(lengths))
    assert counts.tolist() == policy.count_items(lengths).tolist()
    assert (counts > 0).tolist() == (lengths >= low + horizon).tolist()
    assert found[0].totals(0, len(found[0])) == (int(sizes.sum()), len(spans))
    is_random = options.get("random") or not isinstance(size, int)
    other = sorted(found[1].spans.tolist())
    assert (sorted(spans.tolist()) != other) == bool(is_random)


@pytest.mark.parametrize("anchor", ["start", "end"])
@pytest.mark.parametrize("stride", [3, 4, 8])
def test_with_a_least_size_of_1_every_timestep_is_in_a_window(anchor, stride):
    lengths = np.arange(1, 40)
    index = SequenceIndex.from_lengths(lengths)
    plan = Windows(8, stride, min_size=1, anchor=anchor).plan(index, seed=0, epoch=0)
    covered = {(s, t) for s, start, stop in plan.spans.tolist() for t in range(start, stop)}
    assert len(covered) == lengths.sum()


def test_a_short_window_is_what_is_left_at_the_end_that_is_no_anchor():
    short = Windows(4, 4, 9, horizon=1, min_size=1, shuffle=False)
    assert spans(short, [10, 3]) == [[0, 0, 4], [0, 4, 8], [0, 8, 9], [1, 0, 2]]
    assert spans(replace(short, anchor="end"), [10, 3]) == [
        [0, 0, 1], [0, 1, 5], [0, 5, 9], [1, 0, 2],
    ]  # fmt: skip
    assert spans(replace(short, stride=1), [10]) == [[0, n, n + 4] for n in range(6)]


def test_drawn_sizes_take_every_value_and_belong_to_the_sequence():
    policy = Windows((2, 5), random=True, per_sequence=400, shuffle=False)
    rows = np.array(spans(policy, [30]))
    sizes, counts = np.unique(rows[:, 2] - rows[:, 1], return_counts=True)
    assert sizes.tolist() == [2, 3, 4, 5]
    assert counts.min() > 60
    longer = np.array(spans(policy, [30, *[20] * 9]))
    assert longer[:400].tolist() == rows.tolist()


def test_a_random_window_of_drawn_size_knows_its_number():
    index = SequenceIndex.from_lengths([500, 600])
    for options in ({"per_sequence": 4}, {"stride": 120}):
        policy = Windows((5, 9), random=True, shuffle=False, **options)
        drawn = policy.plan(index, seed=3, epoch=2).spans
        numbers = policy.crop_numbers(index, drawn, seed=3, epoch=2)
        counts = policy.count_items(np.array([500, 600]))
        assert numbers.tolist() == [n for count in counts for n in range(count)]


def test_aligned_windows_are_at_one_position_of_all_sequences():
    policy = Windows(3, 2, horizon=1, aligned=True, shuffle=False)
    index = SequenceIndex.from_lengths([8, 5, 3, 8])
    plan = policy.plan(index, seed=0, epoch=0)
    assert [plan.batch(n).spans.tolist() for n in range(len(plan))] == [
        [[0, 0, 3], [1, 0, 3], [3, 0, 3]], [[0, 2, 5], [3, 2, 5]], [[0, 4, 7], [3, 4, 7]],
    ]  # fmt: skip
    at_end = replace(policy, anchor="end").plan(index, seed=0, epoch=0)
    assert at_end.batch(0).spans.tolist() == [[0, 4, 7], [1, 1, 4], [3, 4, 7]]
    shuffled = replace(policy, shuffle=True)
    orders = {
        tuple(shuffled.plan(index, seed=0, epoch=epoch).spans[:, 1].tolist()) for epoch in range(9)
    }
    assert len(orders) > 1
    assert plan.report.dropped.tolist() == [2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (5, 2)}, r"`size` must be an integer, or \(low, high\) with 1 <= low <= high"),
        ({"size": (0, 2)}, r"`size` must be an integer, or \(low, high\)"),
        ({"size": (1, 2, 3)}, r"`size` must be an integer, or \(low, high\)"),
        ({"size": (1, 2), "min_size": 1}, "`min_size` requires a single `size`, but `size` is"),
        ({"size": 4, "min_size": 5}, "`min_size` must be at most `size`, 4, but is 5"),
        ({"size": 4, "min_size": 0}, "`min_size` must be an integer of at least 1, but is 0"),
        ({"size": 4, "aligned": True, "random": True}, "`aligned` requires .* with `random=True`"),
        ({"size": (2, 4), "aligned": True}, r"`aligned` requires .* with `size=\(2, 4\)`"),
        ({"size": 4, "aligned": True, "min_size": 2}, "`aligned` requires .* with `min_size=2`"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Windows(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 4, "stride": Fraction(5, 2), "random": True}, "`random=True` .* 5/2 timesteps"),
        ({"size": 4, "stride_seconds": 1, "anchor": "end"}, "`anchor='end'` .* it is in seconds"),
        ({"seconds": 1e-10}, "`seconds` must be a fraction of two integers below .*, but is 1e-10"),
    ],
)
def test_strides_and_seconds_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Windows(**options)


def test_a_duration_that_makes_no_stride_is_refused_with_its_reason():
    store = open_store([np.zeros(1000)], rates={"x": 100})
    with pytest.raises(ConfigError, match=r"must be at least one timestep of .* 0.001 s are 1/10"):
        Windows(10, stride_seconds=0.001).in_timesteps(store)
    fine = open_store([np.zeros(1000)], rates={"x": "2000000011/1000003"})
    with pytest.raises(ConfigError, match=r"must be a number of timesteps of .* is a fraction of"):
        Windows(10, stride_seconds="100/9973").in_timesteps(fine)
    with pytest.raises(ConfigError, match=r"`anchor='end'` .*, but it is 25/2 timesteps"):
        Windows(seconds=0.125, anchor="end").in_timesteps(store)


def test_new_options_at_their_defaults_leave_a_plan_as_it_was():
    assert "min_size" not in describe_policy(Windows(4))
    assert "aligned" not in describe_policy(Windows(4))
    assert "size=(2, 4)" in describe_policy(Windows([2, 4]))


def test_contexts_and_futures_of_several_sizes_are_told_apart():
    rows = [{"x": np.arange(n, dtype=np.int64) + 1} for n in (9, 4)]
    (batch,) = Loader(rows, Windows(6, 9, 2, horizon=2, min_size=1, shuffle=False))
    assert batch.lengths.tolist() == [6, 2]
    assert batch.context["x"].tolist() == [[1, 2, 3, 4, 5, 6], [1, 2, 0, 0, 0, 0]]
    assert batch.future["x"].tolist() == [[7, 8], [3, 4]]
    assert batch.mask.tolist() == [[True] * 6, [True] * 2 + [False] * 4]


def test_a_context_of_a_split_is_compared_with_the_least_size():
    rows = [{"x": np.arange(40)}]
    parts = split(rows, {"train": 0.5, "val": 0.5}, along="time", context=4)
    with pytest.raises(ConfigError, match="a context of 4 timesteps"):
        Loader(parts["val"], Windows(6, horizon=1, min_size=2))
    Loader(parts["val"], Windows(6, horizon=1, min_size=4))
