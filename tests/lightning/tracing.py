"""A model and a callback that write down every hook, and fits that are cut at their checkpoints."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from tests.lightning.harness import QUIET, data_of, quietly

HOOKS = (
    "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end", "on_train_epoch_end",
    "on_validation_start", "on_validation_epoch_start", "on_validation_batch_start",
    "on_validation_batch_end", "on_validation_epoch_end", "on_validation_end", "on_train_end",
)  # fmt: skip
CUT = "trace"  # the key of a checkpoint for what had happened when it was saved

Entry = tuple[Any, ...]


@dataclass
class Trace:
    """What a fit did, in order.

    Attributes:
        entries: (owner, hook, epoch, update, more).
        fail_at: Entry at which an error is raised, once; None: nowhere.
    """

    entries: list[Entry] = field(default_factory=list)
    fail_at: int | None = None

    def add(self, owner: str, hook: str, trainer: pl.Trainer, *more: Any) -> None:
        if trainer.sanity_checking:
            return
        if len(self.entries) == self.fail_at:
            self.fail_at = None
            raise OSError("told to fail")
        self.entries.append((owner, hook, trainer.current_epoch, trainer.global_step, *more))


def _tracing(owner: str, hook: str) -> Callable[..., None]:
    def call(self: Any, *args: Any) -> None:
        trainer = args[0] if owner == "callback" else self.trainer
        batch_idx = [one for one in args if isinstance(one, int)]
        self.trace.add(owner, hook, trainer, *batch_idx)

    return call


class Tracer(Callback):
    """Traces each hook of a callback; a checkpoint has the entries before it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint[CUT] = copy.copy(self.trace.entries)


class Traced(pl.LightningModule):
    """Traces each hook of a module, and has a scheduler of each kind that changes its rate."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1).double()
        self.trace = trace

    def training_step(self, batch, batch_idx):
        error = (self.layer(batch["x"]).squeeze(-1) - 1.0) ** 2
        loss = (batch.score * error).sum() * batch.loss_scale
        self.trace.add("module", "training_step", self.trainer, batch.epoch, batch.number)
        self.log("loss", loss.detach(), batch_size=1)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self.layer.weight.detach().sum(), batch_size=1)

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        self.trace.add("module", "optimizer_step", self.trainer)

    def lr_scheduler_step(self, scheduler, metric):
        super().lr_scheduler_step(scheduler, metric)
        rate = self.optimizers().param_groups[0]["lr"]
        told = None if metric is None else float(metric)
        self.trace.add(
            "module", "lr_scheduler_step", self.trainer, type(scheduler).__name__, told, rate
        )

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        step = torch.optim.lr_scheduler.StepLR
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        return [optimizer], [
            {"scheduler": step(optimizer, 2, 0.97), "interval": "step"},
            {"scheduler": step(optimizer, 1, 0.95), "interval": "epoch"},
            {
                "scheduler": plateau(optimizer, factor=0.9, patience=0, threshold=0.5),
                "interval": "step", "monitor": "loss",
            },
            {
                "scheduler": plateau(optimizer, factor=0.8, patience=0, threshold=0.5),
                "interval": "epoch", "monitor": "val", "strict": False,
            },
        ]  # fmt: skip


for _hook in HOOKS:
    setattr(Tracer, _hook, _tracing("callback", _hook))
    setattr(Traced, _hook, _tracing("module", _hook))


class SavingCallback(Callback):
    """Saves after every step, in its own hook."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        total = trainer.fit_loop.epoch_loop.batch_progress.total.processed
        trainer.save_checkpoint(self.folder / f"{total}.ckpt")


def make_saver(trigger: str, folder: Path) -> Callback:
    """Return what saves a checkpoint at each of a trigger's places."""
    if trigger == "batch_end":
        return SavingCallback(folder)
    options: dict[str, Any] = {
        "steps": {"every_n_train_steps": 1},
        "steps_2": {"every_n_train_steps": 2},
        "time": {"train_time_interval": timedelta(0)},
        "epoch_end": {"save_on_train_epoch_end": True},
        "validation_end": {"save_on_train_epoch_end": False},
        "exception": {"save_on_exception": True, "every_n_train_steps": 1000},
    }[trigger]
    name = "{step}-{epoch}"
    return ModelCheckpoint(folder, filename=name, save_top_k=-1, **options)


@dataclass
class TracedFit:
    """A fit that ended, or failed as it was told to."""

    entries: list[Entry]
    parameters: list[torch.Tensor]
    rate: float


def fit_traced(
    *, ckpt: Path | None = None, trigger: str | None = None, folder: Path | None = None,
    fail_at: int | None = None, data: dict[str, Any] | None = None, **trainer: Any,
) -> TracedFit:  # fmt: skip
    """Fit once, and return its trace."""
    trace = Trace(fail_at=fail_at)
    model = Traced(trace)
    callbacks: list[Callback] = [Tracer(trace)]
    if trigger is not None:
        callbacks.append(make_saver(trigger, folder))
    options = {**QUIET, "max_epochs": 3, **trainer}
    with quietly():
        made = pl.Trainer(callbacks=callbacks, enable_checkpointing=trigger is not None, **options)
        try:
            made.fit(model, data_of(**(data or {})), ckpt_path=ckpt)
        except OSError as error:
            if "told to fail" not in str(error):
                raise
    parameters = [value.detach().clone() for value in model.parameters()]
    return TracedFit(trace.entries, parameters, made.optimizers[0].param_groups[0]["lr"])


def list_cuts(folder: Path, max_epochs: int = 3) -> Iterator[tuple[Path, list[Entry], int]]:
    """Yield each checkpoint but that of the last epoch's end, which leaves nothing to train.

    With it come the entries before it, and the trained steps of its epoch.
    """
    for path in sorted(folder.glob("*.ckpt")):
        saved = torch.load(path)
        if saved["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"] == max_epochs:
            continue
        steps = saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["processed"]
        yield path, saved[CUT], steps


def assert_continues(
    whole: TracedFit, before: list[Entry], rest: TracedFit, *, is_in_update: bool = False
) -> None:
    """Assert that what was done before a checkpoint and the rest are together the whole fit.

    The hook in which it was saved counts as done, for callbacks and the module. Within an update,
    whose gradients are not in checkpoints, numbers differ from there on.
    """
    assert whole.entries[: len(before)] == before
    left = whole.entries[len(before) :]
    saved_in = before[-1][1]
    while left and left[0][1] == saved_in and left[0][2:4] == before[-1][2:4]:
        left = left[1:]
    if is_in_update:
        assert [entry[:4] for entry in rest.entries] == [entry[:4] for entry in left]
        return
    assert rest.entries == left
    for ours, theirs in zip(rest.parameters, whole.parameters, strict=True):
        assert torch.equal(ours, theirs)
    assert rest.rate == whole.rate
