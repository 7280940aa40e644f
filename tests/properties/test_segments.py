"""Weights that follow what was drawn: the same batches on any ranks, workers, resumes."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from math import gcd

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.packed import Packed
from seqdata.policies.segments import Segments
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata.policies.windows import Windows
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from tests.properties.counts import examples
from tests.properties.noise import noisy

pytestmark = pytest.mark.timeout(3600)
COUNT = 40
GROUP = 24  # a multiple of all worlds here: one order on any of them
STORE = MemoryStore.from_sequences(
    [
        np.arange(length, dtype=np.float64)
        for length in np.random.default_rng(0).integers(5, 30, COUNT)
    ]
)
inner_policies = st.one_of(
    st.builds(Fixed, st.integers(1, 5)),
    st.builds(Bucketed, st.integers(1, 5), balance_ranks=st.just(GROUP)),
    st.builds(TokenBudget, st.integers(30, 90), balance_ranks=st.just(GROUP)),
    st.builds(Packed, st.integers(1, 3), st.integers(30, 90)),
    st.builds(
        Windows, st.just(5), batch_size=st.integers(1, 5), random=st.just(True),
        per_sequence=st.integers(1, 3),
    ),
)  # fmt: skip


@dataclass
class Chain:
    """A run of simulated ranks whose weights follow from what all of them drew in a segment."""

    policy: Segments
    seed: int = 0
    options: dict = field(default_factory=dict)
    drawn: dict = field(default_factory=dict)  # (epoch, batch) -> ids and values
    state: dict | None = None
    weights: np.ndarray | None = None
    met: list = field(default_factory=list)  # ids of the segment so far, in any order

    def play(self, world: int, steps: int | None) -> int:
        """Train some steps on ``world`` ranks, or all that are left; return the position."""
        loaders = [
            Loader(
                STORE, self.policy, world=World(rank, world), seed=self.seed, transform=noisy,
                **self.options,
            )
            for rank in range(world)
        ]  # fmt: skip
        if self.state is not None:
            for loader in loaders:
                loader.load_state_dict(self.state, weights=self.weights)
        while loaders[0].epoch < 2 and (steps is None or steps > 0):
            steps = self._play_epoch(loaders, steps)
        for loader in loaders:
            loader.shutdown()
        return self.state["position"] if self.state else 0

    def _play_epoch(self, loaders, steps):
        iterators = [iter(loader) for loader in loaders]
        while steps is None or steps > 0:
            if loaders[0].state_dict()["position"] % self.policy.batches == 0 and self.met:
                draw = np.random.default_rng([sum(self.met), len(self.met)])
                self.weights = np.maximum(draw.normal(size=COUNT), 0) + (draw.random() < 0.5)
                self.met = []
                for loader in loaders:
                    loader.set_weights(self.weights)
            batches = [next(iterator, None) for iterator in iterators]
            if batches[0] is None:
                assert batches == [None] * len(batches)
                break
            for batch in batches:
                self._note(batch)
            states = [loader.state_dict() for loader in loaders]
            assert all(state == states[0] for state in states)
            self.state = json.loads(json.dumps(states[0]))
            steps = None if steps is None else steps - 1
        return steps

    def _note(self, batch):
        if not (batch.weight > 0).any():
            return
        ids = batch.ids[batch.weight > 0].tolist()
        assert (batch.epoch, batch.number) not in self.drawn
        self.drawn[batch.epoch, batch.number] = ids, batch["x"].sum().item()
        self.met += ids


def divisors(number: int) -> list[int]:
    return [world for world in range(1, 9) if number % world == 0]


def run_whole(policy: Segments, seed: int) -> Chain:
    chain = Chain(policy, seed, {"prefetch": 0})
    chain.play(1, None)
    return chain


@examples(0.1, here=4)
@given(inner_policies, st.sampled_from([1, 2, 3, 4, 6, 8, 12]), st.integers(0, 99), st.data())
def test_a_chain_of_worlds_draws_what_one_process_draws(inner, length, seed, data):
    policy = Segments(Weighted(inner, draws=data.draw(st.integers(20, 120))), length)
    whole = run_whole(policy, seed)
    chain = Chain(policy, seed, {"prefetch": data.draw(st.sampled_from([0, 2]))})
    position = 0
    while not chain.state or chain.state["epoch"] < 2:
        world = data.draw(st.sampled_from(divisors(gcd(length, position % length))))
        position = chain.play(world, data.draw(st.integers(1, 9)))
    assert chain.drawn == whole.drawn


PARTS = {
    name: MemoryStore.from_sequences([np.arange(1.0 + k % 4) for k in range(count)])
    for name, count in (("a", 17), ("b", 30), ("c", 5), ("d", 1))
}


@examples(0.1, here=5)
@given(
    st.integers(0, 99),
    st.sampled_from([1, 4, 6]),
    st.sampled_from(["update", "batch"]),
    st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any), max_size=9),
    st.data(),
)
def test_shares_of_a_mixture_hold_over_changes_and_resumes(seed, length, keep, changes, data):
    mix = Mix(
        dict.fromkeys(PARTS, 1), Fixed(1), batches=60, keep=keep, batches_per_update=2, shuffle=True
    )
    policy = Segments(mix, length)
    stop = data.draw(st.integers(1, 59))
    loader, met, expected = Loader(PARTS, policy, prefetch=0, seed=seed), [], np.zeros(4)
    weights = np.ones(4)
    position = 0
    batches = iter(loader)
    while True:
        if position % length == 0 and position // length < len(changes):
            weights = np.array(changes[position // length], dtype=float)
            loader.set_weights(dict(zip(PARTS, weights.tolist(), strict=True)))
        if position == stop:  # another process continues, with nothing but the state
            state = json.loads(json.dumps(loader.state_dict()))
            loader = Loader(PARTS, policy, prefetch=0, seed=seed)
            loader.load_state_dict(state)
            batches = iter(loader)
        batch = next(batches, None)
        if batch is None:
            break
        met.append((batch.part, batch.part_epoch, batch.ids.item()))
        expected += weights / weights.sum()
        position += 1
        counts = np.array([sum(part == name for part, _, _ in met) for name in PARTS])
        assert (np.abs(counts - expected) < (3 * 2 if keep == "update" else 3)).all()
    assert position == 60
    for name, store in PARTS.items():
        own = [one[1:] for one in met if one[0] == name]
        assert own == sorted(own, key=lambda one: one[0])
        assert len(set(own)) == len(own)  # each once in each of its own epochs
        for epoch in range(own[-1][0] if own else 0):
            assert sorted(number for of, number in own if of == epoch) == list(range(len(store)))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_workers_read_nothing_beyond_a_segment(workers):
    policy = Segments(Weighted(Fixed(3)), 2)
    whole = run_whole(policy, 5)
    chain = Chain(policy, 5, {"num_workers": workers})
    chain.play(2, 3)
    chain.play(1, None)
    assert chain.drawn == whole.drawn


@examples(0.1, here=10)
@given(
    inner_policies, st.integers(1, 12), st.lists(st.floats(0, 9), min_size=COUNT, max_size=COUNT)
)
def test_the_number_of_batches_is_declared(inner, length, weights):
    policy = Segments(Weighted(inner), length)
    loader = Loader(STORE, policy, prefetch=0)
    count, done = len(loader), 0
    for number, batch in enumerate(loader, 1):
        done += len(batch)
        if any(weights) and number % length == 0 and number < count:
            loader.set_weights(weights)
    assert number == count == policy.num_batches(loader._engine.index) == len(loader)


@examples(0.1, here=5)
@given(st.integers(0, 1_000), st.integers(1, 12), st.integers(1, 7))
def test_a_segment_draws_each_sequence_as_often_as_its_weight_says(seed, length, size):
    policy = Segments(Weighted(Fixed(size), draws=200), length)
    weights = np.random.default_rng(seed).random(COUNT) ** 3
    loader = Loader(STORE, policy, prefetch=0, seed=seed)
    loader.set_weights(weights)
    counts: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(COUNT, dtype=int))
    for batch in loader:
        counts[batch.number // length] += np.bincount(batch.ids, minlength=COUNT)
    assert sum(count.sum() for count in counts.values()) == 200
    for count in counts.values():
        expected = count.sum() * weights / weights.sum()
        assert (np.abs(count - expected) < 1).all()
