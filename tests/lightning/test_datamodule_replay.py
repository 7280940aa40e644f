"""``data.replay``: any batch of any rank made again without a Trainer, and what names none."""

import numpy as np
import pytest

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, PlanError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.packed import Packed
from seqdata.policies.windows import Windows
from seqdata.sharing import World
from tests.lightning.crashing import halved, noisy, told
from tests.lightning.harness import Lanes, sequences


@pytest.mark.parametrize(
    ("policy", "transform"),
    [
        (Bucketed(3), noisy),
        (Fixed(3), halved),
        (Windows(2, batch_size=4, random=True, per_sequence=2), noisy),
        (Packed(2, 12), None),
        (Lanes(6), noisy),
    ],
)
@pytest.mark.parametrize(("world", "first"), [(1, 0), (3, 0), (3, 4)])
def test_every_step_of_every_rank_is_made_again_bit_by_bit(policy, transform, world, first):
    options = {"seed": 5, "transform": transform}
    if isinstance(policy, Packed):
        options["collator"] = "varlen"
    data = SequenceDataModule(train=sequences(40), batching=policy, **options)
    seen = {}
    for rank in range(world):
        loader = Loader(sequences(40), policy, world=World(rank, world), **options)
        loader.load_state_dict({**loader.state_dict(), "position": first})
        steps = range(len(loader) - -(-(batches_of(data) - first) // stride(policy, world)), 999)
        for step, batch in zip(steps, loader, strict=False):
            made = data.replay(epoch=0, step=step, rank=rank, world=world, from_position=first)
            assert told(made) == told(batch)
            if batch.lanes is None and batch.weight.any():
                run = {"world": world, "from_position": first}
                assert told(data.replay(epoch=0, batch=batch.number, **run)) == told(batch)
            seen[step, rank] = batch.number
    assert len(seen) == world * -(-(batches_of(data) - first) // stride(policy, world))


def batches_of(data: SequenceDataModule) -> int:
    return len(data.train_dataloader())


def stride(policy, world: int) -> int:
    return 1 if isinstance(policy, Lanes) else world


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "`batch` is None and `step` is None, but exactly one must"),
        ({"batch": 1, "step": 1}, "`batch` is 1 and `step` is 1, but exactly one must"),
        ({"batch": -1}, "replay: `batch` must be an integer from 0.*, but is -1"),
        ({"batch": 0, "world": 0}, "replay: `world` must be an integer from 1.*, but is 0"),
        ({"batch": 0, "kind": "val"}, "there is no data for `kind` 'val' and `name` None"),
        ({"batch": 0, "kind": "dev"}, "there is no data for `kind` 'dev' and `name` None"),
        (
            {"batch": 0, "name": "a"},
            "there is no data for `kind` 'train' and `name` 'a'. train has None",
        ),
        ({"step": 0, "rank": 3, "world": 2}, r"`rank` must be in \[0, 2\), but is 3"),
    ],
)
def test_what_names_no_batch_is_refused(asked, message):
    data = SequenceDataModule(train=sequences(9), batching=Bucketed(3))
    with pytest.raises(ConfigError, match=message):
        data.replay(epoch=0, **asked)


def test_batches_past_the_epoch_are_refused():
    data = SequenceDataModule(train=sequences(9), batching=Bucketed(3))
    with pytest.raises(
        PlanError,
        match=r"`batch` must be below 3, the number of batches of the plan, but is 3 in epoch 4",
    ):
        data.replay(epoch=4, batch=3)
    with pytest.raises(
        PlanError, match=r"`step` must be in \[0, 2\), the steps of 2 ranks.*, but is 2 in epoch 0"
    ):
        data.replay(epoch=0, step=2, rank=0, world=2)


def test_a_dropped_batch_can_still_be_looked_at():
    data = SequenceDataModule(train=sequences(9), batching=Bucketed(3), tail="drop")
    made = data.replay(epoch=0, batch=2, world=2)
    assert isinstance(made, SequenceBatch)
    assert made.number == 2


def test_lanes_are_replayed_as_one_batch_or_by_rank():
    data = SequenceDataModule(train=sequences(20), batching=Lanes(4), seed=1)
    whole = data.replay(epoch=0, batch=2)
    part = data.replay(epoch=0, batch=2, rank=1, world=2)
    assert (whole.lanes.tolist(), part.lanes.tolist()) == ([0, 1, 2, 3], [2, 3])
    assert np.array_equal(whole.ids[2:], part.ids)
