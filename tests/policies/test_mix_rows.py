"""``Mix(rows=True)``: rows of all parts in a batch, exact shares, even by length and epoch."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import (
    Bucketed,
    ConfigError,
    Fixed,
    Loader,
    Mix,
    Packed,
    Part,
    PlanError,
    SequenceIndex,
    TokenBudget,
    Windows,
    World,
)
from seqdata.planning.build import describe_policy
from seqdata.storage.memory import MemoryStore
from seqdata_testing.plans import check_constant_count, check_pure, check_table
from seqdata_testing.sharing import check_shares
from tests.policies.mix_samples import make_index
from tests.properties.counts import examples
from tests.properties.noise import noisy
from tests.samples import add_noise

INDEX = make_index(en=300, de=100, nl=7)
FIRST = [0, 300, 400, 407]
EVEN = Mix({"en": 0.5, "de": 0.4, "nl": 0.1}, Fixed(8), rows=True)


def draws(mix, index, epoch, seed=0):
    """Return how often each sequence comes in an epoch, int64 (n,)."""
    spans = mix.plan(index, seed=seed, epoch=epoch).spans
    return np.bincount(spans[:, 0], minlength=len(index))


def by_part(counts, firsts=FIRST):
    return [counts[first:stop] for first, stop in pairwise(firsts)]


@st.composite
def mixtures(draw):
    names = [f"part{number}" for number in range(draw(st.integers(1, 4)))]
    lengths = st.lists(st.integers(0, 30), min_size=1, max_size=30).filter(any)
    parts = {name: SequenceIndex.from_lengths(draw(lengths)) for name in names}
    policy = draw(
        st.sampled_from(
            [Fixed(3), Bucketed(4), TokenBudget(60), Packed(2, 40), Fixed(5, shuffle=False)]
        )
    )
    weights = {name: draw(st.floats(0.1, 1)) for name in names}
    by = draw(st.sampled_from([None, "sequences", "timesteps"]))
    return Mix(weights, policy, rows=True, by=by), SequenceIndex.from_parts(parts)


@examples(0.3, here=20)
@given(mixtures(), st.integers(0, 2**32), st.integers(0, 9), st.integers(1, 8))
@pytest.mark.slow
def test_every_plan_keeps_what_all_plans_promise(case, seed, epoch, size):
    mix, index = case
    plan = mix.plan(index, seed=seed, epoch=epoch)
    check_table(plan)
    check_pure(mix, index, seed=seed, epoch=epoch + 1, shuffled=None)
    check_shares(plan, size)
    assert len(plan) == mix.count_batches(index, seed=seed, epoch=epoch)
    if not mix.varies:
        check_constant_count(mix, index, epochs=(epoch, epoch + 1), seeds=(seed,))


@examples(0.3, here=20)
@given(mixtures(), st.integers(0, 2**32))
@pytest.mark.slow
def test_sequences_of_a_part_never_differ_by_more_than_one_draw(case, seed):
    mix, index = case
    total = np.zeros(len(index), dtype=np.int64)
    firsts = np.cumsum([0, *map(len, index.parts.values())]).tolist()
    for epoch in range(5):
        drawn = draws(mix, index, epoch, seed)
        total += drawn
        for counts in (drawn, total):
            for own, part in zip(by_part(counts, firsts), index.parts.values(), strict=True):
                played = own[part.lengths > 0]
                assert not own[part.lengths == 0].any()
                assert len(played) == 0 or played.max() - played.min() <= 1


def test_shares_are_those_of_the_weights_in_every_epoch():
    for epoch in range(3):
        rows = [int(counts.sum()) for counts in by_part(draws(EVEN, INDEX, epoch))]
        assert rows == [203, 163, 41]  # of 407
    assert not EVEN.varies
    assert EVEN.num_batches(INDEX) == 51


def test_shares_may_be_of_timesteps():
    mix = Mix({"en": 0.5, "de": 0.5}, Fixed(8), rows=True, by="timesteps")
    index = SequenceIndex.from_parts(
        {"en": SequenceIndex.from_lengths([2] * 400), "de": SequenceIndex.from_lengths([6] * 100)}
    )
    spans = mix.plan(index, seed=0, epoch=0).spans
    lengths = spans[:, 2] - spans[:, 1]
    assert lengths[spans[:, 0] < 400].sum() == pytest.approx(lengths.sum() / 2, rel=0.01)


@pytest.mark.parametrize(
    "policy", [Windows(10, 10), Windows(10, 5), Fixed(4, max_length=10, too_long="split")]
)
def test_shares_of_timesteps_hold_where_a_sequence_makes_several_rows(policy):
    lengths = {"long": [100] * 100 + [0] * 50, "short": [10] * 100}
    index = SequenceIndex.from_parts(
        {name: SequenceIndex.from_lengths(own) for name, own in lengths.items()}
    )
    mix = Mix({"long": 0.5, "short": 0.5}, policy, rows=True, by="timesteps")
    spans = mix.plan(index, seed=0, epoch=0).spans
    played = spans[:, 2] - spans[:, 1]
    assert played[spans[:, 0] < 150].sum() == pytest.approx(played.sum() / 2, rel=0.05)
    by_sequences = Mix({"long": 0.5, "short": 0.5}, policy, rows=True, by="sequences")
    drawn = by_sequences.plan(index, seed=0, epoch=0).spans[:, 0]
    assert [len(np.unique(drawn[drawn < 150])), len(np.unique(drawn[drawn >= 150]))] == [100, 100]


def test_a_sample_has_the_lengths_of_its_part():
    """A third of a part, drawn evenly along the order of length, is no shorter nor longer."""
    lengths = np.random.default_rng(0).integers(1, 10_000, size=3_000)
    parts = {"all": lengths, "few": np.ones(1_500, dtype=np.int64)}
    index = SequenceIndex.from_parts(
        {name: SequenceIndex.from_lengths(own) for name, own in parts.items()}
    )
    mix = Mix({"all": 2, "few": 7}, Fixed(8), rows=True)
    for epoch in range(3):
        chosen = lengths[draws(mix, index, epoch)[:3_000] > 0]
        assert len(chosen) == 1_000
        assert chosen.mean() == pytest.approx(lengths.mean(), rel=0.002)


def test_a_whole_round_of_epochs_has_each_sequence_as_often():
    total = sum(draws(EVEN, INDEX, epoch) for epoch in range(300))
    assert set(by_part(total)[0].tolist()) == {203}


def test_the_sample_differs_from_epoch_to_epoch_and_seed_to_seed():
    samples = [draws(EVEN, INDEX, epoch, seed).tolist() for epoch, seed in ((0, 0), (1, 0), (0, 1))]
    assert samples[0] != samples[1] != samples[2] != samples[0]


def test_a_policy_that_counts_lengths_varies_and_says_so():
    mix = Mix({"en": 1, "de": 1}, TokenBudget(160), rows=True)
    assert mix.varies
    index = make_index(en=300, de=100)
    for epoch in range(4):
        plan = mix.plan(index, seed=3, epoch=epoch)
        assert len(plan) == mix.count_batches(index, seed=3, epoch=epoch)
    assert len(mix.plan(index, seed=0, epoch=2)) == mix.count_batches(index, seed=0, epoch=2)


def test_batches_of_a_seed_and_epoch_are_counted_apart_from_those_of_others():
    """One index counts them all, as in a run of several epochs; in any order of asking."""
    rng = np.random.default_rng(0)
    index = SequenceIndex.from_parts(
        {name: SequenceIndex.from_lengths(rng.integers(1, 160, size=60)) for name in ("a", "b")}
    )
    mix = Mix({"a": 7, "b": 1}, TokenBudget(160), rows=True)
    counts = {}
    for seed, epoch in ((0, 0), (0, 2), (2, 0), (2, 2)):
        counts[seed, epoch] = mix.count_batches(index, seed=seed, epoch=epoch)
        assert counts[seed, epoch] == len(mix.plan(index, seed=seed, epoch=epoch))
    assert counts == {(0, 0): 83, (0, 2): 84, (2, 0): 84, (2, 2): 83}


def rows(count, seed):
    rng = np.random.default_rng(seed)
    return [{"x": np.ones(rng.integers(1, 9)), "y": number} for number in range(count)]


def described(batch):
    return batch.part, batch.part_epoch, batch.ids.tolist(), batch["r"].flatten().tolist()


def test_each_row_names_its_part_and_how_often_it_came():
    data = {"en": rows(30, 1), "de": rows(5, 2)}
    loader = Loader(data, Mix({"en": 1, "de": 1}, Fixed(4), rows=True), transform=add_noise)
    seen, noises = Counter(), set()
    for _ in range(4):
        came = Counter()
        for batch in loader:
            assert len(batch.part) == len(batch.part_epoch) == len(batch)
            assert batch["y"].tolist() == batch.ids.tolist()
            for part, passed, number in zip(
                batch.part, batch.part_epoch, batch.ids.tolist(), strict=True
            ):
                assert len(data[part]) > number
                came[part, number, passed] += 1
            noises.update(batch["r"].flatten().tolist())
        for part, number, passed in sorted(came):
            assert came[part, number, passed] == 1
            assert passed == seen[part, number]
            seen[part, number] += 1
    assert len(noises) == sum(seen.values())  # no draw is augmented as another


def values(counts):
    """Return sequences of ``counts`` timesteps, whose values say which timestep of which it is."""
    return MemoryStore.from_sequences(
        [np.arange(count) + 100.0 * number for number, count in enumerate(counts)]
    )


@examples(0.5, here=4)
@given(
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=9), min_size=1, max_size=3).filter(
        lambda parts: all(max(part) >= 4 for part in parts)
    ),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, 99),
    st.integers(2, 4),
)
def test_crops_of_any_parts_are_cut_out_of_their_sequences(parts, crops, size, seed, ranks):
    data = {str(number): values(counts) for number, counts in enumerate(parts)}
    policy = Windows(4, batch_size=size, random=True, per_sequence=crops)
    mix = Mix({name: int(name) + 1 for name in data}, policy, rows=True)
    options = {"transform": noisy, "seed": seed, "prefetch": 0}
    loader = Loader(data, mix, **options)
    others = [Loader(data, mix, world=World(rank, ranks), **options) for rank in range(ranks)]
    noises, came = {}, Counter()
    for epoch in range(3):
        rows = []
        for batch in loader:
            labels = zip(batch.part, batch.part_epoch, batch.ids.tolist(), strict=True)
            rows += [(*label, x.tolist()) for label, x in zip(labels, batch["x"], strict=True)]
        steps = zip(*others, strict=True)
        shared = [batch.real() for step in steps for batch in step if (batch.weight > 0).any()]
        assert [x for *_, x in rows] == [x for batch in shared for x in batch["x"].tolist()]
        for part, own_pass, number, x in rows:
            whole = np.floor(x)
            assert whole.tolist() == list(range(int(whole[0]), int(whole[0]) + 4))
            assert whole[0] // 100 == number
            assert whole[-1] % 100 < parts[int(part)][number]
            noise = tuple(np.array(x) - whole)  # one for each window of each time it is drawn
            assert noises.setdefault(noise, (epoch, part, number, own_pass, whole[0])) == (
                epoch, part, number, own_pass, whole[0],
            )  # fmt: skip
            came[part, number] += 1
        for part, counts in enumerate(parts):
            times = [came[str(part), number] for number, n in enumerate(counts) if n >= 4]
            assert max(times) - min(times) in (0, crops)
    assert not sum(came.values()) % crops


def test_crops_of_a_sequence_that_is_repeated_lie_elsewhere():
    data = {"a": values([30]), "b": values([30] * 9)}
    mix = Mix({"a": 1, "b": 1}, Windows(4, batch_size=4, random=True), rows=True)
    starts = [
        x[0].item()
        for batch in Loader(data, mix, prefetch=0)
        for part, x in zip(batch.part, batch["x"], strict=True)
        if part == "a"
    ]
    assert len(starts) == 5
    assert len(set(starts)) >= 4


def test_ranks_workers_and_a_resume_change_nothing():
    data = {"en": rows(30, 1), "de": rows(5, 2)}
    mix = Mix({"en": 1, "de": 1}, TokenBudget(20), rows=True)
    loader = Loader(data, mix, transform=add_noise, seed=2)
    whole = [described(batch) for batch in loader]
    batches = iter(loader2 := Loader(data, mix, transform=add_noise, seed=2))
    first = [described(next(batches)) for _ in range(3)]
    state = json.loads(json.dumps(loader2.state_dict()))
    ranks = []
    for rank in range(2):
        other = Loader(
            data, mix, transform=add_noise, seed=2, world=World(rank, 2), num_workers=rank
        )
        other.load_state_dict(state)
        ranks.append([described(batch.real()) for batch in other])
        other.shutdown()
    rest = [batch for step in zip(*ranks, strict=True) for batch in step if batch[2]]
    assert first + rest == whole


@pytest.mark.parametrize(
    ("parts", "options", "said"),
    [
        ({"a": 1}, {"policy": None}, r"with `rows=True`, `policy` must be given, but is None"),
        ({"a": 1}, {"by": "batches"}, r"number of batches, so `by='batches'` cannot be given"),
        ({"a": 1}, {"batches": 5}, r"number of batches, so `batches=5` cannot be given"),
        ({"a": Part(1, Fixed(3))}, {}, r"part 'a' must have no policy of its own with `rows=True`"),
    ],
)
def test_what_rows_do_not_go_with_is_refused(parts, options, said):
    with pytest.raises(ConfigError, match=said):
        Mix(parts, **{"policy": Fixed(2), "rows": True, **options})


def test_an_empty_part_of_rows_is_named():
    index = SequenceIndex.from_parts(
        {"full": SequenceIndex.from_lengths([1]), "void": SequenceIndex.from_lengths([0, 0])}
    )
    with pytest.raises(PlanError, match="part 'void' must have a sequence to draw"):
        Mix({"full": 1, "void": 1}, Fixed(2), rows=True).num_batches(index)
    only = Mix({"full": 1, "void": 0}, Fixed(2), rows=True)
    assert only.plan(index, seed=0, epoch=0).report.dropped.tolist() == []
    assert "rows=True" in describe_policy(only)


def test_rows_of_a_policy_that_splits_and_drops_are_reported():
    index = SequenceIndex.from_parts(
        {"one": SequenceIndex.from_lengths([3, 0]), "two": SequenceIndex.from_lengths([9, 50, 4])}
    )
    mix = Mix({"one": 1, "two": 3}, Fixed(2, max_length=20, too_long="split"), rows=True)
    report = mix.plan(index, seed=0, epoch=0).report
    assert (report.dropped.tolist(), report.split.tolist()) == ([1], [3])


def test_a_part_whose_weight_gives_it_no_row_is_reported_as_dropped():
    index = SequenceIndex.from_parts(
        {"rare": SequenceIndex.from_lengths([3] * 4), "big": SequenceIndex.from_lengths([3] * 96)}
    )
    report = (
        Mix({"rare": 0.001, "big": 0.999}, Fixed(5), rows=True).plan(index, seed=0, epoch=0).report
    )
    assert report.dropped.tolist() == [0, 1, 2, 3]
    left_out = Mix({"rare": 0, "big": 1}, Fixed(5), rows=True).plan(index, seed=0, epoch=0).report
    assert left_out.dropped.tolist() == []


def test_rows_of_several_sequences_are_refused_where_batches_name_their_part():
    data = {name: [np.arange(3) for _ in range(4)] for name in ("a", "b")}
    loader = Loader(data, Mix({"a": 1, "b": 1}, Packed(2, 12), rows=True))
    with pytest.raises(ConfigError, match=r"must put one sequence in each row, but packs several"):
        next(iter(loader))
