import numpy as np
import pytest

from seqdata.errors import PlanError
from seqdata.index import SequenceIndex
from seqdata.policies.bucketed import Bucketed


def test_batch_mates_have_like_lengths():
    index = SequenceIndex.from_lengths(np.random.default_rng(0).integers(1, 1000, 2000))
    plan = Bucketed(16).plan(index, seed=0, epoch=0)
    assert plan.report.waste < 1.02


def test_other_rows_meet_in_the_next_epoch():
    index = SequenceIndex.from_lengths(np.full(512, 30))
    plans = [Bucketed(16).plan(index, seed=0, epoch=epoch) for epoch in (1, 2)]
    mates = [
        {frozenset(plan.batch(k).spans[:, 0].tolist()) for k in range(len(plan))} for plan in plans
    ]
    assert not mates[0] & mates[1]


def test_a_length_that_would_overflow_is_refused():
    index = SequenceIndex.from_lengths(np.array([1, 1 << 32], dtype=np.uint64))
    with pytest.raises(
        PlanError, match=r"has 4294967296 timesteps, but must have fewer than 2\*\*32"
    ):
        Bucketed(2).plan(index, seed=0, epoch=0).batch(0)
