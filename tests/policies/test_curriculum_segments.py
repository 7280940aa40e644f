"""A limit of length that is raised from segment to segment, with epochs of declared length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.errors import ConfigError, PlanError
from seqdata.index import SequenceIndex
from seqdata.planning.build import describe_policy
from seqdata.planning.policy import group_updates, has_draws
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix, Part
from seqdata.policies.packed import Packed
from seqdata.policies.segments import Segments
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata_testing.plans import check_constant_count, check_policy, check_pure, check_table
from seqdata_testing.sharing import check_elastic, check_resume, check_shares
from tests.properties.counts import examples

LENGTHS = np.random.default_rng(0).integers(1, 100, 300)
RULES = [(0, 20), (2, 50), (3, None)]
inner_policies = st.one_of(
    st.builds(Fixed, st.integers(1, 9)),
    st.builds(Bucketed, st.integers(1, 9)),
    st.builds(TokenBudget, st.integers(40, 200)),
    st.builds(Packed, st.integers(1, 3), st.integers(40, 90)),
    st.builds(Weighted, st.builds(Bucketed, st.integers(1, 9)), draws=st.integers(1, 90)),
)


def index_of(lengths=LENGTHS):
    return SequenceIndex.from_lengths(lengths)


@st.composite
def cases(draw):
    """A policy with rules, or with a function that says the same, and lengths with a short one."""
    lengths = [draw(st.integers(1, 4)), *draw(st.lists(st.integers(0, 40), max_size=60))]
    numbers = [0, *sorted(draw(st.sets(st.integers(1, 12), max_size=3)))]
    limits = st.one_of(st.none(), st.integers(4, 40))
    rules = [(number, draw(limits)) for number in numbers]
    segment = draw(st.one_of(st.none(), st.integers(1, 20)))
    batches = draw(st.integers(1, 40) if segment is None else st.sampled_from([None, 1, 7, 30]))
    policy = Curriculum(draw(inner_policies), rules, segment=segment, batches=batches)
    return policy, SequenceIndex.from_lengths(lengths)


def find_limit(policy, position, count):
    """Return the limit of a batch of the run, from the rules themselves."""
    number = position // (policy.segment or count)
    return [limit for first, limit in policy.max_length if first <= number][-1]


@examples(0.3, here=12)
@given(cases(), st.integers(0, 1 << 40), st.integers(0, 9), st.data())
def test_every_plan_keeps_what_all_plans_promise(case, seed, epoch, data):
    policy, index = case
    plan = policy.plan(index, seed=seed, epoch=epoch)
    assert len(plan) == policy.num_batches(index)
    assert len(plan) == policy.count_batches(index, seed=0, epoch=epoch)
    assert not policy.varies
    check_table(plan)
    check_policy(policy, index, seed=seed, shuffled=None)
    check_pure(policy, index, seed=seed, epoch=epoch, shuffled=None)
    check_constant_count(policy, index, epochs=(epoch, epoch + 1), seeds=(seed,))
    size = data.draw(st.integers(1, 8))
    check_shares(plan, size)
    steps = -(-len(plan) // size)
    check_resume(plan, size, sorted(data.draw(st.sets(st.integers(0, steps), max_size=3))))
    legs = st.tuples(st.integers(1, 8), st.integers(0, steps))
    check_elastic(plan, [*data.draw(st.lists(legs, max_size=3)), (size, steps + 1)])


@examples(0.3, here=20)
@given(cases(), st.integers(0, 1 << 40))
def test_a_batch_is_within_its_limit_and_none_comes_again_before_all_have_come(case, seed):
    policy, index = case
    count = policy.num_batches(index)
    epochs = max(2, min(6, 60 // count))
    come: list[int] = []
    last = object()
    for epoch in range(epochs):
        plan = policy.plan(index, seed=seed, epoch=epoch)
        longest_of = index.lengths[plan.spans[:, 0]]
        assert len(longest_of) == len(plan.spans)
        for number in range(count):
            limit = find_limit(policy, epoch * count + number, count)
            spans = plan.batch(number).spans
            allowed = (index.lengths > 0) & (index.lengths <= (limit or 40))
            assert allowed[spans[:, 0]].all()
            if limit != last:
                last, come = limit, []
            if not isinstance(policy.policy, Weighted):
                come += spans[:, 0].tolist()
                times = np.bincount(come, minlength=len(index))[allowed]
                assert times.max() - times.min() <= 1


@examples(0.3, here=20)
@given(cases(), st.integers(0, 9))
def test_a_function_that_says_the_same_plans_the_same(case, epoch):
    policy, index = case
    count = policy.num_batches(index)

    def by(number):
        return [limit for first, limit in policy.max_length if first <= number][-1]

    same = Curriculum(policy.policy, by=by, segment=policy.segment, batches=count)
    plans = [one.plan(index, seed=1, epoch=epoch) for one in (policy, same)]
    assert plans[0].spans.tolist() == plans[1].spans.tolist()


def test_segments_are_counted_over_the_whole_run():
    policy = Curriculum(Fixed(4), RULES, segment=100)  # 75 batches an epoch
    assert policy.num_batches(index_of()) == 75
    plans = [policy.plan(index_of(), seed=0, epoch=epoch) for epoch in range(4)]
    longest = [plan.batch(k).spans[:, 2].max() for plan in plans for k in range(75)]
    assert max(longest[:200]) == 20
    assert 20 < max(longest[200:300]) <= 50
    assert plans[2].report.dropped.tolist() == np.flatnonzero(LENGTHS > 50).tolist()
    assert plans[0].spans.tolist() != plans[1].spans.tolist()


def test_an_epoch_is_declared_or_one_of_the_last_limit():
    assert Curriculum(Fixed(4), [(0, 20), (9, 50)], segment=5).num_batches(index_of()) == -(
        -np.count_nonzero(LENGTHS <= 50) // 4
    )
    assert Curriculum(Fixed(4), by=lambda _: 20, segment=5).num_batches(index_of()) == 75
    for epoch, limit in ((0, 20), (1, 20), (2, 50), (3, 100)):  # pairs of epochs
        plan = Curriculum(Fixed(4), RULES, batches=30).plan(index_of(), seed=0, epoch=epoch)
        assert len(plan) == 30
        assert plan.spans[:, 2].max() <= limit


def test_a_limit_that_later_holds_again_begins_a_pass():
    policy = Curriculum(Fixed(1), by=lambda number: 20 if number % 2 else 50, segment=7, batches=70)
    limits = [
        policy.plan(index_of(), seed=0, epoch=0).slice(first, first + 7).spans[:, 2].max()
        for first in range(0, 70, 7)
    ]
    assert max(limits[1::2]) <= 20 < min(limits[::2])


def test_a_mixture_keeps_its_shares_and_its_updates():
    mix = Mix({"a": 3, "b": Part(1, TokenBudget(128))}, Fixed(4), batches=40)
    policy = group_updates(Curriculum(mix, RULES, segment=20), 4)
    index = SequenceIndex.from_parts({"a": index_of(), "b": index_of(LENGTHS[::-1])})
    for epoch, limit in ((0, 20), (1, 100), (2, 100)):
        plan = policy.plan(index, seed=0, epoch=epoch)
        assert len(plan) == 40
        assert plan.spans[:, 2].max() <= limit
        names = [label.part for label in plan.label_parts(range(40))]
        assert names.count("a") == pytest.approx(30, abs=4)
        assert all(len(set(names[first : first + 4])) == 1 for first in range(0, 40, 4))


def test_an_epoch_of_nothing_has_no_batch():
    for policy in (Curriculum(Fixed(2), RULES, batches=4), Curriculum(Fixed(2), RULES, segment=4)):
        assert policy.num_batches(index_of([])) == len(policy.plan(index_of([]), seed=0, epoch=0))


def test_the_text_of_a_policy_has_what_is_given():
    inner = describe_policy(Fixed(4))
    short = Curriculum(Fixed(4), [(0, 8)], segment=5)
    assert describe_policy(short) == (
        f"Curriculum(policy={inner}, max_length=((0, 8),), by=None, segment=5, batches=None)"
    )
    assert describe_policy(Curriculum(Fixed(4), [(0, 8)], batches=5)).endswith("batches=5)")


def test_what_a_later_segment_would_refuse_is_told_before_the_run():
    policy = Curriculum(Fixed(2), [(0, 8), (3, 5)], segment=10, batches=4)
    message = r"segment 3 must have a sequence of at most 5 timesteps, but none of 2 has so few"
    with pytest.raises(PlanError, match=message):
        policy.num_batches(index_of([7, 9]))
    nothing = Curriculum(Fixed(2, max_length=3, too_long="drop"), [(0, None)], batches=4)
    with pytest.raises(PlanError, match="epoch 0 must have a sequence to plan, but `policy` drops"):
        nothing.num_batches(index_of([7, 9]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"segment": 0}, "`segment` must be an integer of at least 1, but is 0"),
        ({"batches": 2.5}, "`batches` must be an integer of at least 1, but is 2.5"),
        (
            {"max_length": [(1, 9)], "segment": 5},
            "segments must be increasing, .*, but is 1",
        ),
        ({"max_length": 9, "segment": 5}, "must be pairs of a segment and a length, but is 9"),
        ({"max_length": [(0.5, 9)], "segment": 5}, "a segment must be an integer, but is 0.5"),
        ({"max_length": [(0, 0)], "segment": 5}, "`max_length` of segment 0 must be an integer"),
        ({"max_length": None, "by": 5, "segment": 5}, "must be a function of the segment, but is"),
        (
            {"policy": Weighted(TokenBudget(99)), "segment": 5},
            r"the epochs of `policy` must all have the same number of batches, but those of "
            r"Weighted vary. Pass e.g. TokenBudget\(16384\), or",
        ),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        Curriculum(**{"policy": Fixed(4), "max_length": RULES, **arguments})


def test_a_function_that_gives_no_length_is_refused():
    policy = Curriculum(Fixed(4), by=lambda number: 5 - 5 * number, segment=2, batches=4)
    with pytest.raises(ConfigError, match="`by` of segment 1 must be an integer of at least 1"):
        policy.plan(index_of(), seed=0, epoch=0)


def test_it_is_no_pass_over_the_data():
    policy = Curriculum(Fixed(4), RULES, segment=5)
    assert has_draws(policy)
    assert not has_draws(Curriculum(Fixed(4), RULES))
    with pytest.raises(ConfigError, match=r"an epoch of a Curriculum with declared batches has so"):
        Weighted(policy)
    with pytest.raises(ConfigError, match=r"`policy` must be Weighted, or a Mix, but"):
        Segments(policy, 5)
