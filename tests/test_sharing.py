import numpy as np
import pytest

from seqdata import Bucketed, Packed, SequenceIndex
from seqdata.errors import ConfigError, PlanError, SeqDataWarning
from seqdata.plan import Plan
from seqdata.plan_table import BatchTable
from seqdata.sharing import World, share


def nine():
    """Nine batches; batch k holds rows 2k and 2k + 1 of length k + 1."""
    return Plan([[s, 0, s // 2 + 1] for s in range(18)], offsets=range(0, 19, 2))


def lanes(count=4, steps=3):
    spans = [[lane, 2 * k, 2 * k + 2] for k in range(steps) for lane in range(count)]
    return Plan(spans, offsets=range(0, count * steps + 1, count), lanes=count)


def numbers(plan, world, **options):
    mine = share(plan, world, **options)
    return [
        (step.number, bool(step.weights.any()))
        for step in (mine[k] for k in range(mine.first_step, len(mine)))
    ]


def test_batches_are_dealt_in_turn_and_the_tail_is_filled():
    assert [n for n, _ in numbers(nine(), World(0, 2))] == [0, 2, 4, 6, 8]
    assert numbers(nine(), World(1, 2)) == [(k, True) for k in (1, 3, 5, 7)] + [(8, False)]


def test_a_dummy_row_is_row_0_of_the_steps_first_batch_with_weight_0():
    dummy = share(nine(), World(1, 2))[4]
    assert dummy.spans.tolist() == [[16, 0, 9]]
    assert dummy.weights.tolist() == [0.0]
    assert dummy.weights.dtype == np.float32


def test_a_dummy_row_of_a_row_of_several_spans_has_them_all():
    plan = Plan([[0, 0, 1], [1, 0, 1], [2, 0, 1]], rows=[0, 2, 3], offsets=[0, 2])
    dummy = share(plan, World(1, 2))[0]
    assert dummy.spans.tolist() == [[0, 0, 1], [1, 0, 1]]
    assert dummy.rows.tolist() == [0, 2]


def test_drop_leaves_the_last_uneven_step_out():
    assert [n for n, _ in numbers(nine(), World(1, 2), tail="drop")] == [1, 3, 5, 7]


def test_drop_that_would_leave_nothing_is_refused():
    with pytest.raises(
        PlanError, match=r"`tail='drop'` must leave .*, but drops all 9 batches on 10 ranks"
    ):
        share(nine(), World(0, 10), tail="drop")


def test_repeat_begins_the_plan_again_with_weight_1():
    assert numbers(nine(), World(1, 2), tail="repeat")[-1] == (0, True)
    assert numbers(nine(), World(3, 4), tail="repeat")[-1] == (2, True)


def test_a_rank_past_all_batches_repeats_modulo_their_number():
    plan = Plan([[0, 0, 1], [1, 0, 1]], offsets=[0, 1, 2])
    assert numbers(plan, World(4, 5), tail="repeat") == [(0, True)]


@pytest.mark.parametrize("tail", ["fill", "drop", "repeat"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_number_of_steps_never_depends_on_the_position(tail, size):
    for first in range(10):
        mine = share(nine(), World(0, size), first=first, tail=tail)
        assert len(mine) == (9 // size if tail == "drop" else -(-9 // size))
        left = 9 - first
        assert mine.remaining == (left // size if tail == "drop" else -(-left // size))
        assert mine.first_step + mine.remaining == len(mine)


def test_going_on_deals_from_the_position_whatever_world_came_before():
    assert numbers(nine(), World(0, 2), first=3) == [(3, True), (5, True), (7, True)]
    assert numbers(nine(), World(1, 2), first=4) == [(5, True), (7, True), (8, False)]


def test_the_position_counts_batches_up_to_the_plans_end():
    mine = share(nine(), World(0, 2), first=4)
    positions = [mine.position(k) for k in range(mine.first_step, len(mine) + 1)]
    assert positions == [4, 6, 8, 9]


@pytest.mark.parametrize("first", [-1, 10])
def test_share_refuses_a_position_past_the_plan(first):
    with pytest.raises(PlanError, match=rf"`first` must be in \[0, 9\], .*, but is {first}"):
        share(nine(), World(0, 2), first=first)


def test_share_refuses_an_unknown_tail():
    with pytest.raises(
        ConfigError, match="`tail` must be 'fill', 'drop' or 'repeat', but is 'cut'"
    ):
        share(nine(), World(0, 2), tail="cut")


def test_a_step_before_the_position_is_refused():
    with pytest.raises(
        IndexError, match=r"must be in \[2, 5\), but is 0, which precedes the share"
    ):
        share(nine(), World(0, 2), first=4)[0]
    with pytest.raises(IndexError, match="but is 5, which is past the end of the epoch"):
        share(nine(), World(0, 2), first=4)[5]


def test_totals_are_those_of_all_ranks():
    mine = share(nine(), World(1, 2))
    assert mine.totals(0, 1) == (2 * 1 + 2 * 2, 4)
    assert mine.totals(4, 5) == (2 * 9, 2)  # the padding row counts nothing
    assert mine.totals(0, 5) == (2 * sum(range(1, 10)), 18)


def test_totals_of_repeated_batches_count_again():
    assert share(nine(), World(1, 2), tail="repeat").totals(4, 5) == (2 * 9 + 2 * 1, 4)


def test_totals_reach_back_before_the_position():
    mine = share(nine(), World(0, 2), first=4)
    assert mine.totals(1, 3) == share(nine(), World(0, 2)).totals(1, 3)


def test_lanes_are_dealt_by_rows():
    mine = share(lanes(), World(1, 2))
    assert len(mine) == 3
    assert mine[1].spans.tolist() == [[2, 2, 4], [3, 2, 4]]
    assert mine[1].lanes.tolist() == [2, 3]
    assert mine.position(2) == 2
    assert mine.totals(0, 1) == (8, 4)


def test_lanes_that_the_world_does_not_divide_warn_and_are_all_dealt():
    with pytest.warns(SeqDataWarning, match="4 lanes on 3 ranks: the load is uneven"):
        shares = [share(lanes(), World(rank, 3)) for rank in range(3)]
    dealt = [lane for mine in shares for lane in mine[0].lanes.tolist()]
    assert dealt == [0, 1, 2, 3]


def test_a_rank_without_lanes_gets_lane_0_as_a_dummy():
    with pytest.warns(SeqDataWarning):
        mine = share(lanes(count=2), World(0, 3))
    assert mine[0].lanes.tolist() == [0]
    assert mine[0].weights.tolist() == [0.0]


def test_an_idle_lane_has_weight_0():
    plan = Plan([[0, 0, 2], [1, 0, 0]], offsets=[0, 2], lanes=2)
    assert share(plan, World())[0].weights.tolist() == [1.0, 0.0]


def test_lanes_with_several_spans_per_row_are_rebased():
    plan = Plan(
        [[0, 0, 1], [1, 0, 1], [2, 0, 2], [3, 0, 0]], rows=[0, 2, 3, 4, 4], offsets=[0, 4], lanes=4
    )
    step = share(plan, World(0, 2))[0]
    assert step.rows.tolist() == [0, 2, 3]
    assert share(plan, World(1, 2))[0].weights.tolist() == [0.0, 0.0]


def test_an_empty_plan_has_no_steps():
    assert len(share(Plan([], offsets=[0]), World(2, 3))) == 0


@pytest.mark.parametrize("most", [1, 5, 100])
@pytest.mark.parametrize("world", [World(0, 1), World(1, 2), World(2, 4), World(3, 7)])
def test_steps_that_come_by_runs_are_the_batches_of_the_plan(world, most):
    lengths = [1 + (7 * k) % 40 for k in range(600)]
    index = SequenceIndex.from_lengths(lengths)
    several = Packed(2, row_length=45).plan(index, seed=1, epoch=0)
    whole = Plan(several.spans, several.rows, several.offsets)
    unsliced = Plan.lazy(Unsliced(whole), None)
    for plan in (nine(), Bucketed(4).plan(index, seed=1, epoch=0), several, whole, unsliced):
        mine = share(plan, world, first=world.size)
        number = mine.first_step
        while number < len(mine):
            run = mine.steps_from(number, most)
            assert len(run.table) == 1 or len(run.lengths) <= most
            for i, batch in enumerate(run.numbers):
                step, due = run.step(i), plan.batch(batch)
                if (number + 1 < len(mine)) or batch % world.size == world.rank:
                    assert batch == number * world.size + world.rank
                    assert np.array_equal(step.spans, due.spans)
                    assert (step.rows is None) == (due.rows is None)
                    assert due.rows is None or np.array_equal(step.rows, due.rows)
                    assert np.array_equal(step.lengths, due.lengths)
                    assert step.weights.all()
                else:
                    assert not step.weights.any()  # padding rows
                number += 1


class Unsliced(BatchTable):
    """A table of somebody else, which makes one batch at a time."""

    def __init__(self, plan):
        self.plan = plan

    def __len__(self):
        return len(self.plan)

    def batch(self, number):
        return self.plan.batch(number)

    def totals(self, first, stop, overlap):
        return self.plan.totals(first, stop)

    def tables(self):
        return iter([self.plan.as_arrays()])

    def prepare(self, number):
        return len(self.plan)


@pytest.mark.parametrize("name", ["rank", "size", "time_part", "time_parts"])
@pytest.mark.parametrize("value", ["1", 1.0, None, True])
def test_a_world_is_of_whole_numbers(name, value):
    with pytest.raises(ConfigError, match=rf"world: `{name}` must be an integer.*int\(os\.env"):
        World(**{name: value})
    assert repr(World(np.int64(1), np.uint8(4))) == "World(rank=1, size=4)"
