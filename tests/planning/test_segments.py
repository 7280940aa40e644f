"""A table of segments: each follows from its number and what was set before, rounds as needed."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import PlanError
from seqdata.index import SequenceIndex
from seqdata.planning.segments import Segment, SegmentedTable, WeightHistory, derive_segment_epoch
from seqdata.policies.fixed import Fixed
from tests.properties.counts import examples


class Maker:
    """Makes plans of ``rows`` batches a round, of sequences of which the weights say how many.

    It notes for which segments, changes and rounds it was asked.
    """

    def __init__(self, rows):
        self.rows, self.asked = rows, []

    def __call__(self, segment, changes):
        length = changes[-1].weights if changes else 1

        def make_round(number):
            self.asked.append((segment.first, len(changes), number))
            index = SequenceIndex.from_lengths([length] * self.rows)
            return Fixed(1).plan(index, seed=0, epoch=derive_segment_epoch(segment, number))

        return make_round


@st.composite
def tables(draw):
    count, length, rows = (draw(st.integers(1, most)) for most in (40, 9, 12))
    firsts = draw(st.sets(st.integers(0, (count - 1) // length), max_size=4))
    history = WeightHistory()
    for number in sorted(firsts):
        history.set(2, number * length, number + 2)
    return SegmentedTable(2, count, length, history, Maker(rows)), sorted(firsts)


@examples(0.5, here=60)
@given(tables(), st.randoms(use_true_random=False))
def test_batches_have_the_weights_of_their_segment_in_any_order(case, random):
    table, changed = case
    numbers = list(range(table.count))
    random.shuffle(numbers)
    for number in numbers:
        before = [segment for segment in changed if segment <= number // table.length]
        length = before[-1] + 2 if before else 1
        assert table.batch(number).spans[:, 2].tolist() == [length]
    rounds = {(first, number) for first, _, number in table.make_plans.asked}
    for first in range(0, table.count, table.length):
        size = min(table.length, table.count - first)
        needed = -(-size // table.make_plans.rows)
        assert {number for start, number in rounds if start == first} == set(range(needed))


def test_two_segments_at_most_are_kept_and_a_change_makes_them_again():
    history, maker = WeightHistory(), Maker(5)
    table = SegmentedTable(0, 20, 5, history, maker)
    for number in (0, 5, 4, 9, 0, 5):  # the reader of one segment, and who looks ahead
        table.batch(number)
    assert [first for first, _, _ in maker.asked] == [0, 5]
    table.batch(10)
    table.batch(0)
    assert [first for first, _, _ in maker.asked] == [0, 5, 10, 0]
    history.set(0, 10, 7)
    assert table.batch(10).spans[:, 2].tolist() == [7]
    assert table.batch(0).spans[:, 2].tolist() == [1]
    assert maker.asked[-2:] == [(10, 1, 0), (0, 0, 0)]


def test_a_segment_that_has_not_begun_is_not_planned_ahead():
    history, maker = WeightHistory(), Maker(3)
    table = SegmentedTable(0, 12, 5, history, maker)
    assert (table.prepare(5), table.prepare(7), table.prepare(11)) == (10, 10, 12)
    assert not maker.asked
    history.begin(0, 5, 5)
    assert (table.prepare(5), table.prepare(8)) == (8, 10)
    assert maker.asked == [(5, 0, 0), (5, 0, 1)]


def test_a_round_without_batches_is_an_error_and_not_a_loop():
    table = SegmentedTable(0, 4, 2, WeightHistory(), Maker(0))
    with pytest.raises(PlanError, match="a segment must have a sequence to draw, but has none"):
        table.batch(0)


def test_rounds_segments_and_epochs_have_random_numbers_of_their_own():
    places = list(itertools.product(range(4), range(0, 50, 5), range(4)))
    epochs = [
        derive_segment_epoch(Segment(epoch, first, 5, 5, 50), number)
        for epoch, first, number in places
    ]
    assert len(set(epochs)) == len(places)
    assert 0 <= min(epochs) <= max(epochs) <= np.iinfo(np.int64).max
