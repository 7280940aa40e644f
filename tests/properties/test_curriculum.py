"""Epochs of declared length, short sequences first: the same rows on any ranks and resumes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.loading.loader import Loader
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix, Part
from seqdata.policies.packed import Packed
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from tests.properties.counts import examples
from tests.properties.loaders import Loaders, check_rows
from tests.properties.noise import noisy

pytestmark = pytest.mark.timeout(3600)
GROUP = st.just(math.lcm(*range(1, 9)))  # a multiple of all worlds: one order on any of them
inner_policies = st.one_of(
    st.builds(Fixed, st.integers(1, 5)),
    st.builds(Fixed, st.integers(1, 5), too_long=st.sampled_from(["split", "truncate"])),
    st.builds(TokenBudget, st.integers(40, 90), balance_ranks=GROUP),
    st.builds(Packed, st.integers(1, 3), st.integers(40, 90)),
    st.builds(
        Weighted, st.builds(Bucketed, st.integers(1, 5), balance_ranks=GROUP),
        draws=st.integers(1, 30),
    ),
)  # fmt: skip


@st.composite
def makers(draw):
    lengths = [draw(st.integers(1, 4)), *draw(st.lists(st.integers(0, 40), max_size=40))]
    numbers = [0, *sorted(draw(st.sets(st.integers(1, 8), max_size=3)))]
    limits = st.one_of(st.none(), st.integers(4, 40))
    policy = Curriculum(
        draw(inner_policies), [(number, draw(limits)) for number in numbers],
        segment=draw(st.integers(1, 9)), batches=draw(st.integers(1, 12)),
    )  # fmt: skip
    store = MemoryStore.from_sequences(
        [np.arange(size) + 1_000.0 * k for k, size in enumerate(lengths)]
    )
    seed, prefetch = draw(st.integers(0, 1 << 40)), draw(st.sampled_from((0, 2)))
    transform = draw(st.sampled_from((None, noisy)))
    return Loaders(store, policy, seed, prefetch, transform=transform)


@examples(0.1, here=5)
@given(makers(), st.integers(2, 8), st.integers(0, 3), st.data())
def test_ranks_and_resumed_loaders_deliver_the_same_rows(make, size, epoch, data):
    check_rows(make, size, data, epoch=epoch, epochs=3)


@pytest.mark.parametrize(
    "inner", [Fixed(2), Weighted(Fixed(2), [1, 2, 3, 1], draws=6)], ids=["passes", "draws"]
)
def test_each_time_that_a_sequence_comes_it_has_random_numbers_of_its_own(inner):
    store = MemoryStore.from_sequences([np.zeros(length) for length in (3, 3, 4, 5)])
    policy = Curriculum(inner, [(0, 3), (1, 4), (3, None)], segment=5, batches=8)
    loader = Loader(store, policy, transform=noisy, prefetch=0)
    noise = [tuple(row[:2].tolist()) for _ in range(4) for batch in loader for row in batch["x"]]
    assert len(set(noise)) == len(noise) >= 48


def test_parts_of_a_mixture_have_random_numbers_of_their_own():
    stores = {
        name: MemoryStore.from_sequences([np.zeros(length) for length in lengths])
        for name, lengths in (("a", (3, 3, 4)), ("b", (3, 5)))
    }
    mix = Mix({"a": Part(2, Fixed(1)), "b": Part(1, Weighted(Fixed(1), draws=3))}, batches=4)
    policy = Curriculum(mix, [(0, 3), (1, None)], segment=7)
    loader = Loader(stores, policy, transform=noisy, prefetch=0)
    noise = [tuple(row[:2].tolist()) for _ in range(6) for batch in loader for row in batch["x"]]
    assert len(set(noise)) == len(noise) == 24


def test_ranks_have_equal_steps_in_every_epoch():
    store = MemoryStore.from_sequences([np.zeros(length) for length in range(1, 30)])
    policy = Curriculum(TokenBudget(64), [(0, 5), (2, None)], segment=4)
    loaders = [Loader(store, policy, world=World(rank, 3), prefetch=0) for rank in range(3)]
    counts = {len(loader) for loader in loaders}
    for _ in range(3):
        counts |= {len(list(loader)) for loader in loaders}
    assert len(counts) == 1
