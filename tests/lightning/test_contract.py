"""What the Trainer does to loaders and DataModules, item by item, and that it harms nothing."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.tuner import Tuner

from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.trainer_loader import MARKER, TrainerLoader
from seqdata.policies.fixed import Bucketed, Fixed
from tests.lightning.harness import QUIET, Recorder, data_of, fit, quietly, sequences
from tests.samples import list_prefetch_threads


class Looker(Callback):
    """Looks into loaders wherever it is called, as users do."""

    def look(self, trainer):
        for loader in (trainer.train_dataloader, trainer.datamodule.train_dataloader()):
            if loader is not None:
                iter(loader)
        next(iter(trainer.datamodule.train_dataloader()))
        str(trainer.datamodule)

    def on_fit_start(self, trainer, module):
        self.look(trainer)

    def on_train_epoch_start(self, trainer, module):
        self.look(trainer)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.look(trainer)


def test_looking_into_loaders_moves_nothing(tmp_path):
    whole = fit(data_of(), max_epochs=2)
    looked = fit(data_of(), max_epochs=2, callbacks=(Looker(),), folder=tmp_path, every=1)
    assert looked.log.train == whole.log.train
    assert looked.log.val == whole.log.val
    rest = fit(data_of(), max_epochs=2, callbacks=(Looker(),), ckpt=tmp_path / "step=8.ckpt")
    assert rest.log.train == whole.log.train[8:]


@pytest.mark.slow
def test_drawing_a_batch_from_the_trainers_own_loader_in_mid_epoch_moves_nothing(tmp_path):
    """As people do to log an example; whoever draws there sees the batch that is trained next."""

    class Drawing(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            self.look(trainer, batch.number)

        def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
            next(iter(trainer.val_dataloaders))
            next(iter(trainer.train_dataloader))

        def look(self, trainer, number):
            loader = trainer.train_dataloader
            before = loader.last_batch
            assert next(iter(loader)).number == number
            assert loader.last_batch == before

    options = {"max_epochs": 2, "val_check_interval": 2}
    whole = fit(data_of(), folder=tmp_path / "whole", every=1, **options)
    looked = fit(data_of(), callbacks=(Drawing(),), folder=tmp_path / "own", every=1, **options)
    assert looked.log == whole.log
    for step in (2, 6, 9):
        states = [
            torch.load(tmp_path / name / f"step={step}.ckpt")["SequenceDataModule"]
            for name in ("whole", "own")
        ]
        assert states[0] == states[1]
        path = tmp_path / "own" / f"step={step}.ckpt"
        rest = fit(data_of(), callbacks=(Drawing(),), ckpt=path, **options)
        assert rest.log.train == whole.log.train[step:]


def test_a_second_fit_of_one_trainer_goes_on_with_the_next_epoch():
    whole = fit(data_of(), max_epochs=3)
    run = fit(data_of(), max_epochs=1)
    run.trainer.fit_loop.max_epochs = 3
    run.trainer.fit(run.model, datamodule=run.data)
    assert run.log.train == whole.log.train


def test_another_trainer_begins_from_the_start():
    data = data_of()
    first, second = fit(data, max_epochs=2), fit(data, max_epochs=2)
    assert first.log.train == second.log.train


def test_an_epoch_that_is_left_early_is_not_taken_up_again():
    class Leaving(Recorder):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if self.current_epoch == 0 and batch_idx == 2 else None

    run = fit(data_of(), model=Leaving(), max_epochs=2)
    assert [entry[:2] for entry in run.log.train] == [(0, 0), (0, 1), *[(1, k) for k in range(6)]]


def test_an_interrupted_epoch_is_abandoned_by_the_next_fit():
    run = fit(data_of(), model=Recorder(fail_at=2), max_epochs=2)
    run.model.fail_at = None
    run.trainer.fit_loop.max_epochs = 3
    run.trainer.fit(run.model, datamodule=run.data)
    assert run.log.train[2][:2] == (1, 0)


def test_the_loader_shows_lightning_nothing_to_rebuild():
    loader = fit(data_of(), max_epochs=1).trainer.train_dataloader
    assert not isinstance(loader, torch.utils.data.DataLoader)
    assert not {"sampler", "batch_sampler", "dataset", "worker_init_fn"} & set(dir(loader))


@pytest.mark.parametrize("injected", [True, False])
def test_loaders_pass_through_the_trainer_untouched(injected):
    run = fit(data_of(), max_epochs=1, use_distributed_sampler=injected)
    assert isinstance(run.trainer.train_dataloader, TrainerLoader)
    assert isinstance(run.trainer.val_dataloaders, TrainerLoader)
    assert run.log.train == fit(data_of(), max_epochs=1).log.train


def test_the_length_is_exact_and_the_same_in_every_epoch():
    run = fit(data_of(), max_epochs=3)
    assert run.trainer.num_training_batches == 6
    assert len(run.trainer.train_dataloader) == 6
    assert run.trainer.estimated_stepping_batches == 18
    assert [entry[0] for entry in run.log.train] == [0] * 6 + [1] * 6 + [2] * 6


def test_the_loaders_state_is_a_constant_marker():
    class Loading(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            trainer.train_dataloader.load_state_dict({"whatever": 1})
            assert trainer.train_dataloader.state_dict() == MARKER

    run = fit(data_of(), callbacks=(Loading(),), max_epochs=2)
    assert run.log.train == fit(data_of(), max_epochs=2).log.train


def test_overfitting_sees_the_same_batches_for_ever():
    run = fit(data_of(val=9), max_epochs=3, overfit_batches=2)
    batches = [ids for _, _, ids in run.log.train]
    assert batches[:2] == batches[2:4] == batches[4:]
    assert {epoch for epoch, _, _ in run.log.train} == {0}
    validated = [ids for _, ids in run.log.val]
    assert validated[:2] == validated[2:4]


def test_overfitting_is_not_shuffled():
    data = data_of(batching=Fixed(4))
    run = fit(data, max_epochs=1, overfit_batches=2)
    assert [ids for _, _, ids in run.log.train] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_seeding_workers_changes_neither_order_nor_loader(monkeypatch):
    plain = fit(data_of(), max_epochs=1)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    pl.seed_everything(11, workers=True, verbose=False)
    assert fit(data_of(), max_epochs=1).log.train == plain.log.train


def test_without_a_seed_that_of_seed_everything_is_taken(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    taken = fit(data_of(seed=None), max_epochs=1)
    monkeypatch.delenv("PL_GLOBAL_SEED")
    assert taken.log.train == fit(data_of(seed=5), max_epochs=1).log.train
    assert (
        fit(data_of(seed=None), max_epochs=1).log.train
        == fit(data_of(seed=0), max_epochs=1).log.train
    )


def test_setup_may_be_called_again_at_any_time():
    data = data_of()
    run = fit(data, max_epochs=1)
    data.setup("fit")
    run.trainer.fit_loop.max_epochs = 2
    run.trainer.fit(run.model, datamodule=data)
    assert run.log.train == fit(data_of(), max_epochs=2).log.train


def test_the_state_is_small_and_of_primitives(tmp_path):
    fit(data_of(), folder=tmp_path, every=1, max_epochs=1)
    state = torch.load(tmp_path / "step=2.ckpt", weights_only=True)["SequenceDataModule"]
    assert (state["epoch"], state["position"]) == (0, 2)
    assert {type(value) for value in state.values()} == {int, str}
    assert len(repr(state)) < 1000


def test_only_a_fit_takes_the_state_up(tmp_path):
    whole = fit(data_of(), folder=tmp_path, every=1, max_epochs=1)
    data = data_of()
    trainer = pl.Trainer(**QUIET)
    with quietly():
        trainer.validate(Recorder(), datamodule=data, ckpt_path=str(tmp_path / "step=3.ckpt"))
    assert fit(data, max_epochs=1).log.train == whole.log.train


def test_only_a_fit_takes_the_state_up_between_two_fits(tmp_path):
    run = fit(data_of(), folder=tmp_path, every=1, max_epochs=1)
    with quietly():
        run.trainer.validate(
            run.model, datamodule=run.data, ckpt_path=str(tmp_path / "step=3.ckpt")
        )
        run.trainer.fit_loop.max_epochs = 2
        run.trainer.fit(run.model, datamodule=run.data)
    assert run.log.train == fit(data_of(), max_epochs=2).log.train


def test_a_datamodule_may_be_made_from_a_checkpoint(tmp_path):
    whole = fit(data_of(), folder=tmp_path, every=1, max_epochs=1)
    data = SequenceDataModule.load_from_checkpoint(
        str(tmp_path / "step=3.ckpt"), train=sequences(23), seed=3,
        batching=Bucketed(4, balance_ranks=2),
    )  # fmt: skip
    assert fit(data, max_epochs=1).log.train == whole.log.train


def test_no_thread_is_left_after_a_fit_an_error_or_a_limit():
    fit(data_of(), max_epochs=1, limit_train_batches=2)
    assert not list_prefetch_threads()
    failed = fit(data_of(), model=Recorder(fail_at=1), max_epochs=1)
    assert failed.error is not None
    assert not list_prefetch_threads()


def test_printing_has_no_effect():
    data = data_of(val=None)
    assert str(data).startswith("SequenceDataModule(train; Bucketed(batch_size=4")
    assert fit(data, max_epochs=1).log.train == fit(data_of(), max_epochs=1).log.train


def test_no_data_hook_of_the_module_is_overridden():
    for hook in ("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer"):
        assert getattr(SequenceDataModule, hook) is getattr(pl.LightningDataModule, hook)


def test_a_batch_survives_half_precision():
    seen = []

    class Half(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            seen.append(batch)
            return self.layer(batch["x"]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    fit(data_of(val=None), model=Half(), max_epochs=1, precision="bf16-true")
    assert {batch["x"].dtype for batch in seen} == {torch.bfloat16}
    assert {batch.lengths.dtype for batch in seen} == {torch.int64}


def test_the_learning_rate_finder_gives_the_epoch_back():
    data, model = data_of(val=None), Recorder()
    model.lr = 0.1
    trainer = pl.Trainer(**{**QUIET, "max_epochs": 1, "enable_checkpointing": False})
    with quietly():
        Tuner(trainer).lr_find(model, datamodule=data, num_training=4, min_lr=1e-3, max_lr=1e-2)
        model.log_of.train.clear()
        trainer.fit(model, datamodule=data)
    assert model.log_of.train == fit(data_of(val=None), max_epochs=1).log.train


def test_the_batch_size_finder_says_that_there_is_no_batch_size():
    trainer = pl.Trainer(**QUIET, max_epochs=1)
    with (
        quietly(),
        pytest.raises(pl.utilities.exceptions.MisconfigurationException, match="batch_size"),
    ):
        Tuner(trainer).scale_batch_size(Recorder(), datamodule=data_of())
