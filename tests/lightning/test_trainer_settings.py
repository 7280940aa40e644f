"""Limits of a Trainer that other ranks, or another clock, would meet after other batches."""

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from seqdata import Fixed, SequenceDataModule
from seqdata.errors import ResumeError, SeqDataWarning
from seqdata.lightning.trainer_settings import check_limits
from tests.lightning.harness import QUIET, data_of, fit, quietly


def make_trainer(**options):
    with quietly():
        return pl.Trainer(**QUIET, max_epochs=1, **options)


@pytest.mark.parametrize("name", ["limit_train_batches", "val_check_interval"])
def test_a_limit_in_steps_is_refused_on_other_ranks(name):
    with pytest.raises(
        ResumeError, match=f"`{name}` must be a fraction, but is 4 steps, which have"
    ):
        check_limits(make_trainer(**{name: 4}), 2, 1)
    check_limits(make_trainer(**{name: 0.5}), 2, 1)


def test_validations_within_an_update_or_by_the_clock_are_warned_of():
    options = {"folder": None, "max_epochs": 1, "accumulate_grad_batches": 2}
    with pytest.warns(SeqDataWarning, match="every 3 steps is not a multiple of the 2 steps of an"):
        fit(data_of(), val_check_interval=3, **options)
    with pytest.warns(SeqDataWarning, match=r"is a time of 60 seconds: .*Pass steps or a fraction"):
        fit(data_of(), val_check_interval="00:00:01:00", **options)
    fit(data_of(), val_check_interval=4, **options)


class Ends(pl.LightningModule):
    """Notes for each step whether the batch ends its update, and whether the Trainer stepped."""

    def __init__(self):
        super().__init__()
        self.layer, self.noted, self.before = torch.nn.Linear(1, 1), [], 0

    def training_step(self, batch, batch_idx):
        self.before = self.trainer.global_step
        return self.layer(batch["x"][:, :1].float()).sum() * batch.sequence_scale

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.noted.append((batch.ends_update, self.trainer.global_step > self.before))

    def validation_step(self, batch, batch_idx):
        assert batch.ends_update

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.filterwarnings("ignore:.*validation every:seqdata.errors.SeqDataWarning")
@pytest.mark.parametrize("limit", [1.0, 0.5, 7])
@pytest.mark.parametrize("accumulate", [1, 3, 4])
@pytest.mark.parametrize("is_set", ["by the Trainer", "by the DataModule"])
def test_ends_update_is_where_the_trainer_steps(limit, accumulate, is_set):
    rows = [np.ones((2, 1), "float32")] * 20
    own = {"batches_per_update": accumulate} if is_set == "by the DataModule" else {}
    data = SequenceDataModule(train=rows, val=rows[:3], batching=Fixed(2), **own)
    model = Ends()
    options = {} if own else {"accumulate_grad_batches": accumulate}
    with quietly():
        pl.Trainer(**QUIET, max_epochs=2, limit_train_batches=limit, **options).fit(model, data)
    assert len(model.noted) == 2 * {1.0: 10, 0.5: 5, 7: 7}[limit]
    assert all(ends == stepped for ends, stepped in model.noted)
