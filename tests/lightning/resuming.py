"""States and checkpoints of runs, and that a resumed run does what a whole one does."""

from pathlib import Path

import torch

from tests.lightning.harness import Log, Run

SAVED = {
    "version": 1, "epoch": 1, "position": 2, "fingerprint": "f", "data": "d", "policy": "p",
    "seed": 0, "shift": 0, "tail": "fill", "world_size": 2, "accumulate": 1,
    "errors": 0, "transform": "none",
}  # fmt: skip


def list_checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))


def count_steps(path: Path) -> int:
    """Return the training steps behind a checkpoint."""
    loops = torch.load(path)["loops"]["fit_loop"]
    return loops["epoch_loop.batch_progress"]["total"]["processed"]


def assert_goes_on(whole: Run, rest: Run, done: int, *, per_epoch: int) -> None:
    """Assert that ``rest`` did what ``whole`` did after its first ``done`` steps."""
    assert rest.log.train == whole.log.train[done:]
    assert rest.log.steps == whole.log.steps[done:]
    assert rest.log.epochs == [epoch for epoch in whole.log.epochs if epoch * per_epoch >= done]
    assert rest.trainer.global_step == whole.trainer.global_step
    assert rest.model.parameters_of() == whole.model.parameters_of()
    assert list_later(rest.log, rest.first_step) == list_later(whole.log, rest.first_step)
    logged = [run.trainer.fit_loop.epoch_loop._batches_that_stepped for run in (whole, rest)]
    assert logged[0] == logged[1]
    rates = [run.trainer.optimizers[0].param_groups[0]["lr"] for run in (whole, rest)]
    assert rates[0] == rates[1]


def list_later(log: Log, step: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return the validation batches after optimizer step ``step``."""
    return [entry for entry in log.val if entry[0] > step]
