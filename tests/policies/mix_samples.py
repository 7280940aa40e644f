"""An index of parts, and a policy that is not one of the library."""

from dataclasses import dataclass

import numpy as np

from seqdata import Fixed, SequenceIndex
from seqdata.index import DEFAULT_AXIS


def make_index(**counts):
    return SequenceIndex.from_parts(
        {
            name: SequenceIndex.from_lengths(
                np.random.default_rng(number).integers(1, 40, size=count)
            )
            for number, (name, count) in enumerate(counts.items())
        }
    )


@dataclass(frozen=True)
class ForeignPolicy:
    """A policy that says nothing of what it plans."""

    axis: str = DEFAULT_AXIS

    def plan(self, index, *, seed, epoch):
        return Fixed(3).plan(index, seed=seed, epoch=epoch)

    def num_batches(self, index):
        return Fixed(3).num_batches(index)
