"""I1 to I5 for the parts of rows that a ring reads: any plan, world, number of parts and stop."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.policies.tbptt import TBPTT
from seqdata.sharing import World, share
from seqdata_testing.generators import cases, indexes
from tests.properties.counts import examples

pytestmark = pytest.mark.timeout(3600)  # all of a file's cases, at night


def timesteps(batch):
    """Return the timesteps of each row, in order: (sequence, timestep)."""
    offsets = range(len(batch.spans) + 1) if batch.rows is None else batch.rows.tolist()
    spans = batch.spans.tolist()
    return [
        [(number, step) for number, start, stop in spans[low:high] for step in range(start, stop)]
        for low, high in pairwise(offsets)
    ]


def join(row_parts):
    """Return rows of which each list has a part."""
    return [list(chain(*pieces)) for pieces in zip(*row_parts, strict=True)]


def shares(plan, world_size, parts, first=0):
    """Return for each rank its share of whole rows, and those of the parts."""
    return [
        (
            share(plan, World(rank, world_size), first=first),
            [
                share(plan, World(rank, world_size, part, parts), first=first)
                for part in range(parts)
            ],
        )
        for rank in range(world_size)
    ]


@pytest.mark.shows("I1", "I2", "I3")
@pytest.mark.filterwarnings("ignore:share:seqdata.errors.SeqDataWarning")
@examples(10, here=50)
@given(cases(most=200), st.integers(1, 6), st.floats(0, 1))
@pytest.mark.slow
def test_the_parts_of_a_row_are_its_timesteps_in_order_each_once(case, parts, done):
    plan = case.policy.plan(case.index, seed=case.seed, epoch=case.epoch)
    first = int(done * len(plan))
    for whole, own in shares(plan, min(case.size, 3), parts, first):
        assert {len(part) for part in own} == {len(whole)}
        assert {part.remaining for part in own} == {whole.remaining}
        for step in range(whole.first_step, len(whole)):
            row_parts = [timesteps(part[step]) for part in own]
            assert join(row_parts) == timesteps(whole[step])
            assert {part.position(step) for part in own} == {whole.position(step)}
            assert {part.totals(step, step + 1) for part in own} == {whole.totals(step, step + 1)}
            for number, part in enumerate(own):
                found, expected = part[step], whole[step]
                assert found.number == expected.number
                assert found.lengths.tolist() == [len(row) for row in row_parts[number]]
                assert np.array_equal(found.weights, expected.weights)
                assert found.lanes is expected.lanes or np.array_equal(found.lanes, expected.lanes)
                most = -(-expected.lengths // parts)
                assert (found.lengths <= most).all()
                assert (found.lengths >= most - 1).all()


@pytest.mark.shows("I4", "I5")
@pytest.mark.filterwarnings("ignore:share:seqdata.errors.SeqDataWarning")
@examples(5, here=30)
@given(
    cases(most=150),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 5)), max_size=4),
)
@pytest.mark.slow
def test_a_run_whose_parts_and_ranks_change_reads_each_timestep_as_one_process_does(case, legs):
    plan = case.policy.plan(case.index, seed=case.seed, epoch=case.epoch)
    position, found = 0, {}
    for size, parts, steps in [*legs, (1, 1, len(plan))]:
        stop = position
        for _, own in shares(plan, size, parts, position):
            first = own[0].first_step
            last = min(len(own[0]), first + steps)
            for step in range(first, last):
                if not own[0][step].weights.any():
                    continue  # padding rows, or a rank without lanes
                joined = join([timesteps(part[step]) for part in own])
                found.setdefault(own[0][step].number, []).extend(joined)
            stop = own[0].position(last)
        position = stop
    expected = {number: timesteps(plan.batch(number)) for number in range(len(plan))}
    if plan.lanes:  # ranks whose lanes are all idle were passed over
        found = {number: [row for row in rows if row] for number, rows in found.items()}
        expected = {number: [row for row in rows if row] for number, rows in expected.items()}
    assert found == expected


@examples(10, here=30)
@given(
    st.builds(TBPTT, st.integers(1, 6), st.integers(1, 12), continuous=st.just(True)),
    indexes(most=60),
    st.integers(2, 5),
    st.integers(1, 3),
)
@pytest.mark.slow
def test_what_is_read_past_a_part_is_what_its_row_continues_with(policy, index, parts, shift):
    index = index.shifted("time", shift)
    if not policy.num_batches(index):
        return
    plan = policy.plan(index, seed=0, epoch=0)
    ((whole, own),) = shares(plan.with_lookahead(shift), 1, parts)
    for step in range(len(whole)):
        rows, lengths = timesteps(whole[step].extended), whole[step].lengths.tolist()
        for number, part in enumerate(own):
            for row, cut, length in zip(rows, timesteps(part[step].extended), lengths, strict=True):
                start, stop = length * number // parts, length * (number + 1) // parts
                past = len(row) - length if stop > start else 0
                assert cut == row[start : stop + past]
                assert past in (0, shift)
