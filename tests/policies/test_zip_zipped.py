"""Zipped parts: each its own endless run, cut alike, the same for any workers and ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import Bucketed, Fixed, Packed, Sorted, TokenBudget, Weighted, Zip
from seqdata.errors import PlanError
from seqdata.index import SequenceIndex
from seqdata.planning.parts import derive_part_seed
from seqdata.policies.zip import ZippedPart
from seqdata_testing.plans import check_table
from tests.policies.mix_samples import check_promises, check_worlds, indexes, make_index
from tests.properties.counts import examples

policies = st.one_of(
    st.builds(Fixed, st.integers(1, 9)),
    st.builds(Sorted, st.integers(1, 9)),
    st.builds(Bucketed, st.integers(1, 9)),
    st.builds(TokenBudget, st.integers(40, 200)),
    st.builds(Packed, st.integers(1, 3), st.just(40)),
    st.builds(Fixed, st.integers(1, 9), max_length=st.just(20), too_long=st.just("split")),
)


@st.composite
def zips(draw):
    """A policy, and an index of its parts."""
    index = draw(indexes(4))
    names = list(index.parts)
    lead = draw(st.sampled_from([None, *names]))
    return Zip({name: draw(policies) for name in draw(st.permutations(names))}, lead=lead), index


@examples(1, here=20)
@given(zips(), st.integers(0, 2**32), st.integers(0, 3))
@pytest.mark.slow
def test_every_plan_keeps_what_all_plans_promise(case, seed, epoch):
    policy, index = case
    check_promises(policy, index, seed, epoch)
    for name, part in policy.split(index).items():
        plan = part.plan(index.parts[name], seed=seed, epoch=epoch)
        check_table(plan)
        assert len(plan) == part.num_batches(index.parts[name]) == policy.num_batches(index)


@examples(1, here=20)
@given(zips(), st.integers(1, 8), st.data())
@pytest.mark.slow
def test_any_world_and_any_chain_of_worlds_trains_the_same_steps(case, size, data):
    policy, index = case
    check_worlds(policy, index, size, data)


@examples(1, here=20)
@given(zips(), st.integers(0, 2**32))
@pytest.mark.slow
def test_each_part_plays_its_own_epochs_whole_and_in_their_order(case, seed):
    """The batches of a part, over all epochs of the steps, are its own plans one by one."""
    policy, index = case
    for name, part in policy.split(index).items():
        own_index, own = index.parts[name], policy.parts[name]
        plans = [part.plan(own_index, seed=seed, epoch=epoch) for epoch in range(4)]
        played = [(plan, number) for plan in plans for number in range(len(plan))]
        count = own.num_batches(own_index)
        for number, (plan, k) in enumerate(played):
            epoch, own_number = divmod(number, count)
            expected = own.plan(own_index, seed=seed, epoch=epoch).batch(own_number)
            assert np.array_equal(plan.batch(k).spans, expected.spans)
            assert plan.label_parts([k]) == [(name, epoch)]


@examples(1, here=20)
@given(zips(), st.integers(0, 2**32), st.integers(0, 3))
@pytest.mark.slow
def test_a_step_has_the_rows_of_a_batch_of_each_part(case, seed, epoch):
    policy, index = case
    plan = policy.plan(index, seed=seed, epoch=epoch)
    starts = dict(zip(index.parts, np.cumsum([0, *map(len, index.parts.values())]), strict=False))
    plans = {
        name: part.plan(index.parts[name], seed=derive_part_seed(seed, name), epoch=epoch)
        for name, part in policy.split(index).items()
    }
    for number in range(len(plan)):
        batches = {name: part.batch(number) for name, part in plans.items()}
        spans = [batch.spans + np.array([starts[name], 0, 0]) for name, batch in batches.items()]
        assert np.array_equal(plan.batch(number).spans, np.concatenate(spans))
        lengths = [batch.lengths for batch in batches.values()]
        assert np.array_equal(plan.batch(number).lengths, np.concatenate(lengths))
        (label,) = plan.label_parts([number])
        assert label.part == [name for name in plans for _ in batches[name].lengths]


def test_a_part_that_wraps_has_each_sequence_once_per_own_epoch():
    index = make_index(long=300, short=9)
    policy = Zip({"long": Bucketed(8), "short": Fixed(4)}, lead="long")
    drawn = {}
    for epoch in range(2):
        plan = policy.plan(index, seed=0, epoch=epoch)
        for number in range(len(plan)):
            (label,) = plan.label_parts([number])
            for name, own, span in zip(*label, plan.batch(number).spans.tolist(), strict=True):
                drawn.setdefault((name, own), []).append(span[0])
    assert all(len(set(numbers)) == len(numbers) for numbers in drawn.values())
    last = max(own for name, own in drawn if name == "short")
    assert last == 2 * 38 // 3
    for own in range(last):
        assert sorted(drawn["short", own]) == list(range(300, 309))


def test_a_long_part_is_seen_as_a_whole_over_many_epochs():
    """Nothing of it is dropped, as it would be if it began again with each epoch."""
    index = make_index(labelled=20, unlabelled=300)
    policy = Zip({"labelled": Fixed(4), "unlabelled": Fixed(4)}, lead="labelled")
    assert policy.num_batches(index) == 5
    seen = [
        number
        for epoch in range(15)
        for number in policy.plan(index, seed=3, epoch=epoch).spans[:, 0].tolist()
        if number >= 20
    ]
    assert sorted(seen) == list(range(20, 320))


def test_a_plan_is_made_again_as_it_was_after_others():
    """A part's plans are kept for the next epoch; which are kept changes nothing."""
    index = make_index(labelled=20, unlabelled=33)
    policy = Zip({"labelled": Fixed(2), "unlabelled": Bucketed(3)}, lead="labelled")
    first = [policy.plan(index, seed=3, epoch=epoch) for epoch in range(5)]
    tables = [(plan.spans, plan.offsets) for plan in first]
    for epoch in (4, 0, 2, 2, 1, 3):
        again = policy.plan(index, seed=3, epoch=epoch)
        assert np.array_equal(again.spans, tables[epoch][0])
        assert np.array_equal(again.offsets, tables[epoch][1])
        assert np.array_equal(first[epoch].spans, tables[epoch][0])


