"""Zipped parts through a Loader: a dict of batches, any world, workers and resume, own options."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import (
    Fixed,
    IncompleteEpochError,
    Loader,
    PlanError,
    ResumeError,
    SequenceBatch,
    World,
    Zip,
)
from seqdata_testing.waiting import until
from tests.loading.loaders import (
    ZIP,
    describe_step,
    make_zip_data,
    make_zip_rows,
    play_whole_zip,
    play_zip,
)
from tests.properties.counts import examples
from tests.samples import list_prefetch_threads


def without_counts(step):
    return {name: batch[:6] for name, batch in step.items()}


def is_real(step):
    return all(batch[6][0] for batch in step.values())


def test_a_step_is_a_batch_of_each_part_with_the_fields_of_its_own_data():
    loader = Loader(make_zip_data(), ZIP)
    steps = list(loader)
    assert len(steps) == len(loader) == 11
    for step in steps:
        assert list(step) == ["labelled", "unlabelled"]
        assert list(step["labelled"].keys()) == ["x", "y"]
        assert list(step["unlabelled"].keys()) == ["x"]
        for name, batch in step.items():
            assert isinstance(batch, SequenceBatch)
            assert batch.part == batch.loader == name
            batch.validate()
        assert step["labelled"]["y"].tolist() == step["labelled"].ids.tolist()
    assert loader.store.parts["unlabelled"].keys(steps[0]["unlabelled"].ids[:1]) == [
        str(int(steps[0]["unlabelled"].ids[0]))
    ]
    assert list(loader.store.fields) == ["x"]


def test_the_leads_epoch_is_that_of_the_steps_and_the_others_continue():
    seen = {"labelled": {}, "unlabelled": {}}
    for epoch, steps in enumerate(play_whole_zip()):
        for number, step in enumerate(steps):
            assert step["labelled"][1:4] == (epoch, epoch, number)
            assert step["unlabelled"][2:4] == (epoch, number)
            for name, batch in step.items():
                seen[name].setdefault(batch[1], []).extend(batch[4])
    assert all(sorted(ids) == list(range(41)) for ids in seen["labelled"].values())
    own = seen["unlabelled"]
    assert len(own) > 1
    for epoch, ids in own.items():
        assert len(set(ids)) == len(ids)
        assert epoch == max(own) or len(ids) == 150


def test_each_part_is_played_as_the_engine_of_a_plan_of_all():
    loader = Loader(make_zip_data(), ZIP, seed=5)
    plan = loader._engine.plan(2)
    for number, step in enumerate(play_whole_zip()[2]):
        numbers = plan.batch(number).spans[:, 0]
        ids = np.where(numbers < 41, numbers, numbers - 41).tolist()
        assert ids == [number for batch in step.values() for number in batch[4]]


def test_scales_and_counts_are_those_of_each_part():
    for step in Loader(make_zip_data(), ZIP, seed=5, accumulate=2):
        for batch in step.values():
            assert batch.num_tokens == int(batch.lengths.sum())
            assert batch.loss_scale == pytest.approx(1 / batch.update_num_tokens)
        assert step["labelled"].update_num_tokens != step["unlabelled"].update_num_tokens


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 2, "prefetch": 0}])
@pytest.mark.slow
def test_workers_change_nothing(options):
    loader = Loader(make_zip_data(), ZIP, seed=5, **options)
    iterator = iter(loader)
    first = describe_step(next(iterator))
    assert len(loader.worker_pids) == 2 * options["num_workers"]
    assert [first, *map(describe_step, iterator)] == play_whole_zip()[0]
    loader.shutdown()
    assert not loader.worker_pids


def test_a_thread_that_reads_ahead_changes_nothing():
    assert play_zip(Loader(make_zip_data(), ZIP, seed=5, prefetch=0)) == play_whole_zip()[0]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_ranks_change_nothing_and_take_equally_many_steps(size):
    loaders = [
        Loader(make_zip_data(), ZIP, seed=5, world=World(rank, size)) for rank in range(size)
    ]
    assert {len(loader) for loader in loaders} == {-(-11 // size)}
    ranks = [play_zip(loader) for loader in loaders]
    steps = [step for of_ranks in zip(*ranks, strict=True) for step in of_ranks]
    assert [without_counts(step) for step in steps if is_real(step)] == [
        without_counts(step) for step in play_whole_zip()[0]
    ]
    for dummy in steps[11:]:
        assert all(not any(batch[6]) for batch in dummy.values())


def test_fewer_sequences_than_ranks_leave_dummy_rows_of_every_part():
    few = {"labelled": make_zip_rows(2, 1), "unlabelled": make_zip_rows(1, 2, labels=False)}
    policy = Zip({"labelled": Fixed(1), "unlabelled": Fixed(4)}, lead="labelled")
    ranks = [play_zip(Loader(few, policy, world=World(rank, 4))) for rank in range(4)]
    assert [len(steps) for steps in ranks] == [1] * 4
    assert [is_real(steps[0]) for steps in ranks] == [True, True, False, False]
    assert [steps[0]["unlabelled"][1] for steps in ranks[:2]] == [0, 1]  # its epochs
    with pytest.raises(PlanError, match=r"`tail='drop'` must leave .*, but drops all 2"):
        next(iter(Loader(few, policy, world=World(0, 4), tail="drop")))


@pytest.mark.parametrize("tail", ["drop", "repeat"])
def test_other_tails_are_those_of_all_parts(tail):
    ranks = [
        play_zip(Loader(make_zip_data(), ZIP, seed=5, world=World(rank, 4), tail=tail))
        for rank in range(4)
    ]
    steps = [step for of_ranks in zip(*ranks, strict=True) for step in of_ranks]
    expected = (
        [*play_whole_zip()[0], play_whole_zip()[0][0]]
        if tail == "repeat"
        else play_whole_zip()[0][:8]
    )
    assert [without_counts(step) for step in steps] == list(map(without_counts, expected))


def test_other_ranks_continue_in_the_middle_of_an_epoch():
    loader = Loader(make_zip_data(), ZIP, seed=5)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    iterator.close()
    loaders = [Loader(make_zip_data(), ZIP, seed=5, world=World(rank, 3)) for rank in range(3)]
    for rank in loaders:
        rank.load_state_dict(state)
    steps = [step for of_ranks in zip(*map(play_zip, loaders), strict=True) for step in of_ranks]
    assert [without_counts(step) for step in steps if is_real(step)] == [
        without_counts(step) for step in play_whole_zip()[0][4:]
    ]


@examples(0.1, here=5)
@given(st.data())
@pytest.mark.slow
def test_a_run_that_stops_anywhere_continues_exactly_on_any_world(draw):
    expected = [without_counts(step) for epoch in play_whole_zip() for step in epoch]
    state, played = None, []
    while len(played) < len(expected):
        size = draw.draw(st.integers(1, 8))
        loaders = [
            Loader(make_zip_data(), ZIP, seed=5, world=World(rank, size)) for rank in range(size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(state))
        iterators = [iter(loader) for loader in loaders]
        for _ in range(draw.draw(st.integers(1, 12))):
            of_ranks = [next(iterator, None) for iterator in iterators]
            if of_ranks[0] is None:
                break
            steps = map(describe_step, of_ranks)
            played += [without_counts(step) for step in steps if is_real(step)]
        states = {json.dumps(loader.state_dict()) for loader in loaders}
        assert len({json.loads(saved)["position"] for saved in states}) == 1
        state = states.pop()
        assert len(state) < 1024
        for loader in loaders:
            loader.shutdown()
    assert played[: len(expected)] == expected


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"policy": Zip(ZIP.parts, lead="unlabelled")}, "`policy` was"),
        ({"policy": Zip({**ZIP.parts, "unlabelled": Fixed(3)}, lead="labelled")}, "`policy` was"),
        (
            {"data": {**make_zip_data(), "unlabelled": make_zip_rows(151, 2, labels=False)}},
            "`data` was",
        ),
        ({"seed": 6}, "`seed` was"),
    ],
)
def test_a_state_of_another_run_is_refused(changed, said):
    state = Loader(make_zip_data(), ZIP, seed=5).state_dict()
    options = {"data": make_zip_data(), "policy": ZIP, "seed": 5, **changed}
    with pytest.raises(ResumeError, match=said):
        Loader(options["data"], options["policy"], seed=options["seed"]).load_state_dict(state)


def test_leaving_an_epoch_stops_the_threads_of_all_parts():
    big = {name: part * 20 for name, part in make_zip_data().items()}
    iterator = iter(Loader(big, Zip({"labelled": Fixed(1), "unlabelled": Fixed(1)})))
    next(iterator)
    assert len(list_prefetch_threads()) == 2
    iterator.close()
    assert until(lambda: not list_prefetch_threads())


def test_a_shut_down_epoch_is_not_taken_for_a_whole_one():
    big = {name: part * 20 for name, part in make_zip_data().items()}
    loader = Loader(big, Zip({"labelled": Fixed(1), "unlabelled": Fixed(1)}), prefetch=1)
    iterator = iter(loader)
    next(iterator)
    assert len(list_prefetch_threads()) == 2
    loader.shutdown()
    assert until(lambda: not list_prefetch_threads(), 10)
    with pytest.raises(IncompleteEpochError):
        list(iterator)


def fails_at(*numbers):
    def transform(sequence, rng):
        if "y" not in sequence and int(sequence["x"].sum()) in numbers:
            raise ValueError("told to fail")
        return sequence

    return transform


def some_batch(number):
    """The sum of a sequence that is in the unlabelled batch of one step of the first epoch only."""
    store = make_zip_data()["unlabelled"]
    return {int(store[play_whole_zip()[0][number]["unlabelled"][4][0]]["x"].sum())}


def test_after_an_error_of_one_part_all_continue_with_the_next_step():
    sums = some_batch(3)
    bad = [
        number
        for number, step in enumerate(play_whole_zip()[0])
        if {int(make_zip_data()["unlabelled"][k]["x"].sum()) for k in step["unlabelled"][4]} & sums
    ]
    iterator = iter(Loader(make_zip_data(), ZIP, seed=5, transform=fails_at(*sums)))
    played = []
    for number in range(11):
        if number in bad:
            with pytest.raises(ValueError, match="told to fail") as caught:
                next(iterator)
            assert f"epoch 0, batch {number}" in "".join(caught.value.__notes__)
            continue
        played.append(describe_step(next(iterator)))
    assert 3 in bad
    assert played == [step for number, step in enumerate(play_whole_zip()[0]) if number not in bad]
    assert next(iterator, None) is None


def test_skipped_errors_are_counted_and_listed_by_part():
    loader = Loader(
        make_zip_data(), ZIP, seed=5, transform=fails_at(*some_batch(3)), on_error="mask"
    )
    steps = list(loader)
    assert len(steps) == 11
    assert {entry["loader"] for entry in loader.errors} == {"unlabelled"}
    assert loader._engine.count_errors_before(1, 0) == len(loader.errors) > 0
    assert loader._engine.count_errors_before(0, 0) == 0
    masked = [batch for step in steps for batch in step.values() if not batch.weight.all()]
    assert {batch.part for batch in masked} == {"unlabelled"}


def test_a_replayed_step_has_all_parts():
    engine = Loader(make_zip_data(), ZIP, seed=5)._engine
    share = engine.share(1, 3)
    made = engine.remake_batch(share, 1, 7, Loader(make_zip_data(), ZIP)._update_schedule)
    assert describe_step(made) == play_whole_zip()[1][7]
    empty = engine.remake_batch(
        share, 1, 7, Loader(make_zip_data(), ZIP)._update_schedule, fill=False
    )
    assert [batch.data for batch in empty.values()] == [{}, {}]
