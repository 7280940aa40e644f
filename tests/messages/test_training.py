"""Calls in the wrong order, and settings that do not go together, under a Trainer or in a loop."""

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import DataLoader

from seqdata import (
    TBPTT,
    Bucketed,
    ConfigError,
    Fixed,
    LaneStates,
    Loader,
    PlanError,
    PredictionWriter,
    ResumeError,
    SequenceDataModule,
)
from tests.messages.said import rows, says


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 3, batch_first=True)

    def training_step(self, batch, batch_idx):
        out, _ = self.lstm(batch.packed("x"))
        return (out.data**2).sum() * batch.loss_scale

    def predict_step(self, batch, batch_idx):
        return {"probabilities": batch["x"].mean(1)}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(**options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "max_epochs": 1, "accelerator": "cpu"}
    return L.Trainer(**quiet | options)


def data(store, **options):
    return SequenceDataModule(**{"train": store, "batching": Bucketed(4), **options})


@says(ConfigError, "`train`", "Pass it")
def test_a_fit_without_training_data(store):
    trainer().fit(Model(), SequenceDataModule(predict=store))


@says(ConfigError, "nowhere", "Check the path")
def test_a_fit_of_data_that_is_not_there():
    trainer().fit(Model(), data("nowhere"))


@says((ConfigError, MisconfigurationException), "val")
def test_a_validation_without_data(store):
    trainer().validate(Model(), data(store))


@says(ConfigError, "`train`", "one store")
def test_several_named_training_sets(store):
    data({"a": store, "b": store})


@says(ConfigError, "'mel'", "id, x, y")
def test_a_step_that_reads_another_field(store):
    class Reads(Model):
        def training_step(self, batch, batch_idx):
            return batch["mel"].sum()

    trainer().fit(Reads(), data(store))


@says(RuntimeError, "epoch 0, batch 0", "seqdata replay")
def test_a_model_of_another_width(store):
    class Narrow(Model):
        def training_step(self, batch, batch_idx):
            return self.lstm(batch["x"][..., :3])[0].sum()

    trainer(logger=CSVLogger("run"), log_every_n_steps=1).fit(Narrow(), data(store))


@says(ConfigError, "`accumulate_grad_batches`", "2", "`batches_per_update`")
def test_two_accumulations(store):
    trainer(accumulate_grad_batches=2).fit(Model(), data(store, batches_per_update=4))


@says(ConfigError, "`batches_per_update`", "0", "at least 1")
def test_updates_of_no_batch(store):
    data(store, batches_per_update=0)


@says(PlanError, "99", "epoch 0", "3")
def test_a_replay_of_a_batch_beyond_the_last(store):
    data(store).replay(epoch=0, batch=99)


@says(ConfigError, "`batch`", "`step`", "rank")
def test_a_replay_of_no_batch(store):
    data(store).replay(epoch=0)


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"batching": Fixed(3)}, ("`policy`", "Bucketed(batch_size=4", "Fixed(batch_size=3")),
        ({"seed": 5}, ("`seed`", "was 0, but is 5")),
        ({"train": rows(30)}, ("`data`", "on_changed='next_epoch'")),
        ({"shift": 1}, ("`shift`",)),
    ],
    ids=["policy", "seed", "data", "shift"],
)
def test_a_checkpoint_of_another_run(store, changed, parts):
    first = trainer(max_steps=1)
    first.fit(Model(), data(store))
    first.save_checkpoint("last.ckpt")

    @says(ResumeError, *parts, "ckpt_path")
    def resumed():
        trainer().fit(Model(), data(store, **{"train": store, **changed}), ckpt_path="last.ckpt")

    resumed()


@says(ResumeError, "`policy`", "but is 'Fixed(")
def test_a_state_of_another_policy(store):
    Loader(store, Fixed(4)).load_state_dict(Loader(store, Bucketed(4)).state_dict())


@says(ResumeError, "`data`", "new run")
def test_a_state_of_other_data(store):
    Loader(rows(5), Bucketed(4)).load_state_dict(Loader(store, Bucketed(4)).state_dict())


@says(ResumeError, "but has None", "1")
def test_a_state_of_something_else(store):
    Loader(store, Bucketed(4)).load_state_dict({"epoch": 1})


@says(ConfigError, "'logits'", "probabilities")
def test_a_prediction_under_another_name(store, tmp_path):
    writer = PredictionWriter(tmp_path / "out", field="logits")
    trainer(callbacks=[writer]).predict(
        Model(), SequenceDataModule(predict=store), return_predictions=False
    )


@says(ConfigError, "`lanes`", "TBPTT")
def test_states_of_batches_without_lanes(store):
    LaneStates().take(next(iter(Loader(store, Bucketed(4)))))


@says(ConfigError, "(1, 3, 5)", "4 rows", "`dim`")
def test_states_of_fewer_rows(store):
    batch = next(iter(Loader(store, TBPTT(lanes=4, chunk=8))))
    lanes = LaneStates()
    lanes.take(batch)
    lanes.put(batch, torch.zeros(1, 3, 5))


@says(ConfigError, "'y'", "batch['y']")
def test_packing_one_value_per_sequence(store):
    next(iter(Loader(store, Bucketed(4)))).packed("y")


@says(TypeError, "Loader", "store[")
def test_an_index_into_a_loader(store):
    Loader(store, Bucketed(4))[0]


@says(TypeError, "Loader", "iterate")
def test_a_loader_in_a_torch_dataloader(store):
    list(DataLoader(Loader(store, Bucketed(4))))


@says(TypeError, "'Loader' object is not an iterator")
def test_the_next_batch_of_a_loader(store):
    next(Loader(store, Bucketed(4)))
