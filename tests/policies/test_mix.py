"""Policy ``mix``: shares in every prefix, each part through its own epochs, clear refusals."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import (
    Bucketed,
    Curriculum,
    Fixed,
    Mix,
    Packed,
    Part,
    SequenceIndex,
    Sorted,
    TokenBudget,
    Weighted,
    Windows,
)
from seqdata.index import DEFAULT_AXIS
from seqdata.planning.build import describe_policy
from seqdata.resolve import resolve_policy
from tests.policies.mix_samples import (
    ForeignPolicy,
    check_promises,
    check_worlds,
    indexes,
    make_index,
)
from tests.properties.counts import examples

INDEX = make_index(books=300, code=70, talk=9)
FIRST = {"books": 0, "code": 300, "talk": 370}
MIX = Mix(
    {
        "books": Part(0.7, TokenBudget(160)),
        "code": Part(0.2, Bucketed(4)),
        "talk": Part(0.1, Fixed(2)),
    },
    batches=100,
)

policies = st.one_of(
    st.builds(Fixed, st.integers(1, 9)),
    st.builds(Sorted, st.integers(1, 9)),
    st.builds(Bucketed, st.integers(1, 9)),
    st.builds(TokenBudget, st.integers(40, 200)),
    st.builds(Fixed, st.integers(1, 9), max_length=st.just(20), too_long=st.just("split")),
)


@st.composite
def mixtures(draw):
    """A mixture, and an index of its parts."""
    index = draw(indexes(5))
    names = list(index.parts)
    weights = [draw(st.floats(0.1, 1)) for _ in names]
    mix = Mix(
        {name: Part(weight, draw(policies)) for name, weight in zip(names, weights, strict=True)},
        by=draw(st.sampled_from(["batches", "timesteps", "sequences"])),
        batches=draw(st.one_of(st.none(), st.integers(1, 60))),
        batches_per_update=draw(st.integers(1, 9)),
        keep=draw(st.sampled_from(["update", "batch"])),
    )
    return mix, index


def labelled(plan):
    """Return the part, own epoch and spans of each batch."""
    labels = plan.label_parts(range(len(plan)))
    return [(*label, plan.batch(number).spans) for number, label in enumerate(labels)]


@examples(1, here=15)
@given(mixtures(), st.integers(0, 2**32), st.integers(0, 3))
@pytest.mark.slow
def test_every_plan_keeps_what_all_plans_promise(case, seed, epoch):
    mix, index = case
    check_promises(mix, index, seed, epoch)


@examples(1, here=15)
@given(mixtures(), st.integers(1, 8), st.data())
@pytest.mark.slow
def test_any_world_and_any_chain_of_worlds_trains_the_same_batches(case, size, data):
    mix, index = case
    check_worlds(mix, index, size, data)


@examples(1, here=15)
@given(mixtures())
@pytest.mark.slow
def test_each_part_plays_its_own_epochs_whole_and_in_their_order(case):
    """The batches of a part, over all epochs of the mixture, are its own plans one by one."""
    mix, index = case
    epochs = range(4)
    played = [batch for epoch in epochs for batch in labelled(mix.plan(index, seed=7, epoch=epoch))]
    starts = np.cumsum([0, *map(len, index.parts.values())])
    for name, start in zip(index.parts, starts, strict=False):
        own = [(epoch, spans) for part, epoch, spans in played if part == name]
        (run,) = [run for run in mix._make_runs(index, 7) if run.name == name]
        for number, (epoch, spans) in enumerate(own):
            expected_epoch, own_number = divmod(number, run.num_batches)
            expected = run.plan(expected_epoch).batch(own_number).spans + np.array([start, 0, 0])
            assert epoch == expected_epoch
            assert np.array_equal(spans, expected)


def test_a_part_that_wraps_has_each_sequence_once_per_own_epoch():
    drawn = {}
    for epoch in range(6):
        for part, own_epoch, spans in labelled(MIX.plan(INDEX, seed=0, epoch=epoch)):
            drawn.setdefault((part, own_epoch), []).extend(spans[:, 0].tolist())
    for (part, own_epoch), numbers in drawn.items():
        assert len(set(numbers)) == len(numbers)
        if (part, own_epoch + 1) in drawn:
            count = len(INDEX.parts[part])
            assert sorted(numbers) == list(range(FIRST[part], FIRST[part] + count))
    assert ("talk", 5) in drawn


def test_a_part_is_shuffled_again_in_each_of_its_epochs():
    orders = {}
    for part, own_epoch, spans in labelled(MIX.plan(INDEX, seed=0, epoch=0)):
        if part == "talk":
            orders.setdefault(own_epoch, []).extend(spans[:, 0].tolist())
    assert orders[0] != orders[1]


def test_a_part_is_in_the_same_order_whatever_the_others_do():
    alone = make_index(books=300)
    mixed = [
        spans for part, _, spans in labelled(MIX.plan(INDEX, seed=3, epoch=0)) if part == "books"
    ]
    single = Mix({"books": Part(1, TokenBudget(160))}, batches=len(mixed)).plan(
        alone, seed=3, epoch=0
    )
    assert all(
        np.array_equal(spans, single.batch(number).spans) for number, spans in enumerate(mixed)
    )


def test_parts_of_equal_lengths_are_in_unlike_orders():
    lengths = np.arange(1, 65)
    index = SequenceIndex.from_parts(
        {name: SequenceIndex.from_lengths(lengths) for name in ("one", "two")}
    )
    plan = Mix({"one": 1, "two": 1}, Fixed(64), batches=2, keep="batch").plan(
        index, seed=0, epoch=0
    )
    one, two = plan.batch(0).spans[:, 0] % 64, plan.batch(1).spans[:, 0] % 64
    assert not np.array_equal(one, two)


def test_the_last_of_10_12_batches_is_found_at_once():
    mix = Mix(MIX.parts, batches=10**12)
    plan = mix.plan(INDEX, seed=0, epoch=0)
    number = 10**12 - 1
    assert len(plan) == 10**12
    (label,) = plan.label_parts([number])
    spans = plan.batch(number).spans
    assert label.epoch > 10**9
    assert (spans[:, 0] >= FIRST[label.part]).all()
    later = mix.plan(INDEX, seed=0, epoch=5)
    assert later.label_parts([0])[0].epoch > label.epoch - 10**12


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_the_ranks_of_a_step_are_of_one_part_and_each_step_is_chosen_anew(ranks):
    mix = Mix(MIX.parts, batches=40 * ranks)
    plan = mix.for_ranks(ranks).plan(INDEX, seed=0, epoch=0)
    labels = [part for part, _, _ in labelled(plan)]
    steps = [labels[first : first + ranks] for first in range(0, len(labels), ranks)]
    assert all(len(set(step)) == 1 for step in steps)
    chosen = [step[0] for step in steps]
    single = Mix(MIX.parts, batches=40, keep="batch").plan(INDEX, seed=0, epoch=0)
    assert chosen == [part for part, _, _ in labelled(single)]  # the same order, by steps
    assert len({part for part, _, _ in labelled(single)[:8]}) > 1


def test_a_mixture_by_itself_chooses_each_batch_anew():
    alone, single = (
        Mix(MIX.parts, batches=40, **options).plan(INDEX, seed=0, epoch=0)
        for options in ({}, {"keep": "batch"})
    )
    assert np.array_equal(alone.spans, single.spans)


def test_chosen_by_batch_the_number_of_ranks_is_that_of_the_parts_alone():
    mix = Mix(MIX.parts, batches=60, keep="batch")
    labels = [
        [part for part, _, _ in labelled(mix.for_ranks(ranks).plan(INDEX, seed=0, epoch=0))]
        for ranks in (1, 4)
    ]
    assert labels[0] == labels[1]


@pytest.mark.parametrize("given", [None, 3])
def test_ranks_of_a_mixture_hold_for_the_policies_of_its_parts(given):
    parts = {"books": Part(1, Bucketed(2)), "code": Part(1, Sorted(2, balance_ranks=5)), "talk": 1}
    made = Mix(parts, TokenBudget(160), batches=8, balance_ranks=given).for_ranks(4)
    ranks = given or 4
    assert made.balance_ranks == ranks
    assert made.parts["books"].policy == Bucketed(2, balance_ranks=ranks)
    assert made.parts["code"].policy == Sorted(2, balance_ranks=5)  # its own stays
    assert made.policy == TokenBudget(160, balance_ranks=ranks)


@pytest.mark.parametrize("options", [{}, {"batches_per_update": 6}, {"keep": "batch"}])
def test_the_number_of_batches_does_not_follow_the_ranks(options):
    mix = Mix({name: Part(1, Bucketed(7)) for name in ("books", "code", "talk")}, **options)
    counts = {mix.for_ranks(ranks).num_batches(INDEX) for ranks in range(1, 9)}
    assert counts == {mix.num_batches(INDEX)}
    (count,) = counts
    assert count % {"batches_per_update": 6}.get(next(iter(options), ""), 1) == 0
    if not options:
        assert count % 8 == 0  # steps of so many ranks end with it
    for ranks in (1, 3, 8):
        assert len(mix.for_ranks(ranks).plan(INDEX, seed=1, epoch=2)) == count


def test_groups_of_a_part_are_whole_steps_in_all_of_its_epochs():
    """21 batches of an epoch are no multiple of 4: the next one begins with its groups."""
    index = SequenceIndex.from_parts({"a": SequenceIndex.from_lengths(np.arange(1, 64) * 10)})
    mix = Mix({"a": 1}, Sorted(3, worst_first=False), batches=84).for_ranks(4)
    plan = mix.plan(index, seed=5, epoch=0)
    longest = [int(plan.batch(number).lengths.max()) for number in range(84)]
    lows = sorted(set(longest))  # of 21 batches
    ranks = np.searchsorted(lows, longest).reshape(-1, 4)
    of_one_epoch = [
        row
        for row, first in zip(ranks, range(0, 84, 4), strict=True)
        if len({label.epoch for label in plan.label_parts(range(first, first + 4))}) == 1
    ]
    assert len(of_one_epoch) > 15
    # groups are of four neighbours, but for the one batch that remains and may lie between
    assert all(row.max() - row.min() <= 4 for row in of_one_epoch)
    for epoch in range(4):
        own = [n for n in range(84) if plan.label_parts([n])[0].epoch == epoch]
        numbers = np.concatenate([plan.batch(n).spans[:, 0] for n in own])
        assert sorted(numbers.tolist()) == list(range(63))


def shares_of(mix, index=INDEX, *, of):
    plan = mix.plan(index, seed=0, epoch=0)
    counted = Counter()
    for part, _, spans in labelled(plan):
        counted[part] += {
            "batches": 1, "sequences": len(spans), "timesteps": (spans[:, 2] - spans[:, 1]).sum()
        }[of]  # fmt: skip
    return {part: count / counted.total() for part, count in counted.items()}


@pytest.mark.parametrize("by", ["batches", "timesteps", "sequences"])
def test_shares_are_those_of_the_weights(by):
    mix = Mix(MIX.parts, by=by, batches=4_000, keep="batch")
    shares = shares_of(mix, of=by)
    for part, share in (("books", 0.7), ("code", 0.2), ("talk", 0.1)):
        assert shares[part] == pytest.approx(share, abs=0.003)


@pytest.mark.parametrize(
    "policy",
    [
        Windows(5, 2, 3),
        Packed(2, 40),
        Fixed(3, max_length=9, too_long="split"),
        Bucketed(3, max_length=9, too_long="truncate"),
        Sorted(4, max_length=20, too_long="drop"),
    ],
)
def test_timesteps_are_counted_as_policies_plan_them(policy):
    part = INDEX.parts["books"]
    report = policy.plan(part, seed=0, epoch=0)
    spans = report.spans
    assert policy.count_planned(part) == (len(spans), int((spans[:, 2] - spans[:, 1]).sum()))


def test_a_policy_of_others_is_counted_by_its_plan():
    ours = Mix({"books": 1, "code": Part(1, Fixed(5))}, Fixed(3), by="timesteps")
    theirs = Mix({"books": 1, "code": Part(1, Fixed(5))}, ForeignPolicy(), by="timesteps")
    index = make_index(books=30, code=20)
    assert ours._scale_weights(index) == theirs._scale_weights(index)


@pytest.mark.parametrize("by", ["sequences", "timesteps"])
@pytest.mark.parametrize(
    "repeated",
    [
        Curriculum(Fixed(8), max_length=[(0, None)], batches=500),  # each comes ten times
        Curriculum(Fixed(8, max_length=10, too_long="split"), max_length=[(0, 5)], batches=70),
    ],
)
def test_shares_count_what_an_epoch_repeats(repeated, by):
    mix = Mix({"a": Part(1, repeated), "b": Part(1, Fixed(8))}, by=by, batches=400, keep="batch")
    index = make_index(a=400, b=400)
    assert shares_of(mix, index, of=by) == pytest.approx({"a": 0.5, "b": 0.5}, abs=0.02)


@pytest.mark.parametrize("drawn", [{"a"}, {"a", "b"}])
def test_the_report_counts_what_drawn_parts_repeat(drawn):
    weighted = Weighted(Fixed(8), draws=80)
    mix = Mix({name: Part(1, weighted if name in drawn else Fixed(8)) for name in "ab"}, batches=20)
    plan = mix.plan(make_index(a=40, b=80), seed=0, epoch=0)
    rows = [plan.batch(number).spans[:, 0] for number in range(len(plan))]
    assert plan.report.repeats == sum(len(each) - len(np.unique(each)) for each in rows) > 0


def test_a_temperature_evens_out_shares():
    sizes = make_index(en=6_400, de=400, is_=100)
    names = dict.fromkeys(sizes.parts, 1)

    def shares(temperature):
        mix = Mix(names, Fixed(1), temperature=temperature, batches=3_000, keep="batch")
        return shares_of(mix, sizes, of="batches")

    assert shares(1) == pytest.approx(
        {"en": 6400 / 6900, "de": 400 / 6900, "is_": 100 / 6900}, abs=2e-3
    )
    assert shares(2.0) == pytest.approx({"en": 80 / 110, "de": 20 / 110, "is_": 10 / 110}, abs=2e-3)
    assert shares(1e9)["is_"] == pytest.approx(1 / 3, abs=2e-3)


def test_without_batches_an_epoch_is_one_pass_over_the_largest_part():
    mix = Mix({"books": Part(0.75, Fixed(3)), "code": Part(0.25, Fixed(7))}, keep="batch")
    index = make_index(books=300, code=7_000)
    assert mix.num_batches(index) == 134  # 100 / 0.75
    in_groups = Mix(mix.parts)
    assert in_groups.num_batches(index) == 136
    counted = Counter(part for part, _, _ in labelled(mix.plan(index, seed=0, epoch=0)))
    assert counted["books"] in (100, 101)


def test_a_part_of_weight_0_is_left_out_and_may_be_empty():
    index = SequenceIndex.from_parts(
        {"all": SequenceIndex.from_lengths([1, 2]), "none": SequenceIndex.from_lengths([])}
    )
    plan = Mix({"all": 1, "none": 0}, Fixed(1), batches=9).plan(index, seed=0, epoch=0)
    assert {part for part, _, _ in labelled(plan)} == {"all"}


def test_parts_are_not_shuffled_where_the_mixture_is_not():
    plan = Mix(MIX.parts, batches=50, shuffle=False).plan(INDEX, seed=0, epoch=0)
    talk = [spans for part, _, spans in labelled(plan) if part == "talk"]
    assert talk[0][:, 0].tolist() == [370, 371]


def test_a_thousand_parts():
    index = make_index(**{f"p{number}": 3 for number in range(1_000)})
    mix = Mix(dict.fromkeys(index.parts, 0.5), Fixed(2), batches=4_000, keep="batch")
    counted = Counter(part for part, _, _ in labelled(mix.plan(index, seed=0, epoch=0)))
    assert set(counted.values()) <= {3, 4, 5}
    assert len(counted) == 1_000


def test_the_text_of_a_mixture_names_what_its_policies_hold():
    def cost(lengths_of):
        return lengths_of["time"]

    mix = Mix({"books": Part(0.7, TokenBudget(64, cost=cost)), "code": 1}, Fixed(2))
    text = describe_policy(mix)
    assert "cost=test_the_text_of_a_mixture_names_what_its_policies_hold.<locals>.cost" in text
    assert "policy=Fixed(batch_size=2" in text
    assert "0x" not in text


def test_equal_mixtures_are_equal_and_hashable():
    assert Mix({"a": 1}, Fixed(2)) == Mix({"a": Part(1)}, Fixed(2))
    assert hash(Mix({"a": 1}, Fixed(2))) == hash(Mix({"a": Part(1)}, Fixed(2)))


def test_it_has_a_registered_name():
    made = resolve_policy("mix", {"parts": {"a": 0.5, "b": 0.5}, "policy": Fixed(2)})
    assert made == Mix({"a": 0.5, "b": 0.5}, Fixed(2))


def test_weights_may_be_exact():
    thirds = Mix({"a": Fraction(1, 3), "b": Fraction(2, 3)}, Fixed(1), batches=300, keep="batch")
    counted = Counter(
        part for part, _, _ in labelled(thirds.plan(make_index(a=5, b=5), seed=0, epoch=0))
    )
    assert counted == {"a": 100, "b": 200}


def test_what_a_part_drops_is_in_the_report():
    index = SequenceIndex.from_parts(
        {"one": SequenceIndex.from_lengths([3, 0]), "two": SequenceIndex.from_lengths([9, 50, 4])}
    )
    mix = Mix(
        {"one": 1, "two": Part(1, Fixed(1, max_length=20, too_long="drop"))}, Fixed(1), batches=6
    )
    report = mix.plan(index, seed=0, epoch=0).report
    assert report.dropped.tolist() == [1, 3]


def test_shifted_lengths_are_those_of_each_part():
    shifted = INDEX.shifted(DEFAULT_AXIS, 1)
    assert [len(part) for part in shifted.parts.values()] == [300, 70, 9]
    assert shifted.lengths.max() == INDEX.lengths.max() - 1
    back, by = shifted.unshifted(DEFAULT_AXIS)
    assert by == 1
    assert np.array_equal(back.parts["code"].lengths, INDEX.parts["code"].lengths)
    assert np.array_equal(
        shifted.parts["code"].lengths, np.maximum(INDEX.parts["code"].lengths - 1, 0)
    )
