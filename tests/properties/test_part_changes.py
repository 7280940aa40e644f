"""Parts of a mixture that are added, removed or changed at a resume: each in its own epochs."""

import json
import warnings
from dataclasses import dataclass, field
from functools import cache
from math import gcd

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import SeqDataWarning
from seqdata.index import SequenceIndex
from seqdata.loading.loader import Loader
from seqdata.planning.parts import Part, derive_part_seed
from seqdata.planning.policy import balance_ranks
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.segments import Segments
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from tests.properties.counts import examples

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore:.*the mixture has changed.*:seqdata.errors.SeqDataWarning"),
]
LENGTH = 12
RANKS = 2  # whose steps are balanced, whatever the world
STORES = {
    name: [
        MemoryStore.from_sequences([np.ones(1 + k % 4) for k in range(count)]) for count in counts
    ]
    for name, counts in (("a", (9, 13)), ("b", (30, 31)), ("c", (4, 5)), ("d", (1, 2)))
}
policies = st.builds(Fixed, st.integers(1, 4)) | st.builds(Bucketed, st.integers(1, 4))


@cache
def make_own_plan(name, version, policy, seed, epoch):
    index = SequenceIndex.from_store(STORES[name][version])
    return balance_ranks(policy, RANKS).plan(index, seed=derive_part_seed(seed, name), epoch=epoch)


@dataclass(frozen=True)
class Mixture:
    """The parts of a run: which of its two stores each has, its policy, and its weight."""

    versions: dict
    parts: dict
    batches: int
    group: int

    @property
    def policy(self):
        mix = Mix(
            self.parts,
            batches=self.batches,
            batches_per_update=self.group,
            balance_ranks=RANKS,
        )
        return Segments(mix, LENGTH)

    @property
    def stores(self):
        return {name: STORES[name][version] for name, version in self.versions.items()}

    def load(self, seed, world=None, **options):
        return Loader(self.stores, self.policy, seed=seed, world=world or World(), **options)

    def same(self, name, earlier):
        """Return whether a part is as it was."""
        return (self.versions[name], self.parts[name].policy) == (
            earlier.versions[name], earlier.parts[name].policy,
        )  # fmt: skip

    def own_plan(self, name, seed, epoch):
        """Return the plan of a part, by its own policy alone."""
        return make_own_plan(name, self.versions[name], self.parts[name].policy, seed, epoch)


@st.composite
def mixtures(draw):
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))
    weight = st.floats(0.01, 1)
    parts = {name: Part(draw(weight), draw(policies)) for name in names}
    versions = {name: draw(st.integers(0, 1)) for name in names}
    return Mixture(versions, parts, draw(st.integers(20, 60)), draw(st.sampled_from([1, 2, 4])))


