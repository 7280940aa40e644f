"""States and checkpoints of runs, and that a resumed run does what a whole one does."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from seqdata import write_store
from seqdata.plan import PLAN_VERSION
from seqdata.runs.run_file import NAME
from tests.lightning.harness import QUIET, Log, Recorder, Run, quietly
from tests.runs.run_files import read_run_file

SAVED = {
    "version": 1, "epoch": 1, "position": 2, "fingerprint": "f", "data": "d", "policy": "p",
    "seed": 0, "shift": 0, "tail": "fill", "world_size": 2, "accumulate": 1,
    "errors": 0, "transform": "none", "balance_ranks": 2, "plan_version": PLAN_VERSION,
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


def write_parts(folder: Path, named: Mapping[str, Iterable[Any]]) -> dict[str, Path]:
    """Write each part as a store; return their paths."""
    for name, part in named.items():
        write_store(folder / name, part)
    return {name: folder / name for name in named}


def find_replayable_run(folder: Path, parts: Sequence[str]) -> Path:
    """Return the one run file below a folder: of these parts, and all of it can be replayed."""
    (path,) = folder.rglob(NAME)
    plain = read_run_file(path)
    assert list(plain["data"]["train"]) == parts
    assert plain["not_replayable"] == []
    return path


def fit_saving_steps(
    model: Recorder, folder: Path, data: pl.LightningDataModule, *, resume: Path | None = None,
    callbacks: Iterable[pl.Callback] = (), **options: Any,
) -> Recorder:  # fmt: skip
    """Return the model after a fit that saves each step, or after the error it was told to have."""
    saving = ModelCheckpoint(dirpath=folder, every_n_train_steps=1, filename="at", save_top_k=1)
    settings = {**QUIET, "max_epochs": 2, "default_root_dir": folder, **options}
    trainer = pl.Trainer(**settings, callbacks=[saving, *callbacks])
    with quietly():
        if model.fail_at is None:
            trainer.fit(model, data, ckpt_path=resume)
        else:
            with pytest.raises(OSError, match="told to fail"):
                trainer.fit(model, data, ckpt_path=resume)
    return model


def assert_a_failed_fit_goes_on(fit: Callable[..., Recorder], folder: Path, fail_at: int) -> None:
    """Assert that a fit which fails and its rest are together a whole one."""
    whole = fit(folder / "whole")
    broken = fit(folder / "broken", fail_at=fail_at)
    rest = fit(folder / "broken", resume=folder / "broken" / "at.ckpt")
    assert broken.log_of.train + rest.log_of.train == whole.log_of.train
    assert rest.parameters_of() == whole.parameters_of()
