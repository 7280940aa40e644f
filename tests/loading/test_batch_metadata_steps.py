"""Steps of lanes are described many at once: as each would be by itself, and each with its own."""

import copy

import numpy as np
import pytest
import torch

from seqdata import TBPTT, Bucketed, Loader, Packed, Plan, TokenBudget, Windows, World
from seqdata.loading.batch_metadata import StepPreparer
from seqdata.loading.field_selection import make_reader
from seqdata.loading.options import EngineOptions
from seqdata.sharing import share
from seqdata.storage.memory import MemoryStore

pytestmark = pytest.mark.filterwarnings("ignore:share. .* lanes on:seqdata.SeqDataWarning")
LENGTHS = (4, 9, 3, 12, 7, 5, 11, 6, 3, 8, 40, 1, 1, 2)
STORE = MemoryStore.from_sequences(
    [{"x": np.arange(1, n + 1) + 1000 * k} for k, n in enumerate(LENGTHS)]
)
POLICIES = {
    "queues": TBPTT(5, 4),
    "queues that overlap": TBPTT(5, 4, advance=3),
    "segments": TBPTT(4, 6, segments=True),
    "stream": TBPTT(4, 6, continuous=True),
    "stream that overlaps": TBPTT(4, 6, continuous=True, advance=4),
    "uneven": TBPTT(3, 10, continuous=True, jitter=True),
    "more lanes than timesteps": TBPTT(150, 3, continuous=True),
    "single spans": TBPTT(2, 1, continuous=True),
}
DEALT = {
    "buckets": Bucketed(3),
    "a budget": TokenBudget(90),
    "rows of several sequences": Packed(2, row_length=45),
    "windows": Windows(2, batch_size=3),
}
FIELDS = (
    "lengths", "ids", "weight", "start", "number", "num_tokens", "lanes", "reset", "burn_in",
    "carry", "overlap", "lr_scale", "positions", "segments", "padded_length",
)  # fmt: skip
REQUESTED = ("spans", "ids", "joint_targets", "is_shifted_stream", "horizon", "epoch")
TENSORS = (
    "lengths", "ids", "weight", "start", "positions", "lanes", "reset", "burn_in", "segments",
)  # fmt: skip


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return one == other


def making(policy, shift, together=True):
    reading = make_reader(STORE, "time", EngineOptions(shift=shift), None)
    plan = policy.plan(reading.build_index(), seed=1, epoch=2).with_lookahead(shift)
    return StepPreparer(reading, None, together, together, plan, 2), plan


AT_EVERY_CHANGE = {(1, 0), (1, 1), (3, 1), (2, 3), (7, 0)}


@pytest.mark.parametrize(
    ("shift", "size"),
    [
        pytest.param(
            shift, size, marks=() if (size, shift) in AT_EVERY_CHANGE else (pytest.mark.nightly,)
        )
        for size in (1, 2, 3, 7)
        for shift in (0, 1, 3)
    ],
)
@pytest.mark.parametrize("name", [*POLICIES, *DEALT])
def test_a_run_of_steps_says_of_each_what_is_said_of_it_alone(name, shift, size):
    made, plan = making({**POLICIES, **DEALT}[name], shift)
    for rank in range(size):
        mine = share(plan, World(rank, size))
        number = 0
        while number < len(mine):
            run = made.prepare_from(mine, number)
            for i in range(len(run)):
                one, alone = run.prepare(i), made.prepare(mine[number])
                described, by_itself = run.metadata.batch(i), alone.run.metadata.batch(0)
                for field in FIELDS:
                    found, due = getattr(described, field), getattr(by_itself, field)
                    assert same(found, due), (field, rank, number)
                for field in REQUESTED:
                    found, due = getattr(one.request, field), getattr(alone.request, field)
                    assert same(found, due), (field, rank, number)
                number += 1


def test_a_plan_made_by_hand_is_described_by_runs():
    spans = [[0, 0, 3], [1, 0, 2], [0, 3, 4], [2, 0, 2], [3, 0, 4], [4, 1, 2]]
    plan = Plan(spans, rows=[0, 1, 3, 3, 6], offsets=[0, 2, 4], lanes=2)
    reading = make_reader(STORE, "time", EngineOptions(), None)
    run = StepPreparer(reading, None, True, True, plan, 0).prepare_from(share(plan, World()), 0)
    first, second = run.metadata.batch(0), run.metadata.batch(1)
    assert first.segments.tolist() == [[0, 0, 0, 3], [1, 1, 0, 2], [1, 0, 3, 4]]
    assert second.segments.tolist() == [[1, 2, 0, 2], [1, 3, 0, 4], [1, 4, 1, 2]]
    assert second.ids.tolist() == [-1, 2]
    assert [planned.offsets.tolist() for planned in run.offsets] == [[0, 3, 5, 6], [7, 9, 13, 14]]
    assert [planned.width for planned in run.offsets] == [3, 7]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("shift", [0, 2])
@pytest.mark.parametrize("name", POLICIES)
def test_what_was_planned_lies_where_the_collator_would_lay_it(name, shift, size):
    for rank in range(size):
        world = World(rank, size)
        for batch in Loader(STORE, POLICIES[name], seed=1, shift=shift, prefetch=0, world=world):
            spans = batch.segments
            if spans is None:
                ends = batch.start + batch.lengths
                spans = torch.stack([torch.arange(len(batch)), batch.ids, batch.start, ends], 1)
            due = torch.zeros_like(batch["x"])
            filled = [0] * len(batch)
            for row, number, start, stop in spans.tolist():
                low, high = filled[row], filled[row] + stop - start
                due[row, low:high] = torch.arange(start, stop) + 1 + 1000 * number
                filled[row] = high
            real = torch.arange(due.shape[1]) < batch.lengths[:, None]
            assert torch.equal(batch["x"] * real, due)
            if not shift:
                assert torch.equal(batch["x"], due)  # padding is zero


@pytest.mark.parametrize("name", [*POLICIES, *DEALT])
def test_what_a_user_does_to_a_batch_reaches_no_other_and_no_repetition(name):
    policy, shift = {**POLICIES, **DEALT}[name], int(name in POLICIES)

    def batches():
        return iter(Loader(STORE, policy, seed=1, shift=shift, prefetch=0))

    due = [copy.deepcopy(batch) for batch in batches()]
    loader = Loader(STORE, policy, seed=1, shift=shift, prefetch=0)
    begun = loader.state_dict()
    for again in range(2):
        loader.load_state_dict(begun)
        for batch, must in zip(loader, due, strict=True):
            for field in (*TENSORS, "loss_scale"):
                assert same(getattr(batch, field), getattr(must, field)), (field, again)
            assert torch.equal(batch["x"], must["x"])
            for value in (*(getattr(batch, field) for field in TENSORS), *batch.data.values()):
                if value is not None:
                    value.fill_(1)


@pytest.mark.parametrize("policy", [POLICIES["stream"], *DEALT.values()])
def test_a_tensor_of_a_batch_keeps_and_sends_no_more_than_itself(policy):
    for batch in Loader(STORE, policy, prefetch=0):
        for field in TENSORS:
            value = getattr(batch, field)
            if value is not None:
                assert value.untyped_storage().nbytes() == value.nbytes, field