def test_another_seed_on_the_same_data_gives_another_order():
    index = make_index(a=40, b=40)
    policy = Zip({"a": Fixed(2), "b": Fixed(2)})
    spans = [policy.plan(index, seed=seed, epoch=0).spans for seed in (0, 1)]
    assert not np.array_equal(*spans)
    alone = policy.plan(make_index(a=40, b=40), seed=1, epoch=0).spans
    assert np.array_equal(spans[1], alone)


def test_functions_of_one_name_make_plans_of_their_own():
    def plan_by(factor):
        costly = TokenBudget(600, cost=lambda lengths_of: lengths_of["time"] * factor)
        return Zip({"a": costly}).plan(index, seed=0, epoch=0)

    index = make_index(a=40)
    for factor in (1, 3):
        plan = plan_by(factor)
        for number in range(len(plan)):
            lengths = np.diff(plan.batch(number).spans[:, 1:])
            assert len(lengths) * lengths.max() * factor <= 600


def test_the_report_counts_all_parts_and_names_what_they_leave_out():
    index = SequenceIndex.from_parts(
        {
            "a": SequenceIndex.from_lengths([3, 50, 2]),
            "b": SequenceIndex.from_lengths([4, 0, 90]),
        }
    )
    policy = Zip(
        {
            "a": Fixed(1, max_length=10, too_long="drop"),
            "b": Fixed(1, max_length=10, too_long="truncate"),
        }
    )
    report = policy.plan(index, seed=0, epoch=0).report
    assert report.dropped.tolist() == [1, 4]
    assert report.truncated.tolist() == [5]
    assert (report.sequences, report.timesteps) == (4, 19)


def test_weights_of_rows_are_those_of_their_part():
    index = make_index(a=12, b=8)
    weights = np.arange(1, 13)
    policy = Zip({"a": Weighted(Fixed(4), weights, importance=True), "b": Fixed(2)})
    plan = policy.plan(index, seed=0, epoch=0)
    (found,) = [plan.row_weights([1])]
    numbers = plan.batch(1).spans[:, 0]
    p = weights[numbers[:4]] / weights.sum()
    assert np.allclose(found, [*(1 / (12 * p)), 1, 1])
    plain = Zip({"a": Fixed(4), "b": Fixed(2)}).plan(index, seed=0, epoch=0)
    assert plain.row_weights([0, 1]) is None


def test_a_policy_that_makes_other_batches_than_it_says_is_named():
    class Liar(Fixed):
        def num_batches(self, index):
            return 7

    index = make_index(a=12)
    part = ZippedPart("a", Liar(4), 7)
    with pytest.raises(PlanError, match=r"policy 'zip': epoch 0 of part 'a' must have \(batches"):
        part.plan(index.parts["a"], seed=0, epoch=0).batch(0)
