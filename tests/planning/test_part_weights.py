"""Weights of parts that a run sets: 16 bits each, and an order that deals on over changes."""

from fractions import Fraction

import numpy as np
import pytest

from seqdata.errors import ConfigError, ResumeError
from seqdata.loading.loader import Loader
from seqdata.planning.part_order import WEIGHT_UNITS, make_part_order, scale_weights
from seqdata.planning.part_weights import PartWeights, make_part_weights
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
        ({"books": -1, "code": 1, "none": 0}, "of part 'books' must be a finite number of at"),
        ({"books": float("nan"), "code": 1, "none": 0}, "of part 'books' must be a finite number"),
        ({"books": 0, "code": 0, "none": 0}, "must be above 0 for a part, but all are 0"),
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


def test_an_order_that_is_changed_to_its_own_weights_goes_on_as_it_was():
    weights = scale_weights([Fraction(number) for number in (5, 3, 2, 7)])
    order = make_part_order(weights, 3)
    for events in (0, 1, 7, 100):
        changed = order.change_weights(events, weights)
        before = order.count_events(events, 4)
        for event in range(50):
            part, number = changed.locate(event)
            assert order.locate(events + event) == (part, number + before[part])


def test_short_pieces_starve_no_part():
    """Where each piece began alike, parts of little weight would never come."""
    order = make_part_order(scale_weights([Fraction(8), Fraction(1), Fraction(1)]), 0)
    counts = np.zeros(3, dtype=int)
    for number in range(400):
        counts += order.count_events(1, 3)
        weights = [8 + number % 2, 1, 1]
        order = order.change_weights(1, scale_weights([Fraction(weight) for weight in weights]))
    assert counts.sum() == 400
    assert (np.abs(counts - np.array([322, 39, 39])) <= 5).all()
    assert sum(scale_weights([Fraction(1)])) == WEIGHT_UNITS


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
