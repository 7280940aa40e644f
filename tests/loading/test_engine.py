"""The Player: whole epochs over real stores, by rank, position, update and failure."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from seqdata.errors import ConfigError, CorruptSampleError, PlanError
from seqdata.loading.engine import EpochEngine
from seqdata.loading.loader import Loader
from seqdata.loading.options import EngineOptions, UpdateSchedule
from seqdata.plan import Plan
from seqdata.planning.parts import Part
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.zip import Zip
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from seqdata_testing.waiting import until
from tests.samples import list_prefetch_threads

LENGTHS = np.random.default_rng(0).integers(1, 30, size=103)
STORE = MemoryStore.from_sequences(
    [
        {"x": np.arange(n, dtype=np.int32) + 1000 * number, "y": number}
        for number, n in enumerate(LENGTHS)
    ]
)


@dataclass(frozen=True)
class Given:
    """A policy whose plan is given."""

    made: Plan
    batches: int | None = None
    axis: str = "time"

    def plan(self, index, *, seed, epoch):
        return self.made

    def num_batches(self, index):
        return len(self.made) if self.batches is None else self.batches


def player(policy=Bucketed(8), store=STORE, **options):  # noqa: B008
    return EpochEngine(store, policy, EngineOptions(**options))


def play(policy=Bucketed(8), epoch=0, first=0, update=None, **options):  # noqa: B008
    return list(player(policy, **options).iterate(epoch, first, update))


def order(batches):
    return [batch.ids.tolist() for batch in batches]


def ends():
    return until(lambda: not list_prefetch_threads())


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 16])
def test_every_sequence_is_delivered_once_over_all_ranks(size, prefetch):
    seen, tokens = Counter(), []
    for rank in range(size):
        mine = player(world=World(rank, size), prefetch=prefetch)
        batches = list(mine.iterate(0, 0))
        assert len(batches) == mine.num_steps == -(-13 // size)
        tokens.append([batch.num_tokens for batch in batches])
        for batch in batches:
            batch.validate()
            seen.update(batch.real().ids.tolist())
        steps = [batch.global_num_tokens for batch in batches]
    assert seen == Counter(range(103))
    assert [sum(step) for step in zip(*tokens, strict=True)] == steps
    assert sum(steps) == LENGTHS.sum()


def test_the_data_is_that_of_the_rows():
    for batch in play(TokenBudget(100)):
        for row, number in enumerate(batch.ids.tolist()):
            length = LENGTHS[number]
            assert batch.lengths[row] == length
            expected = 1000 * number + torch.arange(length)
            assert torch.equal(batch["x"][row, :length].long(), expected)
            assert not batch["x"][row, length:].any()
        assert torch.equal(batch["y"], batch.ids)


@pytest.mark.parametrize("prefetch", [1, 2, 7])
def test_the_order_does_not_depend_on_prefetch(prefetch):
    assert order(play(prefetch=prefetch)) == order(play(prefetch=0))


@pytest.mark.parametrize("first", range(14))
def test_an_epoch_goes_on_anywhere(first):
    assert order(play(first=first)) == order(play())[first:]


def test_batches_say_which_they_are():
    batches = play(epoch=3, world=World(1, 2))
    assert [batch.epoch for batch in batches] == [3] * 7
    assert [batch.number for batch in batches] == [1, 3, 5, 7, 9, 11, 12]
    assert batches[-1].weight.tolist() == [0.0]


def test_epochs_differ_unless_frozen():
    assert order(play(epoch=1)) != order(play(epoch=0))
    frozen = play(epoch=1, overfit=True)
    assert order(frozen) == order(play(epoch=0))
    assert {batch.epoch for batch in frozen} == {0}


def test_the_last_two_plans_are_kept_and_each_is_shown_once():
    shown = []
    mine = player(on_plan_ready=shown.append)
    plans = [mine.plan(epoch) for epoch in (0, 1, 0, 1)]
    assert plans[0] is plans[2]
    assert plans[1] is plans[3]
    mine.plan(2)
    assert mine.plan(0) is not plans[0]
    assert len(shown) == 4


def test_shift_gives_targets_and_counts_them():
    batches = play(shift=1, fields=["x"])
    assert sum(batch.num_tokens for batch in batches) == (LENGTHS - 1).sum()
    for batch in batches:
        batch.validate()
        assert torch.equal(batch["targets"][batch.mask], batch["x"][batch.mask] + 1)


def test_rows_of_several_spans_are_laid_one_behind_another():
    plan = Plan([[0, 0, 2], [1, 1, 3], [2, 0, 1]], rows=[0, 2, 3], offsets=[0, 2])
    (batch,) = play(Given(plan))
    assert batch["x"].tolist() == [[0, 1, 1001, 1002], [2000, 0, 0, 0]]
    assert batch.segments.tolist() == [[0, 0, 0, 2], [0, 1, 1, 3], [1, 2, 0, 1]]
    (shifted,) = play(Given(plan), shift=1)
    assert shifted["targets"].tolist() == [[1, 2, 1002, 1003], [2001, 0, 0, 0]]
    assert shifted.validate()


def test_lanes_are_dealt_to_ranks_and_go_on_where_they_were():
    spans = [[lane, 2 * step, 2 * step + 2] for step in range(3) for lane in range(4)]
    store = MemoryStore.from_sequences([np.arange(6) + 10 * lane for lane in range(4)])
    policy = Given(Plan(spans, offsets=[0, 4, 8, 12], lanes=4))
    for rank in range(2):
        options = EngineOptions(world=World(rank, 2))
        batches = list(EpochEngine(store, policy, options).iterate(0, 0))
        assert [batch.lanes.tolist() for batch in batches] == [[2 * rank, 2 * rank + 1]] * 3
        assert [batch.reset.tolist() for batch in batches] == [[True] * 2] + [[False] * 2] * 2
        rows = torch.cat([batch["x"] for batch in batches], dim=1)
        assert rows.tolist() == [
            [20 * rank + i for i in range(6)],
            [20 * rank + 10 + i for i in range(6)],
        ]
        assert all(batch.global_num_tokens == 8 for batch in batches)


@pytest.mark.filterwarnings("ignore:share. 2 lanes on 3 ranks")
def test_a_rank_without_lanes_gets_lane_0_as_a_dummy():
    policy = Given(Plan([[0, 0, 2], [1, 0, 2]], offsets=[0, 2], lanes=2))
    (batch,) = play(policy, world=World(1, 3))
    weights = [play(policy, world=World(rank, 3))[0].weight.tolist() for rank in range(3)]
    assert sorted(weights) == [[0.0], [1.0], [1.0]]
    assert batch.validate()


def sums(batches, scale):
    return sum(batch.num_tokens * getattr(batch, scale) for batch in batches)


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 3])
def test_loss_scale_makes_each_update_an_exact_mean(size, accumulate, divided):
    update = UpdateSchedule(accumulate, is_loss_divided=divided)
    ranks = [play(world=World(rank, size), update=update) for rank in range(size)]
    for first in range(0, len(ranks[0]), accumulate):
        parts = [batch for rank in ranks for batch in rank[first : first + accumulate]]
        by = size * (accumulate if divided else 1)  # what DDP and the Trainer divide by
        assert sums(parts, "loss_scale") / by == pytest.approx(1.0)
        rows = sum(int((batch.weight > 0).sum()) * batch.sequence_scale for batch in parts)
        assert rows / by == pytest.approx(1.0)
        assert {batch.update_num_tokens for batch in parts} == {sum(b.num_tokens for b in parts)}


def test_the_last_update_ends_where_training_ends():
    batches = play(update=UpdateSchedule(4, steps=6))
    last = [batches[step].num_tokens for step in (4, 5)]
    assert [batch.update_num_tokens for batch in batches[4:6]] == [sum(last)] * 2
    assert [batch.loss_scale for batch in batches[8:]] == [0.0] * 5
    assert [batch.loss_scale for batch in play(update=UpdateSchedule(steps=6))[6:]] == [0.0] * 7


def test_an_update_without_tokens_has_scale_0():
    policy = Given(Plan([[0, 0, 0], [1, 0, 0]], offsets=[0, 2], lanes=2))
    (batch,) = play(policy)
    assert (batch.loss_scale, batch.sequence_scale, batch.update_num_tokens) == (0.0, 0.0, 0)
    assert not batch.mask.any()


def test_tuples_and_dicts_of_parts():
    x, lengths = play(as_tuple=("x", "lengths"))[0]
    assert x.shape[0] == len(lengths)
    made = play(as_dict=("y", "mask"))[0]
    assert list(made) == ["y", "mask"]


def test_a_name_that_is_not_there_is_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="loader: no field 'z'"):
        player(as_tuple=("x", "z"))
    with pytest.raises(ConfigError, match=r"loader: no field 'y'.*Choose one of x, lengths"):
        player(fields=["x"], as_tuple=("x", "y"))


def test_parts_that_cannot_tell_dummy_rows_are_refused_where_there_is_some():
    match = (
        r"loader: 13 batches on 4 ranks leave 3 without one, and \('x',\) has no 'weight' "
        r"to mark padding rows. Add 'weight', or pass tail='drop'"
    )
    with pytest.raises(ConfigError, match=match):
        player(as_tuple=("x",), world=World(0, 4))


@pytest.mark.parametrize(
    "options",
    [
        {"world": World(0, 4), "tail": "drop"},
        {"world": World(0, 4), "tail": "repeat"},
        {"world": World(0, 13)},
        {"world": World(0, 1)},
        {"world": World(0, 4), "as_tuple": ("x", "weight")},
        {"world": World(0, 4), "as_tuple": ("x", "score")},
    ],
)
def test_parts_are_fine_without_unmarked_dummy_rows(options):
    assert player(**{"as_tuple": ("x",), **options}).num_steps


def test_the_rest_of_an_epoch_may_leave_dummy_rows_where_the_whole_does_not():
    mine = player(as_tuple=("x",), world=World(0, 13))
    with pytest.raises(ConfigError, match="loader: 12 batches on 13 ranks leave 1 without one"):
        mine.share(0, 1)


@pytest.mark.filterwarnings("ignore:share. 2 lanes on 3 ranks")
def test_ranks_without_lanes_need_the_weight():
    policy = Given(Plan([[0, 0, 2], [1, 0, 2]], offsets=[0, 2], lanes=2))
    with pytest.raises(ConfigError, match="loader: 2 lanes on 3 ranks leave 1 without one"):
        player(policy, as_tuple=("x",), world=World(0, 3))
    assert player(policy, as_tuple=("x",), world=World(0, 2)).num_steps == 1


def test_drop_leaves_the_uneven_step_out_and_repeat_fills_it_again():
    assert [batch.number for batch in play(world=World(1, 4), tail="drop")] == [1, 5, 9]
    assert [batch.number for batch in play(world=World(1, 4), tail="repeat")] == [1, 5, 9, 0]


def test_no_sequence_left_is_an_error():
    empty = MemoryStore.from_sequences([np.zeros(0), np.zeros(0)])
    with pytest.raises(PlanError, match="none of the 2 sequences is left under"):
        player(store=empty)


def test_three_sequences_on_four_ranks():
    store = MemoryStore.from_sequences([[1, 2], [3], [4, 5, 6]])
    ranks = [list(player(Fixed(1), store, world=World(rank, 4)).iterate(0, 0)) for rank in range(4)]
    assert [len(rank) for rank in ranks] == [1] * 4
    seen = [number for (batch,) in ranks for number in batch.real().ids.tolist()]
    assert sorted(seen) == [0, 1, 2]


def test_a_policy_whose_count_is_not_kept_is_refused():
    policy = Given(Plan([[0, 0, 1]], offsets=[0, 1]), batches=2)
    with pytest.raises(
        PlanError, match="epoch 0 must have 2 batches, as `num_batches` returns, but has 1"
    ):
        play(policy)


def test_a_collator_of_ones_own():
    def lengths_only(columns, batch):
        batch.data = {"n": torch.from_numpy(columns["x"].lengths.copy())}
        return batch

    batch = play(collator=lengths_only)[0]
    assert torch.equal(batch["n"], batch.lengths)


def test_a_read_error_says_where_and_comes_after_the_batches_before_it(tmp_path):
    broken = Damaged(STORE, order(play())[7][0])
    given = []
    with pytest.raises(CorruptSampleError) as caught:
        given.extend(player(store=broken).iterate(0, 0))
    assert str(caught.value) == "sequence is damaged\n  epoch 0, batch 7 (step 7, rank 0 of 1)"
    assert caught.value.details == {"sequence": 5, "epoch": 0, "batch": 7, "step": 7, "rank": 0}
    assert caught.value.__cause__ is None  # it is told once
    items = player(store=broken).iterate(0, 0)
    assert order([next(items) for _ in range(7)]) == order(play())[:7]
    with pytest.raises(CorruptSampleError):
        next(items)
    assert ends()


class Damaged:
    """A store that cannot read one sequence."""

    def __init__(self, store, number):
        self.store, self.number = store, number
        self.fields, self.lengths_of = store.fields, store.lengths_of
        self.fingerprint = store.fingerprint

    def __len__(self):
        return len(self.store)

    def base_numbers(self, numbers):
        return numbers

    def keys(self, numbers):
        return self.store.keys(numbers)

    def read(self, spans, fields, *, axis):
        if self.number in spans[:, 0]:
            raise CorruptSampleError.at("sequence is damaged", sequence=5)
        return self.store.read(spans, fields, axis=axis)


def test_nothing_happens_before_the_first_next():
    shown = []
    items = player(on_plan_ready=shown.append, store=Damaged(STORE, 0)).iterate(0, 10**9)
    assert not shown
    assert not list_prefetch_threads()
    items.close()


class Stops(Fixed):
    """A policy whose plan takes from an empty iterator."""

    def plan(self, index, *, seed, epoch):
        return next(iter(()))


@pytest.mark.parametrize(
    ("policy", "where"),
    [
        (Stops(8), "loader"),
        (Mix({"a": Part(1, Stops(8)), "b": Part(1, Fixed(8))}), "policy 'mix'"),
        (Curriculum(Stops(8), [(0, None)], segment=2, batches=4), "stages"),
    ],
)
def test_a_plan_that_raises_stop_iteration_is_named(policy, where):
    data = {"a": STORE, "b": STORE} if isinstance(policy, Mix) else STORE
    with pytest.raises(
        ConfigError,
        match=rf"{where}: `policy` \(\w+\) must return a value, but raised StopIteration",
    ):
        list(Loader(data, policy, prefetch=0))


def test_a_plan_of_zipped_stores_that_raises_stop_iteration_is_named():
    policy = Zip({"a": Stops(8), "b": Fixed(8)}, lead="a")
    with pytest.raises(ConfigError, match=r"`policy` \(\w+\) must return a value, but raised Stop"):
        list(Loader({"a": STORE, "b": STORE}, policy, prefetch=0))