@dataclass
class Chain:
    """A run of simulated ranks, and where each part is by what it has drawn."""

    seed: int
    mixture: Mixture
    places: dict = field(default_factory=dict)  # part -> own epoch, batch
    drawn: dict = field(default_factory=dict)  # (epoch, number) -> part, ids: since the change
    origin: tuple = (0, 0)
    state: dict | None = None

    def change(self, mixture, on_changed):
        """Continue with another mixture; compare where it begins with what was drawn."""
        position, before = self.state["position"], self.mixture
        epoch, end = self.state["epoch"], position in (0, before.batches)
        first = position if on_changed == "next_segment" else 10**9
        first += -first % LENGTH
        if position == 0 or (not end and first < mixture.batches):
            self.origin = epoch, 0 if position == 0 else first
        else:
            self.origin = epoch + 1, 0
        places = {}
        for name in mixture.parts:
            places[name] = self.places.get(name, (0, 0)) if name in before.parts else (0, 0)
            if name in before.parts and not mixture.same(name, before) and places[name][1]:
                places[name] = places[name][0] + 1, 0
        self.places, self.mixture, self.drawn = places, mixture, {}
        loader = mixture.load(self.seed, prefetch=0)
        loader.load_state_dict(self.state, on_changed=on_changed)
        self.state = json.loads(json.dumps(loader.state_dict()))
        assert (self.state["epoch"], self.state["position"]) == self.origin
        assert len(self.state["weights"]) + len(self.state["parts"]) < 200

    def play(self, world, steps, **options):
        """Train some steps on ``world`` ranks, in other processes: with the state alone."""
        loaders = [
            self.mixture.load(self.seed, World(rank, world), **options) for rank in range(world)
        ]
        if self.state is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("error", SeqDataWarning)  # nothing has changed
                for loader in loaders:
                    loader.load_state_dict(self.state)
        iterators = [iter(loader) for loader in loaders]
        for _ in range(steps):
            batches = [next(iterator, None) for iterator in iterators]
            if batches[0] is None:
                assert batches == [None] * world
                break
            for batch in batches:
                self._note(batch)
            states = [loader.state_dict() for loader in loaders]
            assert all(state == states[0] for state in states)
            self.state = json.loads(json.dumps(states[0]))
        for loader in loaders:
            loader.shutdown()

    def _note(self, batch):
        if not (batch.weight > 0).any():
            return
        key, ids = (batch.epoch, batch.number), sorted(batch.ids.tolist())
        assert key >= self.origin
        assert key not in self.drawn
        epoch, number = self.places.get(batch.part, (0, 0))
        plan = self.mixture.own_plan(batch.part, self.seed, epoch)
        first = 0  # of the plan: groups of like batches begin at even places of the endless run
        if isinstance(self.mixture.parts[batch.part].policy, Bucketed):
            first = epoch * len(plan) % -RANKS
        expected = sorted(plan.batch((number + first) % len(plan)).spans[:, 0].tolist())
        assert (batch.part_epoch, ids) == (epoch, expected)
        number += 1
        self.places[batch.part] = (epoch + 1, 0) if number == len(plan) else (epoch, number)
        self.drawn[key] = batch.part, ids

    def check_shares(self):
        """Raise if the batches since the change are off their weights."""
        weights = {name: part.weight for name, part in self.mixture.parts.items()}
        for name, weight in weights.items():
            share = weight / sum(weights.values())
            drawn = [part == name for part, _ in self.drawn.values()]
            off = np.cumsum(drawn) - share * np.arange(1, len(drawn) + 1)
            assert len(off) == 0 or np.abs(off).max() < 3 * self.mixture.group + 1e-9


def play_alone(state, mixture, seed, stop):
    """Return what one process draws from a state to some batch."""
    loader, drawn = mixture.load(seed, prefetch=0), {}
    loader.load_state_dict(state)
    while loader.epoch <= stop[0]:
        for batch in loader:
            drawn[batch.epoch, batch.number] = batch.part, sorted(batch.ids.tolist())
            if (batch.epoch, batch.number) >= stop:
                return drawn
    return drawn


@pytest.mark.slow
@examples(0.1, here=4)
@given(st.lists(mixtures(), min_size=2, max_size=4), st.integers(0, 99), st.data())
def test_each_part_continues_in_its_own_epochs_over_changes_worlds_and_resumes(several, seed, data):
    chain, begin = Chain(seed, several[0]), None
    for mixture in several:
        if mixture != chain.mixture and chain.state is not None:
            on_changed = data.draw(st.sampled_from(["next_segment", "next_segment", "next_epoch"]))
            if on_changed == "next_epoch" and mixture.stores == chain.mixture.stores:
                on_changed = "next_segment"  # no data has changed
            chain.change(mixture, on_changed)
            begin = chain.state
        for steps in data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=3)):
            position = chain.state["position"] if chain.state else 0
            within = gcd(LENGTH, position % LENGTH)
            world = data.draw(st.sampled_from([n for n in range(1, 5) if within % n == 0]))
            chain.play(world, steps, prefetch=data.draw(st.sampled_from([0, 2])))
        chain.check_shares()
        if begin is not None:
            alone = play_alone(begin, chain.mixture, seed, max(chain.drawn))
            assert {key: alone.get(key) for key in chain.drawn} == chain.drawn
            assert set(alone) == set(chain.drawn)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_workers_read_the_parts_of_now(workers):
    parts = {name: Part(1, Fixed(2)) for name in "abc"}
    chain = Chain(5, Mixture({"a": 0, "b": 0}, {name: parts[name] for name in "ab"}, 48, 2))
    chain.play(2, 7, num_workers=workers)
    chain.change(
        Mixture({"b": 0, "c": 1}, {name: parts[name] for name in "bc"}, 48, 2), "next_segment"
    )
    assert chain.origin == (0, 24)
    chain.play(2, 6, num_workers=workers)
    chain.play(1, 30)
    assert set(chain.drawn) == {(0, number) for number in range(24, 48)}
