"""What a rank does in chains of crashes: a part of a run that ends by an exception in any hook."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.ranks.coordinator import ExceptionNotifier, RankCoordinator
from seqdata.lightning.ranks.watchdog import RankTimeouts
from seqdata.policies.fixed import Bucketed
from seqdata.policies.tbptt import TBPTT
from tests.distributed.ddp import under_ddp
from tests.lightning.carrying import Carrying, series
from tests.lightning.harness import QUIET, Recorder, quietly, sequences

HOOKS = (
    "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start",
    "training_step", "on_before_zero_grad", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_end", "on_train_end",
    "on_validation_start", "on_validation_epoch_start", "on_validation_batch_start",
    "validation_step", "on_validation_batch_end", "on_validation_epoch_end", "on_validation_end",
)  # fmt: skip
IN_STEPS = ("training_step", "validation_step")
SAVES: dict[str, dict[str, Any]] = {
    "step": {"every_n_train_steps": 1},
    "exception": {"every_n_train_steps": 1000, "save_on_exception": True},
    "epoch": {"save_on_train_epoch_end": True},
    "validation": {"save_on_train_epoch_end": False},
    "hand": {"every_n_train_steps": 1000},  # the callback ``ByHand`` saves
}
LANES: dict[str, dict[str, Any]] = {
    "rows": {}, "overlapping": {"advance": 6}, "segments": {"segments": True},
    "stream": {"continuous": True},
}  # fmt: skip
PATIENT = {"leave_grace": 60.0, "exit_grace": 60.0, "unresponsive": 60.0}


class Told(Exception):
    """An exception that a test asked for."""


class Crash(Callback):
    """Raises in a hook of callbacks, on every rank, at the given number of calls."""

    def __init__(self, hook: str | None, at: int) -> None:
        self.left = at
        self.begun = self.ended = -1
        if hook is not None and hook not in IN_STEPS:
            setattr(self, hook, functools.partial(self._maybe, getattr(self, hook)))

    def _maybe(self, hook: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        hook(*args, **kwargs)
        self.come()

    def come(self) -> None:
        """Raise if it is time."""
        self.left -= 1
        if self.left == 0:
            raise Told

    def on_train_start(self, trainer, module):
        self.begun = trainer.fit_loop.epoch_loop.batch_progress.total.processed

    def on_exception(self, trainer, module, exception):
        self.ended = trainer.fit_loop.epoch_loop.batch_progress.total.processed


class ByHand(Callback):
    """Saves after every second step, with the Trainer's own method."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx % 2:
            trainer.save_checkpoint(self.folder / f"step={trainer.global_step}.ckpt")


class Crashing:
    """Steps that may raise, and that note what they did."""

    crash: Crash
    hook: str | None

    def note(self) -> None:
        self.steps: list[tuple[int, int, list[int]]] = []
        self.validated: list[tuple[int, int, float]] = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        real = batch.ids[batch.weight > 0].tolist()
        self.steps.append((batch.epoch, batch.number, real))
        if self.hook == "training_step":
            self.crash.come()
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        super().validation_step(batch, batch_idx)
        if self.hook == "validation_step":
            self.crash.come()


class CrashingLanes(Crashing, Carrying):
    pass


class CrashingRows(Crashing, Recorder):
    pass


class Bad:
    """A transform that cannot do what holds one of these values."""

    def __init__(self, values: set[float]) -> None:
        self.values = values

    def __call__(self, sequence, rng):
        if not self.values.isdisjoint(sequence["x"][:, 0].tolist()):
            raise ValueError("told to be bad")
        return sequence


def bad_values(given: list[Any], masked: str) -> set[float]:
    """Return all of every third sequence, or single timesteps of many."""
    if masked == "sequences":
        return {value for one in given[1::3] for value in one[:, 0].tolist()}
    return {value for one in given for value in one[4::11, 0].tolist()}


def data_for(spec: dict[str, Any]) -> SequenceDataModule:
    """Make the DataModule of a part."""
    given: list[Any]
    options: dict[str, Any] = {"seed": 3, "prefetch": spec.get("prefetch", 0)}
    if spec["lanes"]:
        given, val = series(spec["count"]), series(3, 1)
        policy = TBPTT(spec["lanes"], 8, **LANES[spec["kind"]])
        options |= {"batching": policy, "fields": ("x",), "shift": 1}
    else:
        given, val = sequences(spec["count"]), sequences(5, 1)
        options |= {"batching": Bucketed(4), "eval_batching": Bucketed(2), "batches_per_update": 2}
    if spec["masked"]:
        values = bad_values(given, spec["masked"])
        options |= {"transform": Bad(values), "on_error": "mask", "max_errors": 10**6}
    return SequenceDataModule(train=given, val=val, **options)


def crash(spec: dict[str, Any]) -> dict[str, Any]:
    """Train a part of a run, until an exception or its end."""
    crash = Crash(spec["hook"], spec["at"])
    model = (CrashingLanes if spec["lanes"] else CrashingRows)()
    model.crash, model.hook = crash, spec["hook"]
    model.note()
    data, folder = data_for(spec), Path(spec["folder"])
    data._coordinator = RankCoordinator(RankTimeouts(**PATIENT))
    data._notifier = ExceptionNotifier(data._coordinator.leave_by_exception)
    callbacks: list[Callback] = [crash]
    callbacks.append(
        ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, **SAVES[spec["save"]])
    )
    if spec["save"] == "hand":
        callbacks.append(ByHand(folder))
    options = {
        **QUIET, "max_epochs": 2, "callbacks": callbacks, "default_root_dir": folder / "logs",
        **spec["trainer"], **(under_ddp(spec["world"]) if spec["world"] > 1 else {}),
    }  # fmt: skip
    crashed = False
    with quietly():
        trainer = pl.Trainer(**options)
        try:
            trainer.fit(model, datamodule=data, ckpt_path=spec["ckpt"])
        except Told:
            crashed = True
    if not crashed:
        crash.ended = trainer.fit_loop.epoch_loop.batch_progress.total.processed
    done = crash.ended - crash.begun if crash.begun >= 0 else 0
    return {
        "crashed": crashed, "steps": model.steps[:done], "tried": len(model.steps),
        "parameters": model.parameters_of(), "global_step": trainer.global_step,
        "rate": trainer.optimizers[0].param_groups[0]["lr"] if trainer.optimizers else None,
    }  # fmt: skip


TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {"crash_part": crash}
