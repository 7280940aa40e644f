"""Drawing by weight: its law for any weights, and the same rows on any ranks, workers, resumes."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from seqdata.index import SequenceIndex
from seqdata.planning.draws import DrawRates
from seqdata.planning.randomness import Draw
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.packed import Packed
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata.policies.windows import Windows
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from seqdata_testing.blocks import SmallBlocks
from seqdata_testing.recorder import play_rank
from seqdata_testing.sharing import check_elastic, check_resume, check_shares
from tests.properties.counts import examples
from tests.properties.loaders import Loaders, check_rows
from tests.properties.noise import noisy

pytestmark = pytest.mark.timeout(3600)
whole_numbers = st.lists(st.integers(0, 1_000), min_size=1, max_size=80)
any_numbers = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1e6), st.floats(0, 1)), min_size=1, max_size=80
)
inner_policies = st.one_of(
    st.builds(Fixed, st.integers(1, 5)),
    st.builds(Sorted, st.integers(1, 5)),
    st.builds(Bucketed, st.integers(1, 5), worst_first=st.booleans()),
    st.builds(TokenBudget, st.integers(40, 90)),
    st.builds(Packed, st.integers(1, 3), st.integers(40, 90)),
    st.builds(Windows, st.integers(1, 9), batch_size=st.integers(1, 5)),
    st.builds(
        Windows, st.integers(1, 9), batch_size=st.integers(1, 5), random=st.just(True),
        per_sequence=st.integers(1, 3),
    ),
    st.builds(SmallBlocks, st.builds(Bucketed, st.integers(1, 2)), st.integers(1, 9)),
)  # fmt: skip


@st.composite
def cases(draw):
    weights = draw(whole_numbers)
    assume(any(weights))
    lengths = draw(st.lists(st.integers(0, 40), min_size=len(weights), max_size=len(weights)))
    draws = draw(st.one_of(st.none(), st.integers(1, 120)))
    policy = Weighted(draw(inner_policies), weights, draws, draw(st.just(False)))
    assume(policy.num_batches(SequenceIndex.from_lengths(lengths)) >= 1)
    return policy, lengths


@st.composite
def makers(draw):
    policy, lengths = draw(cases())
    store = MemoryStore.from_sequences(
        [np.arange(size) + 1_000.0 * k for k, size in enumerate(lengths)]
    )
    seed, prefetch = draw(st.integers(0, 1 << 40)), draw(st.sampled_from((0, 2)))
    transform = draw(st.sampled_from((None, noisy)))
    return Loaders(store, policy, seed, prefetch, transform=transform)


@examples(5, here=100)
@given(whole_numbers, st.integers(1, 500), st.integers(0, 1 << 40), st.integers(0, 50))
def test_each_count_is_its_expectation_rounded_down_or_up(weights, draws, seed, epoch):
    assume(any(weights))
    found = DrawRates.from_weights(np.array(weights, dtype=float), draws).count(Draw(seed, epoch))
    due = [Fraction(draws * weight, sum(weights)) for weight in weights]
    assert found.sum() == draws
    assert all(one in (k // 1, -(-k // 1)) for one, k in zip(found.tolist(), due, strict=True))


@examples(5, here=100)
@given(any_numbers, st.integers(1, 10_000), st.integers(0, 1 << 40))
def test_rates_add_up_and_are_near_for_any_numbers(weights, draws, seed):
    assume(any(weights))
    weights = np.array(weights)
    rates = DrawRates.from_weights(weights, draws)
    assert int(rates.fixed.sum()) == draws << 32
    assert (rates.fixed >= 0).all()
    assert np.allclose(rates.to_float(), draws * weights / weights.sum(), atol=1e-6)
    assert rates.count(Draw(seed, 0)).sum() == draws


@examples(1, here=50)
@given(st.integers(1, 300), st.floats(1e-3, 1e3), st.integers(0, 1 << 40))
def test_equal_weights_draw_each_once(count, weight, seed):
    rates = DrawRates.from_weights(np.full(count, weight), count)
    assert (rates.count(Draw(seed, 1)) == 1).all()


@examples(0.005, here=4)
@given(st.lists(st.integers(0, 20), min_size=2, max_size=12), st.integers(1, 40))
def test_the_mean_over_seeds_is_the_expectation(weights, draws):
    assume(any(weights))
    rates = DrawRates.from_weights(np.array(weights, dtype=float), draws)
    found = np.mean([rates.count(Draw(seed, 0)) for seed in range(1_500)], axis=0)
    assert np.abs(found - rates.to_float()).max() < 5.5 * 0.5 / np.sqrt(1_500)


@examples(1, here=25)
@given(
    cases(), st.integers(1, 8), st.integers(0, 3), st.sampled_from(("fill", "repeat")), st.data()
)
@pytest.mark.slow
def test_any_world_shares_all_that_was_drawn(case, size, epoch, tail, data):
    policy, lengths = case
    plan = policy.plan(SequenceIndex.from_lengths(lengths), seed=7, epoch=epoch)
    assume(len(plan))
    check_shares(plan, size, first=data.draw(st.integers(0, len(plan))), tail=tail)
    steps = -(-len(plan) // size)
    cuts = sorted(data.draw(st.sets(st.integers(0, steps), max_size=3)))
    check_resume(plan, size, cuts)
    legs = data.draw(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 5)), max_size=3))
    check_elastic(plan, [*legs, (1, 0)])


@examples(0.1, here=5)
@given(makers(), st.integers(2, 8), st.integers(0, 2), st.data())
@pytest.mark.slow
def test_ranks_and_resumed_loaders_deliver_the_same_rows(make, size, epoch, data):
    check_rows(make, size, data, epoch=epoch, epochs=2)


@pytest.mark.parametrize(
    ("inner", "workers"),
    [(Windows(4, random=True, batch_size=5), 1), (TokenBudget(99), 2)],
    ids=["windows", "token-budget"],
)
@pytest.mark.slow
def test_workers_deliver_the_same_rows(inner, workers):
    lengths = np.random.default_rng(3).integers(4, 30, 60)
    store = MemoryStore.from_sequences(
        [np.arange(size) + 1_000.0 * k for k, size in enumerate(lengths)]
    )
    policy = Weighted(inner, np.arange(60) % 7, draws=90)
    make = Loaders(store, policy, seed=5)
    rows = play_rank(make, World(0, 1))
    assert play_rank(replace(make, num_workers=workers, prefetch=2), World(0, 1)) == rows


@pytest.mark.parametrize(
    "inner",
    [
        Fixed(8),
        Windows(4, random=True, batch_size=5),
        Fixed(8, max_length=5, too_long="split"),
    ],
    ids=["whole", "crops", "split"],
)
def test_each_draw_of_a_sequence_has_random_numbers_of_its_own(inner):
    store = MemoryStore.from_sequences([np.zeros(12) for _ in range(4)])
    make = Loaders(store, Weighted(inner, [1, 2, 3, 1], draws=14))
    noise = [tuple(row[:2].tolist()) for batch in make(World(0, 1)) for row in batch["x"]]
    pieces = 3 if getattr(inner, "too_long", "") == "split" else 1  # of a draw; they are alike
    assert len(noise) == 14 * pieces
    assert len(set(noise)) == 14
