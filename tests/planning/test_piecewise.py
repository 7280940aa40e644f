"""A table of pieces of plans: whatever is asked of a batch is what its own plan says."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.piecewise import Piece, PiecewiseTable
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.packed import Packed
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata_testing.blocks import SmallBlocks
from tests.properties.counts import examples

policies = st.one_of(
    st.builds(Fixed, st.integers(1, 9)),
    st.builds(TokenBudget, st.integers(40, 90)),
    st.builds(Packed, st.integers(1, 3), st.integers(40, 90)),
    st.builds(SmallBlocks, st.builds(Bucketed, st.integers(1, 2)), st.integers(1, 9)),
    st.builds(Weighted, st.builds(Fixed, st.integers(1, 9)), importance=st.just(True)),
)


@dataclass(frozen=True, eq=False)
class Pieces(PiecewiseTable):
    """Plans one behind another; of each the batches from one number up to another."""

    plans: list[Plan]
    cuts: list[tuple[int, int]]

    @property
    def ends(self):
        return list(accumulate(stop - first for first, stop in self.cuts))

    @property
    def count(self):
        return self.ends[-1]

    def find(self, number):
        """The plan of a batch, and its number there."""
        piece = bisect_right(self.ends, number)
        return self.plans[piece], number - self.ends[piece] + self.cuts[piece][1]

    def _locate(self, number):
        plan, there = self.find(number)
        return Piece(plan, number - there, self.ends[bisect_right(self.ends, number)])


@st.composite
def pieces(draw):
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=40))
    index = SequenceIndex.from_lengths(lengths)
    plans = [
        draw(policies).plan(index, seed=draw(st.integers(0, 9)), epoch=draw(st.integers(0, 3)))
        for _ in range(draw(st.integers(1, 5)))
    ]
    cuts = [sorted((draw(st.integers(0, len(p) - 1)), draw(st.integers(1, len(p))))) for p in plans]
    return Pieces(plans, [(first, max(stop, first + 1)) for first, stop in cuts])


@examples(0.5, here=60)
@given(pieces())
def test_a_batch_is_that_of_its_plan(table):
    for number in range(len(table)):
        plan, there = table.find(number)
        batch, same = table.batch(number), plan.batch(there)
        assert batch.spans.tolist() == same.spans.tolist()
        assert table.totals(number, number + 1, 0) == plan.totals(there, there + 1)
        assert table.slice(number, number + 1).spans.tolist() == same.spans.tolist()
        np.testing.assert_equal(table.drawn_batch(number), plan.drawn_batch(there))
        assert table.label([number]) == plan.label_parts([there])
        weights = plan.row_weights([there])
        found = table.row_weights([number])
        assert (found is None) == (weights is None)
        assert weights is None or np.array_equal(found, weights)


@examples(0.5, here=60)
@given(pieces())
def test_all_tables_together_are_all_batches_once(table):
    spans = [table.batch(number).spans for number in range(len(table))]
    tables = list(table.tables())
    assert np.array_equal(np.concatenate([each.spans for each in tables]), np.concatenate(spans))
    assert len({each.rows is None for each in tables}) == 1  # some have rows: all have
    whole = table.totals(0, len(table), 0)
    each = [table.totals(number, number + 1, 0) for number in range(len(table))]
    assert whole == (sum(one[0] for one in each), sum(one[1] for one in each))


@examples(0.5, here=60)
@given(pieces())
def test_what_is_prepared_ends_with_a_piece_at_the_latest(table):
    number = 0
    while number < len(table):
        after = table.prepare(number)
        assert number < after <= table.ends[bisect_right(table.ends, number)]
        number = after
    assert number == len(table)
