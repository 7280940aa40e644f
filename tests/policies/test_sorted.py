from seqdata.index import SequenceIndex
from seqdata.policies.sorted import Sorted


def test_unshuffled_batches_are_in_falling_order_ties_by_number():
    plan = Sorted(2, shuffle=False).plan(SequenceIndex.from_lengths([1, 3, 2, 3]), seed=0, epoch=0)
    assert plan.spans[:, 0].tolist() == [1, 3, 2, 0]


def test_the_same_rows_meet_in_every_epoch():
    index = SequenceIndex.from_lengths([k % 13 + 1 for k in range(100)])
    meetings = [
        {frozenset(plan.batch(k).spans[:, 0].tolist()) for k in range(len(plan))}
        for plan in (Sorted(8).plan(index, seed=0, epoch=epoch) for epoch in range(3))
    ]
    assert meetings[0] == meetings[1] == meetings[2]
