"""Several fits of one Trainer are one run: epochs, weights and the Trainer's settings go on."""

import functools

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint

from seqdata.errors import ConfigError, ResumeError, SeqDataWarning
from seqdata.lightning.callbacks.feedback import Feedback
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.weighted import Weighted
from tests.lightning.feeding import Feeding
from tests.lightning.harness import QUIET, Recorder, data_of, fit, quietly, sequences


def weighted(**options):
    return data_of(30, batching=Weighted(Bucketed(2)), **options)


def trainer_of(*callbacks, **options):
    defaults = {"max_epochs": 3, "default_root_dir": ".", "enable_checkpointing": False}
    return pl.Trainer(**{**QUIET, **defaults, "callbacks": list(callbacks), **options})


def fit_again(run, epochs, **options):
    run.trainer.fit_loop.max_epochs = epochs
    with quietly():
        run.trainer.fit(run.model, datamodule=run.data, **options)


class Stateless(Feeding):
    """Its optimizer has no state, since Lightning makes another one for each fit."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Indifferent(Stateless):
    """Returns the same score for every row, so that weights do not change."""

    def training_step(self, batch, batch_idx):
        found = super().training_step(batch, batch_idx)
        return {**found, "row_loss": torch.ones_like(found["row_loss"])}


def feed(model=None, **options):
    callbacks = (Feedback("row_loss", 5),)
    return fit(weighted(), model=model or Stateless(), callbacks=callbacks, **options)


@functools.cache
def trained_in_four_epochs(model=Stateless):
    return tuple(feed(max_epochs=4, model=model()).log.train)


@pytest.mark.parametrize("between", [None, "validate", "test"])
def test_weights_go_on_in_a_second_fit_whatever_ran_between(between):
    run = feed(max_epochs=2)
    with quietly():
        if between == "validate":
            run.trainer.validate(run.model, run.data, verbose=False)
        elif between == "test":
            data = weighted(test=[torch.ones(3, 1)])
            pl.Trainer(**QUIET).test(run.model, data, verbose=False)
    fit_again(run, 4)
    assert tuple(run.log.train) == trained_in_four_epochs()
    assert tuple(run.log.train) != trained_in_four_epochs(Indifferent)


def test_errors_may_be_listed_elsewhere_in_a_test_between_two_fits(tmp_path):
    options = {"on_error": "mask", "test": [torch.ones(3, 1).numpy()]}
    whole = fit(data_of(**options), max_epochs=3)
    run = fit(data_of(**options), max_epochs=2)
    with quietly():
        other = pl.Trainer(**{**QUIET, "default_root_dir": tmp_path})
        other.test(Recorder(), run.data, verbose=False)
    fit_again(run, 3)
    assert run.log.train == whole.log.train


def test_other_data_under_a_trainer_that_has_trained_is_warned_of(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    run = fit(data_of(seed=None), max_epochs=1)
    monkeypatch.setenv("PL_GLOBAL_SEED", "6")
    said = "is at step 6, but its data begins at epoch 0: data, seed, ranks or Trainer differ"
    with pytest.warns(SeqDataWarning, match=said):
        fit_again(run, 2)


def test_scores_of_a_fit_that_failed_are_not_those_of_the_resumed_one(tmp_path):
    saves = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=5, save_top_k=-1)
    whole = feed(max_epochs=1)
    run = fit(
        weighted(), model=Stateless(9), callbacks=(Feedback("row_loss", 5), saves), max_epochs=1,
        enable_checkpointing=True,
    )  # fmt: skip
    assert run.error is not None
    run.model.fail_at = None
    run.log.train.clear()
    fit_again(run, 1, ckpt_path=tmp_path / "step=5.ckpt")
    assert run.log.train == whole.log.train[5:]


def growing():
    return data_of(64, batching=Curriculum(Bucketed(4), [(0, 3), (1, 6), (2, None)]))


def test_epochs_of_unequal_length_go_on_in_full():
    whole = fit(growing(), max_epochs=4, reload_dataloaders_every_n_epochs=1)
    run = fit(growing(), max_epochs=4, max_steps=3, reload_dataloaders_every_n_epochs=1)
    run.trainer.fit_loop.epoch_loop.max_steps = -1
    fit_again(run, 4)
    assert run.log.train[:3] == whole.log.train[:3]
    assert run.log.train[3:] == [entry for entry in whole.log.train if entry[0] > 0]


def test_epochs_of_unequal_length_are_checked_before_each_fit():
    run = fit(growing(), max_epochs=1)
    with pytest.raises(ConfigError, match=r"Pass Trainer.reload_dataloaders_every_n_epochs=1"):
        fit_again(run, 4)


def test_an_update_that_a_callback_schedules_is_as_large_after_a_resume(tmp_path):
    def scheduled(**options):
        schedule = GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})
        return fit(data_of(40), callbacks=(schedule,), max_epochs=3, **options)

    whole = scheduled(folder=tmp_path, every=1)
    rest = scheduled(ckpt=tmp_path / "step=14.ckpt")
    assert rest.trainer.global_step == whole.trainer.global_step
    assert rest.model.parameters_of() == whole.model.parameters_of()
    assert rest.log.train == whole.log.train[-len(rest.log.train) :]
    assert rest.log.train[0][:2] == (1, 8)  # ten updates in epoch 0, four of two steps in epoch 1


@pytest.mark.parametrize("batches", [None, 2])
def test_the_size_of_an_update_does_not_outlive_a_fit_that_failed(batches):
    model = Recorder(fail_at=3)
    run = fit(data_of(batches_per_update=4), model=model, max_epochs=1)
    assert run.error is not None
    assert run.trainer.accumulate_grad_batches == 1
    run.model.fail_at, run.data = None, data_of(batches_per_update=batches)
    fit_again(run, 1)
    assert run.trainer.global_step == 6 // (batches or 1)


def test_a_rest_of_which_nothing_was_trained_is_abandoned(tmp_path):
    whole = fit(data_of(), folder=tmp_path, every=1, max_epochs=2)
    run = fit(data_of(), model=Recorder(fail_at=0), ckpt=tmp_path / "step=4.ckpt", max_epochs=2)
    assert run.error is not None
    run.model.fail_at = None
    fit_again(run, 2)
    assert [entry[:2] for entry in run.log.train[:6]] == [(1, number) for number in range(6)]
    fit_again(run, 2, ckpt_path=tmp_path / "step=4.ckpt")
    assert run.log.train[-8:] == whole.log.train[4:]


class Forgetful(SequenceDataModule):
    def setup(self, stage):
        self.classes = 2


@pytest.mark.parametrize("stage", ["fit", "validate"])
def test_a_setup_that_does_not_call_that_of_its_class_is_an_error(stage):
    data = Forgetful(train=[[[1.0]]], val=[[[1.0]]])
    said = r"`Forgetful.setup` must call `super\(\).setup\(stage\)`, which opens the data"
    with quietly(), pytest.raises(ConfigError, match=said):
        getattr(trainer_of(), stage)(Recorder(), datamodule=data)


def test_a_loader_without_its_datamodule_cannot_resume(tmp_path):
    def run(**options):
        saves = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
        trainer = trainer_of(saves, max_epochs=1, enable_checkpointing=True)
        with quietly():
            trainer.fit(Recorder(), data_of(val=None).train_dataloader(), **options)

    run()
    with pytest.raises(ResumeError, match="Pass the DataModule, as `datamodule`, to save and"):
        run(ckpt_path=tmp_path / "step=3.ckpt")


LOADERS = {
    "datamodule": lambda: data_of(val=None).train_dataloader(),
    "loader": lambda: Loader(sequences(12), Bucketed(4)),
}


@pytest.mark.parametrize("kind", list(LOADERS))
def test_a_loader_without_a_datamodule_goes_on_after_an_epoch(kind, tmp_path):
    def run(epochs, **options):
        saves = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        trainer = trainer_of(saves, max_epochs=epochs, enable_checkpointing=True)
        model = Recorder()
        with quietly():
            trainer.fit(model, LOADERS[kind](), **options)
        return model.log_of.train

    whole = run(3)
    rest = run(3, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert rest == [entry for entry in whole if entry[0] == 2]
    assert len(whole) == 3 * len(rest)


class Both(SequenceDataModule):
    def val_dataloader(self):
        return [super().val_dataloader(), self.test_dataloader()]


def test_loaders_of_another_stage_are_made_when_they_are_asked_for():
    data = Both(train=sequences(2), val=sequences(1), test=sequences(2), batching=Fixed(2))
    model = Recorder()
    with quietly():
        trainer_of(max_epochs=1).fit(model, datamodule=data)
    assert [ids for _, ids in model.log_of.val] == [(0,), (0, 1)]


def test_a_fit_goes_on_after_a_fit_that_was_refused():
    options = {"reload_dataloaders_every_n_epochs": 1}
    batching = Weighted(Curriculum(Bucketed(2), [(0, None)]))
    run = fit(data_of(30, batching=batching), max_epochs=1, **options)
    trainer = trainer_of(Feedback("row_loss", 5), **options)
    with quietly(), pytest.raises(ConfigError, match="Curriculum"):
        trainer.fit(Stateless(), datamodule=run.data)
    fit_again(run, 2)
    assert [entry[0] for entry in run.log.train] == [0] * 15 + [1] * 15


class Replacing(Stateless):
    """Its callbacks are new ones in each fit."""

    score = "row_loss"

    def configure_callbacks(self):
        return [Feedback(self.score, 5)]


def test_feedback_of_a_module_goes_on_in_a_second_fit():
    whole = fit(weighted(), model=Replacing(), max_epochs=4)
    run = fit(weighted(), model=Replacing(), max_epochs=2)
    fit_again(run, 4)
    assert run.log.train == whole.log.train
    assert tuple(run.log.train) == trained_in_four_epochs()


def test_another_score_of_a_second_fit_begins_without_scores():
    def twice(second):
        run = fit(weighted(), model=Replacing(), max_epochs=1, max_steps=4)
        run.model.score = second
        run.trainer.fit_loop.epoch_loop.max_steps = -1
        fit_again(run, 3)
        return run.log.train

    assert twice("row_loss") == twice("row_loss") != twice("loss")


def test_the_length_of_an_epoch_is_that_of_its_batches_after_a_failed_resume(tmp_path):
    options = {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 4}
    whole = fit(growing(), folder=tmp_path, every=1, **options)
    number = sum(entry[0] == 0 for entry in whole.log.train) + 2
    ckpt = tmp_path / f"step={number}.ckpt"
    run = fit(growing(), model=Recorder(fail_at=0), ckpt=ckpt, **options)
    assert run.error is not None
    run.model.fail_at = None
    fit_again(run, 3)
    assert run.log.train == [entry for entry in whole.log.train if entry[0] > 1]


class Unstarted(Recorder):
    hook = ""

    def on_fit_start(self):
        if self.hook == "on_fit_start":
            raise OSError("not ready")

    def on_train_start(self):
        if self.hook == "on_train_start":
            raise OSError("not ready")

    def on_train_epoch_start(self):
        if self.hook == "on_train_epoch_start":
            raise OSError("not ready")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of the checkpoints of a run, and what was trained."""
    folder = tmp_path_factory.mktemp("whole")
    run = fit(data_of(), folder=folder, every=2, max_epochs=2, default_root_dir=folder)
    return folder, run.log.train


@pytest.mark.parametrize("step", [4, 6])
@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_start", "on_train_epoch_start"])
def test_a_resume_that_failed_before_its_first_batch_goes_on(whole, step, hook):
    folder, trained = whole
    model = Unstarted()
    model.hook = hook
    run = fit(data_of(), model=model, ckpt=folder / f"step={step}.ckpt", max_epochs=2)
    assert "not ready" in str(run.error)
    model.hook = ""
    fit_again(run, 2)
    assert run.log.train == trained[step:]
