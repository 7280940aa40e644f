"""Indexes of parts, what every plan of them keeps, and a policy that is not one of the library."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from seqdata import Fixed, SequenceIndex
from seqdata.index import DEFAULT_AXIS
from seqdata_testing.plans import check_constant_count, check_pure, check_table
from seqdata_testing.sharing import check_elastic, check_shares


def make_index(**counts):
    return SequenceIndex.from_parts(
        {
            name: SequenceIndex.from_lengths(
                np.random.default_rng(number).integers(1, 40, size=count)
            )
            for number, (name, count) in enumerate(counts.items())
        }
    )


@st.composite
def indexes(draw, most):
    """An index of one to ``most`` parts, each with a sequence that is not empty."""
    names = [f"part{number}" for number in range(draw(st.integers(1, most)))]
    lengths = st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(any)
    return SequenceIndex.from_parts(
        {name: SequenceIndex.from_lengths(draw(lengths)) for name in names}
    )


def check_promises(policy, index, seed, epoch):
    """Check what all plans promise, in two epochs."""
    check_table(policy.plan(index, seed=seed, epoch=epoch))
    check_constant_count(policy, index, epochs=(epoch, epoch + 1), seeds=(seed,))
    check_pure(policy, index, seed=seed, epoch=epoch + 1, shuffled=None)


def check_worlds(policy, index, size, data):
    """Check that worlds of any size, and a chain of them, share a plan."""
    plan = policy.plan(index, seed=1, epoch=1)
    first = data.draw(st.integers(0, len(plan) - 1))
    check_shares(plan, size, first=first)
    legs = data.draw(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 5)), max_size=4))
    check_elastic(plan, [*legs, (size, len(plan))])


@dataclass(frozen=True)
class ForeignPolicy:
    """A policy that says nothing of what it plans."""

    axis: str = DEFAULT_AXIS

    def plan(self, index, *, seed, epoch):
        return Fixed(3).plan(index, seed=seed, epoch=epoch)

    def num_batches(self, index):
        return Fixed(3).num_batches(index)
