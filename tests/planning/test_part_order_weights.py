"""Weights of parts that a run sets: 16 bits each, and an order that continues over changes."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata.errors import ConfigError, ResumeError
from seqdata.loading.loader import Loader
from seqdata.planning.part_order import (
    WEIGHT_TOTAL,
    PartWeights,
    make_part_order,
    make_part_weights,
    scale_weights,
)
from seqdata.policies.fixed import Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.segments import Segments

DECLARED = {"books": 0.7, "code": 0.3, "none": 0}
DATA = {name: [np.ones(2)] * 4 for name in DECLARED}


def test_weights_are_relative_and_kept_in_sixteen_bits():
    weights = make_part_weights(DECLARED, {"code": 3, "none": 0, "books": 1e-12})
    assert weights.values == (2.0**-24, 1, 0)
    assert PartWeights.from_text(weights.digest, 3) == weights
    assert len(PartWeights((1.0,) * 20).digest) == 56


def test_ten_changes_of_twenty_parts_are_less_than_a_kilobyte():
    parts = {f"part {number}": number + 1 for number in range(20)}
    data = {name: [np.ones(2)] * 2 for name in parts}
    policy = Segments(Mix(parts, Fixed(1), batches=100), 8)
    loader = Loader(data, policy, prefetch=0)
    for number, _ in enumerate(loader, 1):
        if number % 8 == 0 and number <= 80:
            loader.set_weights(dict.fromkeys(parts, 0.1) | {"part 3": number})
    text = loader.state_dict()["weights"]
    assert text.count(";") == 9
    assert len(text) < 1_000


@pytest.mark.parametrize("number", [np.float32, np.float16, np.int8, np.float64])
def test_a_run_with_weights_of_numpy_is_one_with_plain_numbers(number):
    def run_with(number):
        parts = {"books": number(4), "code": number(3), "none": number(0)}
        policy = Segments(Mix(parts, Fixed(1), batches=32), 8)
        loader = Loader(DATA, policy, prefetch=0)
        names = []
        for count, batch in enumerate(loader, 1):
            names.append(batch.part)
            if count == 8:
                loader.set_weights({"books": number(1), "code": number(5), "none": number(0)})
        return names, loader.state_dict()

    assert run_with(number) == run_with(int if number is np.int8 else float)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2, 3], "must be a mapping of parts to weights, but is"),
        ({"books": 1, "code": 1}, "but has no 'none'. Pass 0 to draw nothing"),
        ({"books": 1, "kode": 1, "none": 0}, "'kode' is not one of them. did you mean 'code'"),
        ({"books": 1, "code": 1, "none": 0, "x": 1}, "'x' is not one of them. Leave it out"),
        ({"books": -1, "code": 1, "none": 0}, "of part 'books' must be a finite number of at"),
        ({"books": float("nan"), "code": 1, "none": 0}, "of part 'books' must be a finite number"),
        (
            {"books": 0, "code": 0, "none": 0},
            "must be above 0 for at least one part, but all are 0",
        ),
        ({"books": 1, "code": 1, "none": 1}, "of part 'none' must be 0, as the mixture says"),
    ],
)
def test_weights_that_fit_no_mixture_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        make_part_weights(DECLARED, weights)


@pytest.mark.parametrize("text", ["", "AAAA", "%%", "AAA8AHwAPAA="])
def test_damaged_weights_are_refused(text):
    with pytest.raises(ConfigError, match="saved weights must be 3 numbers"):
        PartWeights.from_text(text, 3)


def test_a_damaged_state_is_refused():
    policy = Segments(Mix(DECLARED, Fixed(1), batches=16), 8)
    loader = Loader(DATA, policy)
    state = {**loader.state_dict(), "weights": "nothing"}
    with pytest.raises(ResumeError, match="must be changes of weights, but is 'nothing'"):
        loader.load_state_dict(state)


def change(order, weights, new_weights, seed, batches, group=1, ahead=None):
    """Return the order of other weights after some batches, and what parts are ahead by then."""
    counts = order.count_batches(batches, group, len(weights))
    ahead = [
        before + count * WEIGHT_TOTAL - batches * weight
        for before, count, weight in zip(ahead or [0] * len(weights), counts, weights, strict=True)
    ]
    return make_part_order(new_weights, seed, ahead, group), ahead


def test_an_order_that_is_changed_to_its_own_weights_goes_on_as_it_was():
    weights = scale_weights([Fraction(number) for number in (5, 3, 2, 7)])
    order = make_part_order(weights, 3)
    for events in (0, 1, 7, 100):
        changed, _ = change(order, weights, weights, 3, events)
        before = order.count_events(events, 4)
        for event in range(50):
            part, number = changed.locate(event)
            assert order.locate(events + event) == (part, number + before[part])


def test_short_pieces_starve_no_part():
    """Where each piece began alike, parts of little weight would never come."""
    counts, ahead = np.zeros(3, dtype=int), None
    weights = scale_weights([Fraction(8), Fraction(1), Fraction(1)])
    order = make_part_order(weights, 0)
    for number in range(400):
        counts += order.count_events(1, 3)
        new = scale_weights([Fraction(weight) for weight in (8 + number % 2, 1, 1)])
        order, ahead = change(order, weights, new, 0, 1, ahead=ahead)
        weights = new
    assert counts.sum() == 400
    assert (np.abs(counts - np.array([322, 39, 39])) <= 3).all()
    assert sum(scale_weights([Fraction(1)])) == WEIGHT_TOTAL


NEW_WEIGHTS = st.one_of(
    st.lists(st.integers(0, 1000), min_size=2, max_size=16),
    st.lists(st.sampled_from([0, 1, 10**4, 10**8]), min_size=2, max_size=16),
    st.sampled_from(["behind", "ahead", "first", "last", "equal"]),
)
"""Weights, or which parts get all of them: those that are behind or ahead of their shares."""


def choose_weights(new, ahead):
    count = len(ahead)
    if not isinstance(new, str):
        values = (new * count)[:count]
    elif new in ("behind", "ahead"):
        values = [int((own < 0) == (new == "behind")) for own in ahead]
    else:
        values = [int(new == "equal" or n == (new == "last") * (count - 1)) for n in range(count)]
    return scale_weights(list(map(Fraction, values if any(values) else [1] * count)))


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 10**6), min_size=2, max_size=16),
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 3, 8, 64]),
    st.lists(st.tuples(st.integers(1, 200), NEW_WEIGHTS), min_size=1, max_size=12),
)
def test_shares_hold_over_every_change_of_weights(declared, seed, group, changes):
    """No part is 3 groups off its share, wherever weights change: also within a group."""
    weights, ahead = scale_weights(list(map(Fraction, declared))), [0] * len(declared)
    order = make_part_order(weights, seed)
    for batches, new in changes:
        for played in {*range(1, batches + 1, max(1, batches // 40)), batches}:
            counts = order.count_batches(played, group, len(weights))
            assert sum(counts) == played
            off = [
                before + own * WEIGHT_TOTAL - played * weight
                for before, own, weight in zip(ahead, counts, weights, strict=True)
            ]
            assert max(map(abs, off)) <= 3 * group * WEIGHT_TOTAL
        events = -(-batches // group)
        parts, numbers = order.locate_run(0, events)
        located = [order.locate(event) for event in range(events)]
        assert list(zip(parts.tolist(), numbers.tolist(), strict=True)) == located
        assert all(weights[part] for part in parts.tolist())
        new_weights = choose_weights(new, off)
        order, ahead = change(order, weights, new_weights, seed, batches, group, ahead)
        weights = new_weights


def test_shares_of_batches_hold_where_segments_cut_groups_off():
    """Groups of 4 batches in segments of 10: every other change cuts one off."""
    data = {name: [np.ones(2)] * 64 for name in "abcde"}
    policy = Segments(Mix(dict.fromkeys(data, 1), Fixed(1), batches=600, batches_per_update=4), 10)
    rng, loader = np.random.default_rng(2), Loader(data, policy, prefetch=0)
    shares, counts, due = np.full(5, 0.2), np.zeros(5), np.zeros(5)
    for number, batch in enumerate(loader, 1):
        counts["abcde".index(batch.part)] += 1
        due += shares
        assert np.abs(counts - due).max() <= 3 * 4
        if number % 10 == 0 and number < 600:
            weights = rng.random(5) * rng.integers(0, 2, 5) + 0.01
            loader.set_weights(dict(zip("abcde", weights.tolist(), strict=True)))
            shares = weights / weights.sum()


def test_parts_go_on_where_they_were_after_changes_and_resumes():
    data = {"a": [np.ones(2)] * 9, "b": [np.ones(2)] * 5}
    policy = Segments(Mix(dict.fromkeys(data, 1), Fixed(1), batches=40, keep="batch"), 4)
    loader, met, state = Loader(data, policy, prefetch=0), [], None
    for number, batch in enumerate(loader, 1):
        met.append((batch.part, batch.part_epoch, batch.ids.item()))
        if number in (8, 16, 20):
            loader.set_weights({"a": number, "b": 1})
        state = loader.state_dict() if number == 25 else state
    assert len(set(met)) == len(met)
    for part, count in (("a", 9), ("b", 5)):
        own = [one[1:] for one in met if one[0] == part]
        for epoch in range(own[-1][0]):
            assert {number for of, number in own if of == epoch} == set(range(count))
    resumed = Loader(data, policy, prefetch=0)
    resumed.load_state_dict(state)
    assert [(batch.part, batch.part_epoch, batch.ids.item()) for batch in resumed] == met[25:]
