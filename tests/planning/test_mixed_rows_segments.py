"""Segments of a mixture's rows: shares that change, and sequences that come equally often."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import ConfigError
from seqdata.index import SequenceIndex
from seqdata.loading.loader import Loader
from seqdata.planning.mixed_rows import PartRows, draw_run
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.mix import Mix
from seqdata.policies.segments import Segments
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata.policies.windows import Windows
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from seqdata_testing.plans import check_table
from tests.properties.counts import examples
from tests.properties.noise import noisy

policies = st.one_of(
    st.builds(Fixed, st.integers(1, 5)),
    st.builds(Sorted, st.integers(1, 5)),
    st.builds(Bucketed, st.integers(1, 5)),
    st.builds(Windows, st.just(3), batch_size=st.integers(1, 5), random=st.just(True)),
)


@st.composite
def cases(draw):
    """A policy of segments, an index of its parts, and the weights of some segments."""
    names = [f"part{number}" for number in range(draw(st.integers(1, 4)))]
    lengths = st.lists(st.integers(0, 30), min_size=1, max_size=30).filter(lambda of: max(of) > 2)
    parts = {name: SequenceIndex.from_lengths(draw(lengths)) for name in names}
    mix = Mix({name: draw(st.floats(0.1, 1)) for name in names}, draw(policies), rows=True)
    weights = st.lists(st.integers(0, 9), min_size=len(names), max_size=len(names)).filter(any)
    policy = Segments(mix, draw(st.integers(1, 12)))
    return policy, SequenceIndex.from_parts(parts), draw(st.lists(weights, max_size=5))


@examples(0.3, here=20)
@given(cases(), st.integers(0, 1 << 40))
def test_shares_and_passes_hold_over_changes(case, seed):
    policy, index, changes = case
    mix, names = policy.policy, list(index.parts)
    count, history = policy.num_batches(index), policy.make_history()
    weights = np.array([mix.parts[name].weight for name in names])
    due, come, seen = np.zeros(len(names)), np.zeros(len(index), dtype=np.int64), set()
    firsts = np.cumsum([0, *map(len, index.parts.values())]).tolist()
    for epoch in range(2):
        for first in range(0, count, policy.batches):
            if changes:
                weights = np.array(changes.pop(0), dtype=float)
                values = dict(zip(names, weights.tolist(), strict=True))
                history.set(epoch, first, policy.make_weights(index, values))
            plan = policy.plan_epoch(index, seed=seed, epoch=epoch, history=history)
            numbers = range(first, min(first + policy.batches, count))
            spans = np.concatenate([plan.batch(number).spans for number in numbers])
            come += np.bincount(spans[:, 0], minlength=len(index))
            due += len(spans) * weights / weights.sum()
            labels = [label for number in numbers for label in [plan.label_parts([number])[0]]]
            rows = Counter(
                (row, own_pass)
                for number, label in zip(numbers, labels, strict=True)
                for row, own_pass in zip(
                    plan.batch(number).spans[:, 0].tolist(), label.epoch, strict=True
                )
            )
            assert set(rows.values()) == {1}
            assert not seen & set(rows)
            seen |= set(rows)
            for own, (begin, stop) in enumerate(pairwise(firsts)):
                assert abs(come[begin:stop].sum() - due[own]) < 3
        assert len(plan) == count
        check_table(plan)
    for begin, stop in pairwise(firsts):
        least = 3 if isinstance(mix.policy, Windows) else 1
        planned = come[begin:stop][index.lengths[begin:stop] >= least]
        assert planned.max() - planned.min() <= 1
    assert len(seen) == come.sum()


def make_part(size, name="a"):
    return PartRows(name, 100, np.arange(size), size)


@examples(0.3, here=40)
@given(st.integers(1, 60), st.integers(0, 200), st.integers(0, 150), st.integers(0, 1 << 40))
def test_any_piece_of_a_run_is_cut_out_of_the_whole(size, first, count, seed):
    whole = draw_run(make_part(size), seed, 0, first + count)
    piece = draw_run(make_part(size), seed, first, count)
    for own, of_whole in zip(piece, whole, strict=True):
        assert own.tolist() == of_whole[first:].tolist()
    numbers, passes = whole
    assert sorted(set(zip(numbers.tolist(), passes.tolist(), strict=True))) == sorted(
        zip(numbers.tolist(), passes.tolist(), strict=True)
    )
    assert passes.tolist() == [row // size for row in range(first + count)]


def test_rows_of_a_segment_have_the_lengths_of_their_part():
    """Any 100 rows in turn of 1,000 lie evenly along the order of length."""
    for seed in range(20):
        numbers = draw_run(make_part(1_000), seed, 0, 3_000)[0] - 100
        for first in (0, 250, 900, 1_300, 2_500):
            chosen = np.sort(numbers[first : first + 100] % 1_000)
            if first // 1_000 == (first + 99) // 1_000:  # of one pass
                assert np.diff(chosen).max() <= 30
            assert abs(chosen.mean() - 500) < 25


def test_passes_are_in_other_orders():
    numbers = draw_run(make_part(50), 3, 0, 200)[0].reshape(4, 50)
    other = draw_run(make_part(50, "b"), 3, 0, 50)[0]
    orders = [tuple(order) for order in [*numbers.tolist(), other.tolist()]]
    assert len(set(orders)) == 5
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(100, 150))}


STORES = {
    name: MemoryStore.from_sequences([np.zeros((4.0).__int__() + k % 5) for k in range(count)])
    for name, count in (("a", 23), ("b", 9), ("c", 2))
}


@examples(0.1, here=4)
@given(st.integers(0, 99), st.sampled_from([1, 2, 4]), st.integers(1, 16), st.booleans(), st.data())
def test_a_run_continues_with_its_state_alone_on_any_ranks(seed, world, stop, is_cropped, data):
    inner = Windows(3, batch_size=2, random=True) if is_cropped else Bucketed(2)
    mix = Mix({"a": 2, "b": 1, "c": 1}, inner, rows=True, balance_ranks=4)  # one order on any world
    policy = Segments(mix, 4)
    changes = data.draw(st.lists(st.permutations([1, 3, 0]), min_size=8, max_size=8))

    def play(loaders, steps, position):
        found = []
        iterators = [iter(loader) for loader in loaders]
        for _ in range(steps):
            if position % 4 == 0:
                values = dict(zip("abc", changes[position // 4], strict=True))
                for loader in loaders if position else ():
                    loader.set_weights(values)
            batches = [next(iterator, None) for iterator in iterators]
            if batches[0] is None:
                iterators = [iter(loader) for loader in loaders]
                batches = [next(iterator) for iterator in iterators]
            for batch in batches:
                if (batch.weight > 0).any():
                    batch = batch.real()
                    rows = zip(batch.part, batch.part_epoch, batch.ids.tolist(), strict=True)
                    found += [
                        (*row, x[:3].tolist()) for row, x in zip(rows, batch["x"], strict=True)
                    ]
                    position += 1
        return found, position

    options = {"seed": seed, "prefetch": 0, "transform": noisy}
    whole, _ = play([Loader(STORES, policy, **options)], 17, 0)
    loader = Loader(STORES, policy, **options)
    begun, position = play([loader], stop // world * world, 0)
    state = json.loads(json.dumps(loader.state_dict()))
    ranks = [Loader(STORES, policy, world=World(rank, world), **options) for rank in range(world)]
    for rank in ranks:
        rank.load_state_dict(state)
    rest, _ = play(ranks, -(-(17 - position) // world), position)
    assert begun + rest == whole
    assert len({str(row) for row in whole}) == len(whole)


@pytest.mark.parametrize(
    "inner",
    [
        TokenBudget(40),
        Bucketed(4, max_length=9, too_long="split"),
        Windows(3, random=True, per_sequence=2),
    ],
    ids=["lengths", "pieces", "windows"],
)
def test_a_policy_whose_rows_are_not_declared_is_refused(inner):
    mix = Mix({"a": 1, "b": 1}, inner, rows=True)
    message = (
        "must have a policy that makes one row of each sequence and a number of batches that does"
    )
    with pytest.raises(ConfigError, match=message):
        Segments(mix, 4)


@pytest.mark.parametrize(
    "inner",
    [Weighted(Bucketed(4)), Curriculum(Bucketed(4), [(0, 9)], batches=8)],
    ids=["weighted", "curriculum"],
)
def test_rows_are_not_drawn_twice(inner):
    message = r"must plan each sequence once with `rows=True`, but \w+ draws some of them"
    with pytest.raises(ConfigError, match=message):
        Mix({"a": 1, "b": 1}, inner, rows=True)
