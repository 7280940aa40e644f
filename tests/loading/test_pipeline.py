"""What the batches of a rank count over all ranks, and where their errors are."""

import numpy as np
import pytest

from seqdata import ConfigError, Fixed, Loader, Windows, World
from seqdata.errors import SeqDataError
from seqdata.loading.engine import EpochEngine
from seqdata.loading.options import EngineOptions, UpdateSchedule
from seqdata.sharing import share
from seqdata.storage.memory import MemoryStore

LENGTHS = [3, 1, 4, 1, 5, 9, 2, 6]
STORE = MemoryStore.from_sequences([{"x": np.full(n, n, "f4")} for n in LENGTHS])
PLAN = Fixed(2, shuffle=False)


def batches_of(rank, accumulate, *, is_loss_divided=True, steps=None):
    engine = EpochEngine(STORE, PLAN, EngineOptions(world=World(rank, 2)))
    schedule = UpdateSchedule(accumulate, steps, is_loss_divided)
    steps_of_rank = share(engine.plan(0), World(rank, 2))
    return [
        engine.remake_batch(steps_of_rank, 0, number, schedule)
        for number in range(len(steps_of_rank))
    ]


def test_timesteps_of_a_step_are_those_of_all_ranks():
    for rank in range(2):
        assert [batch.global_num_tokens for batch in batches_of(rank, 1)] == [9, 22]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("is_loss_divided", [True, False])
def test_scaled_sums_of_all_ranks_are_the_mean_over_an_update(accumulate, is_loss_divided):
    """Gradients are averaged over ranks, and losses divided by the batches of an update."""
    by_rank = [batches_of(rank, accumulate, is_loss_divided=is_loss_divided) for rank in range(2)]
    for first in range(0, 2, accumulate):
        update = [batch for own in by_rank for batch in own[first : first + accumulate]]
        divided = 2 * (accumulate if is_loss_divided else 1)
        mean = sum(float(batch["x"].sum()) * batch.loss_scale for batch in update) / divided
        lengths = LENGTHS[4 * first : 4 * (first + accumulate)]
        assert mean == pytest.approx(sum(n * n for n in lengths) / sum(lengths))
        rows = sum(len(batch) * batch.sequence_scale for batch in update) / divided
        assert rows == pytest.approx(1.0)


def test_a_step_after_the_last_update_has_no_weight():
    batches = batches_of(0, 1, steps=1)
    assert [batch.loss_scale > 0 for batch in batches] == [True, False]
    assert batches[1].update_num_tokens == 0


def test_an_error_names_epoch_batch_and_step():
    def transform(sequence, rng):
        if len(sequence["x"]) == 9:
            raise ValueError("nine")
        return sequence

    loader = Loader(STORE, PLAN, transform=transform, prefetch=0, world=World(0, 1))
    with pytest.raises((SeqDataError, ValueError)) as raised:
        list(loader)
    text = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "epoch 0" in text
    assert "batch 2" in text


def test_a_stop_iteration_does_not_end_the_epoch():
    def transform(sequence, rng):
        return next(iter(()))

    with pytest.raises(RuntimeError, match="a transform, collator or dataset must return a value"):
        list(Loader(STORE, PLAN, transform=transform, prefetch=0))


def test_a_layout_that_nobody_knows_is_refused():
    def blocked(columns, batch):
        batch.layout = "blocked"
        return batch

    with pytest.raises(ConfigError, match=r"layout 'blocked' is unknown. Layouts: padded, packed"):
        next(iter(Loader(STORE, PLAN, collator=blocked, prefetch=0)))


def test_a_collator_may_widen_rows_but_not_windows_with_a_horizon():
    def widened(columns, batch):
        batch.padded_length = 64
        return batch

    assert next(iter(Loader(STORE, PLAN, collator=widened, prefetch=0))).mask.shape == (2, 64)
    windows = Windows(size=2, horizon=1, batch_size=2)
    with pytest.raises(ConfigError, match=r"`padded_length` of windows .* must stay .*64"):
        next(iter(Loader(STORE, windows, collator=widened, prefetch=0)))
