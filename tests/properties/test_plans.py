"""What every policy promises of its plans: each timestep once, constant counts, pure, in budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata_testing.generators import block_policies, cases, indexes, policies
from seqdata_testing.lanes import FewLanes
from seqdata_testing.plans import (
    check_budget,
    check_constant_count,
    check_covers,
    check_policy,
    check_pure,
    check_table,
)
from tests.properties.counts import examples

pytestmark = pytest.mark.timeout(3600)  # all of a file's cases, at night


@pytest.mark.shows("I1")
@examples(10, here=300)
@given(cases())
@pytest.mark.slow
def test_a_plan_scores_each_timestep_once_and_reports_what_it_leaves_out(case):
    plan = case.policy.plan(case.index, seed=case.seed, epoch=case.epoch)
    check_table(plan)
    check_covers(plan, case.index)


@pytest.mark.shows("I2")
@examples(5, here=75)
@given(cases(most=600))
@pytest.mark.slow
def test_every_epoch_of_every_seed_has_the_declared_number_of_batches(case):
    check_constant_count(case.policy, case.index, seeds=(case.seed, 1))


@examples(5, here=75)
@given(cases(most=600))
@pytest.mark.slow
def test_equal_inputs_make_equal_plans_and_others_do_not(case):
    shuffled = None if isinstance(case.policy, FewLanes) else case.policy.shuffle
    if shuffled and isinstance(case.policy, TBPTT):
        shuffled = None  # the chunks of one long sequence are in one order only
    check_pure(case.policy, case.index, seed=case.seed, epoch=case.epoch, shuffled=shuffled)


@examples(1, here=40)
@given(st.one_of(policies(shuffle=False), block_policies()), indexes(most=300))
@pytest.mark.slow
def test_the_whole_kit_passes_for_the_policies_of_the_core(policy, index):
    check_policy(policy, index, shuffled=policy.shuffle)


@examples(5, here=75)
@given(
    indexes(most=600),
    st.integers(1, 200),
    st.one_of(st.none(), st.integers(1, 20)),
    st.integers(1, 4),
    st.booleans(),
)
@pytest.mark.slow
def test_no_batch_exceeds_the_budget(index, budget, max_rows, least, shuffle):
    policy = TokenBudget(
        budget, max_rows=max_rows, min_batches=least, shuffle=shuffle, too_long="split"
    )
    check_budget(policy.plan(index, seed=1, epoch=1), budget, max_rows)
