"""A tiny model that writes down what it is given, and runs of the real Trainer around it."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from seqdata.index import SequenceIndex
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.plan import Plan
from seqdata.policies.fixed import Bucketed


def sequences(count: int, seed: int = 0) -> list[np.ndarray]:
    """Return ``count`` short float64 sequences of one feature and unequal lengths."""
    draw = random.Random(seed)
    return [
        np.array([[draw.random()] for _ in range(draw.randint(1, 9))], dtype=np.float64)
        for _ in range(count)
    ]


@dataclass
class Log:
    """What a run did, in order."""

    train: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)  # (Lightning's epoch, batch_idx)
    val: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)  # (global step, ids)
    epochs: list[int] = field(default_factory=list)  # current_epoch at on_train_epoch_start
    rates: list[float] = field(default_factory=list)

    def validations(self) -> list[int]:
        """Global steps at which a validation ran."""
        return sorted({step for step, _ in self.val})


class Recorder(pl.LightningModule):
    """One linear layer over timesteps with the token-exact loss.

    Args:
        fail_at: Position in ``log.train`` at which a training step raises; None: never.
    """

    def __init__(self, fail_at: int | None = None, fail_in_val: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1).double()
        self.log_of = Log()
        self.fail_at = fail_at
        self.fail_in_val = fail_in_val

    def training_step(self, batch, batch_idx):
        if self.fail_at is not None and len(self.log_of.train) == self.fail_at:
            raise OSError("told to fail")
        ids = tuple(batch.ids[batch.weight > 0].tolist())
        self.log_of.train.append((batch.epoch, batch.number, ids))
        self.log_of.steps.append((self.current_epoch, batch_idx))
        error = (self.layer(batch["x"]).squeeze(-1) - 1.0) ** 2
        return (batch.score * error).sum() * batch.loss_scale

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        if self.fail_in_val is not None and len(self.log_of.val) == self.fail_in_val:
            raise OSError("told to fail in validation")
        real = batch.ids[batch.weight > 0].tolist()
        self.log_of.val.append((self.trainer.global_step, tuple(real)))

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return batch.real().ids.tolist()

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.log_of.val.append((dataloader_idx, tuple(batch.real().ids.tolist())))

    def on_train_epoch_start(self):
        self.log_of.epochs.append(self.current_epoch)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"},
        }

    def parameters_of(self) -> list[float]:
        return [value for one in self.parameters() for value in one.detach().flatten().tolist()]


class RowLosses(pl.LightningModule):
    """A layer with a loss for each row."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)
        self.rate = rate

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        error = (self.layer(batch["x"]).squeeze(-1) - 0.5) ** 2 * batch.score
        losses = error.sum(1) / batch.lengths
        return {"loss": (losses * batch.weight).sum() * batch.sequence_scale, "losses": losses}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.rate)


@dataclass(frozen=True)
class Lanes:
    """Sequences dealt to lanes in turn, each in chunks of three timesteps; lanes run dry idle."""

    lanes: int
    chunk: int = 3
    axis: str = "time"

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        spans = []
        for lane in self._chunks(index, epoch):
            idle = self.num_batches(index) - len(lane)
            spans.append(lane + [(lane[-1][0], lane[-1][2], lane[-1][2])] * idle)
        steps = np.array(spans).transpose(1, 0, 2).reshape(-1, 3)
        return Plan(steps, offsets=np.arange(0, len(steps) + 1, self.lanes), lanes=self.lanes)

    def num_batches(self, index: SequenceIndex) -> int:
        return max(map(len, self._chunks(index, 0)))

    def _chunks(self, index: SequenceIndex, epoch: int) -> list[list[tuple[int, int, int]]]:
        dealt: list[list[tuple[int, int, int]]] = [[] for _ in range(self.lanes)]
        for number, length in enumerate(index.lengths.tolist()):
            for start in range(0, length, self.chunk):
                stop = min(length, start + self.chunk)
                dealt[(number + epoch) % self.lanes].append((number, start, stop))
        return dealt[::-1] if epoch % 2 else dealt


QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
    "num_sanity_val_steps": 0,
}


@dataclass
class Run:
    """A finished or failed fit."""

    model: Recorder
    data: SequenceDataModule
    trainer: pl.Trainer
    error: BaseException | None = None
    first_step: int = 0

    @property
    def log(self) -> Log:
        return self.model.log_of


def data_of(count: int = 23, *, val: Any = 5, **options: Any) -> SequenceDataModule:
    """Make a DataModule over sequences in memory."""
    options.setdefault("batching", Bucketed(4, balance_ranks=2))  # one order on any world
    options.setdefault("seed", 3)
    options.setdefault("eval_batching", Bucketed(2))
    given = sequences(val, 1) if isinstance(val, int) else val
    return SequenceDataModule(train=sequences(count), val=given, **options)


def fit(
    data: SequenceDataModule,
    *,
    model: Recorder | None = None,
    folder: Path | None = None,
    every: int | None = None,
    ckpt: str | Path | None = None,
    callbacks: tuple[Callback, ...] = (),
    **trainer: Any,
) -> Run:
    """Fit once; saves to ``folder`` every ``every`` steps, at epoch ends without it."""
    model = model or Recorder()
    saved = list(callbacks)
    if folder is not None:
        saved.append(
            ModelCheckpoint(
                dirpath=folder,
                filename="{step}",
                every_n_train_steps=every,
                save_top_k=-1,
                save_on_exception=True,
            )
        )
    options = {
        **QUIET,
        "default_root_dir": ".",
        "enable_checkpointing": folder is not None,
        "callbacks": saved,
        **trainer,
    }
    with quietly():
        made = pl.Trainer(**options)
        run = Run(model, data, made)
        try:
            made.fit(model, datamodule=data, ckpt_path=None if ckpt is None else str(ckpt))
        except OSError as error:
            run.error = error
    return run


@contextmanager
def quietly() -> Iterator[None]:
    """Silence what Lightning says about tiny runs, and nothing else."""
    with warnings.catch_warnings():
        for text in LIGHTNING_SAYS:
            warnings.filterwarnings("ignore", message=text)
        yield


LIGHTNING_SAYS = (
    ".*isinstance.treespec, LeafSpec..*",
    ".*does not have many workers.*",
    ".*Checkpoint directory .* exists.*",
    ".*callbacks used to create the checkpoint need to be provided.*",
    ".*The dirpath has changed from.*",
    ".*You defined a `validation_step` but have no `val_dataloader`.*",
    ".*`max_epochs` was not set.*",
)
