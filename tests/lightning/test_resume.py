"""A run that stops and goes on is the run that did not stop: with the real Trainer, at every step."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.lightning.harness import Log, Run, data_of, fit

STEPS = 6  # of an epoch of data_of()

WAYS = {
    "max_epochs": {"max_epochs": 3},
    "max_steps": {"max_steps": 15, "max_epochs": -1},
    "limit": {"max_epochs": 3, "limit_train_batches": 4},
    "fraction": {"max_epochs": 3, "limit_train_batches": 0.7},
    "val_interval": {"max_epochs": 3, "val_check_interval": 2},
    "val_steps": {"max_epochs": 3, "val_check_interval": 5, "check_val_every_n_epoch": None},
    "accumulate": {"max_epochs": 3, "accumulate_grad_batches": 4},
    "reload": {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1, "num_sanity_val_steps": 2},
    "every_second_val": {"max_epochs": 4, "check_val_every_n_epoch": 2},
}


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))


def saved_after(path: Path) -> int:
    """Give the training steps behind a checkpoint."""
    loops = torch.load(path)["loops"]["fit_loop"]
    return loops["epoch_loop.batch_progress"]["total"]["processed"]


def assert_goes_on(whole: Run, rest: Run, done: int, *, per_epoch: int) -> None:
    """Assert that ``rest`` did what ``whole`` did after its first ``done`` steps."""
    assert rest.log.train == whole.log.train[done:]
    assert rest.log.steps == whole.log.steps[done:]
    assert rest.log.epochs == [epoch for epoch in whole.log.epochs if epoch * per_epoch >= done]
    assert rest.trainer.global_step == whole.trainer.global_step
    assert rest.model.parameters_of() == whole.model.parameters_of()
    assert later(rest.log, rest.first_step) == later(whole.log, rest.first_step)
    rates = [run.trainer.optimizers[0].param_groups[0]["lr"] for run in (whole, rest)]
    assert rates[0] == rates[1]


def later(log: Log, step: int) -> list[tuple[int, tuple[int, ...]]]:
    """Give the validation batches after optimizer step ``step``."""
    return [entry for entry in log.val if entry[0] > step]


@pytest.mark.parametrize("way", WAYS)
def test_every_step_is_a_place_to_go_on(way, tmp_path):
    whole = fit(data_of(), folder=tmp_path, every=1, **WAYS[way])
    saved = checkpoints(tmp_path)
    assert len(saved) == whole.trainer.global_step
    per_epoch = whole.trainer.num_training_batches
    for path in saved[:-1]:
        rest = fit(data_of(), ckpt=path, **WAYS[way])
        rest.first_step = int(path.stem.split("=")[1])
        assert_goes_on(whole, rest, saved_after(path), per_epoch=per_epoch)
