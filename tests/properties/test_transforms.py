"""A transform draws the same for any world, thread and resume, and for each occurrence apart."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata.loading.engine import EpochEngine
from seqdata.loading.options import EngineOptions
from seqdata.loading.transforms.declare import columnar
from seqdata.planning.randomness import Draw, Purpose
from seqdata.policies.fixed import Bucketed
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore


def told(sequence, rng):
    return {"x": sequence["x"], "u": rng.integers(1 << 62)}


@columnar
def told_all(columns, seeds):
    return {"x": columns["x"], "u": (seeds >> np.uint64(2)).astype(np.int64)}


def draws(store, transform, world, prefetch, first=0):
    """Return (id, start, draw) of all rows that count, over all ranks."""
    found = []
    for rank in range(world):
        options = EngineOptions(
            transform=transform, world=World(rank, world), prefetch=prefetch, seed=3
        )
        player = EpochEngine(store, Bucketed(3, max_length=3, too_long="split"), options)
        for made in player.iterate(1, first):
            real = made.real()
            found += zip(real.ids.tolist(), real.start.tolist(), real["u"].tolist(), strict=True)
    return sorted(found)


@pytest.mark.parametrize("transform", [told, told_all])
@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=12),
    chosen=st.lists(st.integers(0, 11), min_size=1, max_size=12),
    world=st.integers(1, 4),
    prefetch=st.sampled_from([0, 2]),
    data=st.data(),
)
def test_draws_are_the_same_for_any_world_thread_and_resume(
    transform, lengths, chosen, world, prefetch, data
):
    base = MemoryStore.from_sequences([np.zeros(length) for length in lengths])
    store = base.take([number % len(lengths) for number in chosen])
    one = draws(store, transform, 1, 0)
    assert draws(store, transform, world, prefetch) == one
    options = EngineOptions(seed=3, balance_ranks=world)  # the order of the others
    player = EpochEngine(store, Bucketed(3, max_length=3, too_long="split"), options)
    first = data.draw(st.integers(0, player.num_batches - 1))
    trained = []
    share = player.share(1, 0)
    for step in range(first):
        spans = share[step].spans
        trained += zip(store.base_numbers(spans[:, 0]).tolist(), spans[:, 1].tolist(), strict=True)
    rest = draws(store, transform, world, prefetch, first)
    assert Counter(rest) <= Counter(one)
    left = Counter(place[:2] for place in one) - Counter(trained)
    assert Counter(place[:2] for place in rest) == left
    each = {(number, draw) for number, _, draw in one}
    bases = [number % len(lengths) for number in chosen]
    assert len(each) == len(bases)  # each occurrence draws for itself, all its chunks alike


def test_a_transform_of_a_whole_batch_is_given_these_seeds():
    zero = np.zeros(1, dtype=np.int64)
    word = Draw(3, 1).hash_each(Purpose.TRANSFORM, zero, zero)[0]
    assert draws(MemoryStore.from_sequences([[1.0]]), told_all, 1, 0) == [
        (0, 0, int(word >> np.uint64(2)))
    ]
