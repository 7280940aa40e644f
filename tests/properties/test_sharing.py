"""I1 to I5 at plan level: any plan, any world, any stop, any change of the world."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seqdata.plan import Plan
from seqdata_testing.generators import cases, world_sizes
from seqdata_testing.sharing import check_elastic, check_resume, check_shares
from tests.properties.counts import examples

pytestmark = pytest.mark.timeout(3600)  # all of a file's cases, at night
TAILS = ("fill", "drop", "repeat")
FIVE = Plan([(number, 0, 1 + number) for number in range(5)], offsets=range(6))


def planned(case):
    return case.policy.plan(case.index, seed=case.seed, epoch=case.epoch)


@pytest.mark.shows("I1", "I2", "I3")
@examples(25, here=200)
@given(cases(windows=True), st.sampled_from(TAILS), st.floats(0, 1))
@pytest.mark.slow
def test_every_world_trains_each_row_once_in_equal_steps_and_one_order(case, tail, done):
    plan = planned(case)
    if tail == "drop" and not plan.lanes and len(plan) < case.size:
        tail = "fill"  # an error, tested with sharing
    check_shares(plan, case.size, first=int(done * len(plan)), tail=tail)


@pytest.mark.shows("I4")
@examples(10, here=40)
@given(
    cases(windows=True), st.sampled_from(TAILS), st.lists(st.floats(0, 1), min_size=1, max_size=4)
)
@pytest.mark.slow
def test_a_run_stopped_up_to_four_times_goes_on_with_its_rest(case, tail, stops):
    plan = planned(case)
    if tail == "drop" and not plan.lanes and len(plan) < case.size:
        tail = "fill"
    steps = steps_of(plan, case.size, tail)
    cuts = sorted(int(stop * steps) for stop in stops)
    check_resume(plan, case.size, cuts, tail=tail)


def steps_of(plan, size, tail):
    if plan.lanes:
        return len(plan)
    return len(plan) // size if tail == "drop" else -(-len(plan) // size)


@pytest.mark.shows("I4")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("tail", TAILS)
def test_a_run_stopped_at_every_single_step_goes_on_with_its_rest(size, tail):
    if tail == "drop" and size > len(FIVE):
        tail = "fill"
    steps = steps_of(FIVE, size, tail)
    for cut in range(steps + 1):
        check_resume(FIVE, size, [cut], tail=tail)
    check_resume(FIVE, size, range(steps + 1), tail=tail)


legs = st.lists(st.tuples(world_sizes(), st.integers(0, 12)), min_size=2, max_size=5)


@pytest.mark.shows("I5")
@examples(10, here=40)
@given(cases(most=600, windows=True), legs)
@pytest.mark.slow
def test_a_world_that_changes_in_mid_epoch_loses_and_repeats_nothing(case, legs):
    check_elastic(planned(case), legs)


@pytest.mark.shows("I5")
@examples(1, here=50)
@example(0, [(2, 1), (3, 1)])
@example(9, [(2, 2), (3, 1), (2, 0)])
@given(st.integers(0, 40), legs)
def test_batches_of_one_row_survive_any_worlds(count, legs):
    plan = Plan([(number, 0, 1) for number in range(count)], offsets=range(count + 1))
    check_elastic(plan, legs)
