"""The order of a mixture's parts: no prefix is off its weights, and any event is found at once."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata.planning.part_order import (
    WEIGHT_TOTAL,
    compute_root,
    make_part_order,
    scale_weights,
)

CASES = settings().max_examples
EVENTS = 20_000
MOST_OFF = 3  # batches

weights = st.lists(st.floats(-4, 0).map(lambda power: 10**power), min_size=1, max_size=100)
edges = st.sampled_from(
    [
        [1 - 99e-4] + [1e-4] * 99,
        [1e-4] * 99 + [1.0],
        [1.0] * 100,
        [0.7, 0.3],
        [1.618**-k for k in range(20)],
        [2.0**-k for k in range(14)],
        [1.0, 0.0, 0.5, 0.0],
    ]
)


def most_off(shares, first, count, seed):
    """Return how far a prefix of ``count`` events from ``first`` on is off its weights."""
    order = make_part_order(scale_weights([Fraction(share) for share in shares]), seed)
    parts, _ = order.locate_run(first, count)
    exact = np.array(shares) / sum(shares)
    places = np.arange(count + 1)
    off = 0.0
    for part, share in enumerate(exact):
        counts = np.concatenate([[0], np.cumsum(parts == part)])
        off = max(off, float(abs(counts - places * share).max()))
    return off


@settings(max_examples=CASES)
@given(st.one_of(edges, weights), st.integers(0, 2**64 - 1), st.sampled_from([0, 10**4, 10**12]))
@pytest.mark.slow
def test_no_prefix_of_an_epoch_is_off_its_weights(shares, seed, first):
    assert most_off(shares, first, EVENTS, seed) <= MOST_OFF


@pytest.mark.parametrize("small", [1, 20, 99])
def test_a_heavy_part_keeps_its_share_next_to_many_light_ones(small):
    shares = [1 - small * 1e-4] + [1e-4] * small
    assert max(most_off(shares, 0, EVENTS, seed) for seed in range(4)) <= 2


@settings(max_examples=CASES)
@given(st.one_of(edges, weights), st.integers(0, 10**12), st.integers(0, 2**32))
def test_an_event_is_the_same_alone_and_in_a_run(shares, first, seed):
    order = make_part_order(scale_weights([Fraction(share) for share in shares]), seed)
    parts, numbers = order.locate_run(first, 50)
    alone = [order.locate(event) for event in range(first, first + 50)]
    assert alone == list(zip(parts.tolist(), numbers.tolist(), strict=True))


@settings(max_examples=CASES)
@given(st.one_of(edges, weights), st.integers(0, 2**32))
def test_each_part_counts_its_own_events(shares, seed):
    order = make_part_order(scale_weights([Fraction(share) for share in shares]), seed)
    parts, numbers = order.locate_run(0, 2_000)
    for part in range(len(shares)):
        own = numbers[parts == part]
        assert own.tolist() == list(range(len(own)))


def test_parts_begin_at_other_places_for_every_seed():
    runs = [make_part_order([WEIGHT_TOTAL // 4] * 4, seed).locate_run(0, 8)[0] for seed in range(9)]
    assert len({tuple(run.tolist()) for run in runs}) > 3


def test_a_part_without_weight_never_comes():
    order = make_part_order(scale_weights([Fraction(1), Fraction(0), Fraction(2)]), 0)
    assert 1 not in order.locate_run(0, 1_000)[0]


def test_a_single_part_has_every_event():
    assert make_part_order(scale_weights([Fraction(0), Fraction(3)]), 0).locate(10**15) == (
        1,
        10**15,
    )


@settings(max_examples=CASES)
@given(st.lists(st.fractions(0, 1), min_size=1, max_size=100).filter(any))
def test_integer_weights_add_up_and_are_near(shares):
    units = scale_weights(shares)
    total = sum(shares)
    assert sum(units) == WEIGHT_TOTAL
    for unit, share in zip(units, shares, strict=True):
        assert (unit > 0) == (share > 0)
        assert abs(unit - share * WEIGHT_TOTAL / total) <= len(shares)


@pytest.mark.parametrize("temperature", [2, 2.0, np.float64(2)])
def test_roots_are_the_same_for_each_kind_of_number(temperature):
    assert compute_root(400, temperature) == 20
    assert compute_root(7, temperature) == compute_root(7, 2.0)
