"""Searches of Lightning, and other runs of the Trainer beside a fit, leave the fit as it is."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.tuner import Tuner

from seqdata.errors import ConfigError, SeqDataWarning
from tests.lightning.harness import QUIET, Recorder, data_of, fit, quietly


class WithRate(Recorder):
    """Its rate is searched."""

    def __init__(self, batch_size=4):
        super().__init__()
        self.lr = 0.1
        self.batch_size = batch_size

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Search(LearningRateFinder):
    """Searches before a fit, or where an epoch begins, and keeps the rate."""

    def __init__(self, epoch=None):
        super().__init__(num_training_steps=3, max_lr=1e-2, update_attr=False)
        self.epoch = epoch
        self.count = 0

    def lr_find(self, trainer, pl_module):
        seen = len(pl_module.log_of.train)
        super().lr_find(trainer, pl_module)
        self.count += 1
        del pl_module.log_of.train[seen:]  # what the search trained

    def on_fit_start(self, trainer, pl_module):
        if self.epoch is None:
            super().on_fit_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == self.epoch:
            self.lr_find(trainer, pl_module)


@pytest.fixture
def whole(tmp_path):
    """A whole fit, with a checkpoint in the middle of each epoch and at its end."""
    options = {"model": WithRate(), "folder": tmp_path / "saved", "every": 3, "max_epochs": 3}
    return fit(data_of(), **options)


def assert_the_rest(whole, rest, done):
    assert rest.log.train == whole.log.train[done:]
    assert rest.model.parameters_of() == whole.model.parameters_of()


@pytest.mark.parametrize("steps", [3, 6, 9])
@pytest.mark.parametrize(
    ("search", "advice"),
    [(Search, "the optimizers .* Fit without `ckpt_path`"), (BatchSizeFinder, ".* Leave it out")],
)
def test_a_resumed_fit_does_not_search_again_and_says_so(whole, search, advice, steps, tmp_path):
    search, said = search(), "does not search again in a fit with `ckpt_path`: "
    with pytest.warns(SeqDataWarning, match=said + advice):
        rest = fit(
            data_of(), model=WithRate(), callbacks=(search,), max_epochs=3,
            ckpt=tmp_path / "saved" / f"step={steps}.ckpt",
        )  # fmt: skip
    assert_the_rest(whole, rest, steps)
    assert "on_fit_start" not in vars(search)


def test_a_search_before_a_fit_trains_all_of_it(whole):
    search = Search()
    assert_the_rest(whole, fit(data_of(), model=WithRate(), callbacks=(search,), max_epochs=3), 0)
    assert search.count == 1


@pytest.mark.parametrize("steps", [3, 6])
def test_a_search_where_a_later_epoch_begins_leaves_the_position(whole, steps, tmp_path):
    search, path = Search(epoch=2), tmp_path / "saved" / f"step={steps}.ckpt"
    with pytest.warns(SeqDataWarning, match="does not search again"):
        rest = fit(data_of(), model=WithRate(), callbacks=(search,), max_epochs=3, ckpt=path)
    assert search.count == 1
    assert_the_rest(whole, rest, steps)


def test_a_tuner_before_a_resumed_fit_leaves_it_as_it_is(whole, tmp_path):
    model, data = WithRate(), data_of()
    with quietly():
        trainer = pl.Trainer(**QUIET, max_epochs=3, default_root_dir=tmp_path)
        Tuner(trainer).lr_find(model, datamodule=data, num_training=3, update_attr=False)
        model.log_of.train.clear()
        trainer.fit(model, data, ckpt_path=tmp_path / "saved" / "step=9.ckpt")
    assert model.log_of.train == whole.log.train[9:]
    assert model.parameters_of() == whole.model.parameters_of()


def test_a_search_of_the_batch_size_is_refused_since_the_policy_has_it():
    finder = BatchSizeFinder(steps_per_trial=1)
    with pytest.raises(
        ConfigError, match=r"batch size .* is in its policy, `batching`.*Leave it out"
    ):
        fit(data_of(), model=WithRate(), callbacks=(finder,), max_epochs=1)


@pytest.mark.parametrize("run", ["validate", "test", "predict"])
@pytest.mark.parametrize("steps", [3, 6])
def test_another_run_of_the_trainer_before_a_resumed_fit_leaves_it_as_it_is(
    whole, run, steps, tmp_path
):
    model = WithRate()
    data = data_of(test=[torch.ones(3, 1).double().numpy()], predict=[torch.ones(2, 1).numpy()])
    with quietly():
        trainer = pl.Trainer(**QUIET, max_epochs=3, default_root_dir=tmp_path)
        getattr(trainer, run)(model, data)
        trainer.fit(model, data, ckpt_path=tmp_path / "saved" / f"step={steps}.ckpt")
        getattr(trainer, run)(model, data)
    assert model.log_of.train == whole.log.train[steps:]
    assert model.parameters_of() == whole.model.parameters_of()


@pytest.mark.parametrize("run", ["validate", "test", None])
def test_fits_of_one_datamodule_with_runs_between_them_are_one_fit(whole, run, tmp_path):
    model, data = WithRate(), data_of(test=[torch.ones(3, 1).double().numpy()])
    with quietly():
        trainer = pl.Trainer(**QUIET, max_epochs=1, default_root_dir=tmp_path)
        for epochs in (1, 2, 3):
            trainer.fit_loop.max_epochs = epochs
            trainer.fit(model, data)
            if run is not None:
                getattr(trainer, run)(model, data)
    assert model.log_of.train == whole.log.train
