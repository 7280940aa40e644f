"""What a rank does in the tests of callbacks: fits that are watched, and lines for one file."""

import dataclasses
import time
import warnings
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger

from seqdata.errors import RanksDifferError, SeqDataWarning
from seqdata.lightning.callbacks.consistency import RankConsistency
from seqdata.lightning.callbacks.data_monitor import DataMonitor
from seqdata.lightning.callbacks.file_logger import RankFileLogger
from seqdata.lightning.callbacks.loss_record import LossRecord
from seqdata.lightning.callbacks.memory_monitor import RankMemoryMonitor
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed
from tests.distributed.ddp import under_ddp
from tests.lightning.harness import QUIET, Lanes, Recorder, Run, fit, sequences

CALLBACKS: dict[str, type[Callback]] = {
    "data": DataMonitor,
    "memory": RankMemoryMonitor,
    "consistency": RankConsistency,
    "files": RankFileLogger,
    "losses": LossRecord,
}


class Straying(Recorder):
    """A model of which one rank changes something by itself.

    Args:
        at: Step after which it does; None: never.
        name: What it changes: a parameter or a buffer.
        held: Bytes that this rank keeps for itself.
    """

    def __init__(self, at: int | None = None, name: str = "layer.bias", held: int = 0) -> None:
        super().__init__()
        self.at, self.name, self.size, self.held = at, name, held, None
        self.norm = torch.nn.BatchNorm1d(1).double()
        self.register_buffer("state", torch.zeros(2))

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        flat = batch["x"].reshape(-1, 1) + self.trainer.global_rank
        return loss + self.norm(torch.cat([flat, flat + 1])).sum()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.size and self.held is None:
            self.held = torch.ones(self.size, dtype=torch.uint8)

    def on_before_zero_grad(self, optimizer):
        if self.at == self.trainer.global_step:
            self.state_dict(keep_vars=True)[self.name].data.view(-1)[0] += 1


class Slow:
    """Reads late, on a rank that is told to."""

    def __init__(self, late: bool) -> None:
        self.rank = late  # its own: not compared

    def __call__(self, sequence: dict[str, Any], rng: Any) -> dict[str, Any]:
        if self.rank:
            time.sleep(0.02)
        return sequence


def data_in(
    count: int = 23, *, equal: bool = False, late: bool = False, lanes: int = 0
) -> SequenceDataModule:
    """Make the DataModule that a task is told of."""
    given = [np.full((5, 1), 0.5)] * count if equal else sequences(count)
    batching = Lanes(lanes) if lanes else Bucketed(4)
    prefetch = {"prefetch": 0} if late else {}
    return SequenceDataModule(train=given, batching=batching, transform=Slow(late), **prefetch)


def watch(spec: dict[str, Any]) -> dict[str, Any]:
    """Fit with one callback; gives what it saw, logged, warned of and raised."""
    callback = CALLBACKS[spec["callback"]](**spec.get("options", {}))
    logger = CSVLogger(spec["folder"], name="", version="") if "folder" in spec else False
    error = None
    run: Run | None = None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run = fit(
                data_in(**spec.get("data", {})),
                model=Straying(**spec.get("model", {})),
                callbacks=(callback,),
                logger=logger,
                log_every_n_steps=1,
                **{"max_epochs": 1, **spec.get("trainer", {})},
                **under_ddp(spec["world"]),
            )
        except RanksDifferError as failure:
            error = f"{failure} {failure.details}"
    ranks = getattr(callback, "ranks", [])
    metrics = {} if run is None else run.trainer.callback_metrics
    return {
        "ranks": [dataclasses.asdict(figures) for figures in ranks],
        "metrics": {name: float(value) for name, value in metrics.items()},
        "warned": [str(one.message) for one in said if one.category is SeqDataWarning],
        "error": error,
    }


def append(spec: dict[str, Any]) -> None:
    """Write many lines of many lengths while the other ranks do."""
    rank = torch.distributed.get_rank()
    logger = RankFileLogger()
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, default_root_dir=spec["folder"],
        enable_progress_bar=False, **under_ddp(spec["world"]),
    )  # fmt: skip
    trainer.strategy.setup_environment()
    logger.setup(trainer, pl.LightningModule(), "fit")
    torch.distributed.barrier()
    for number in range(spec["lines"]):
        filling = chr(ord("a") + rank) * (37 * (number + rank) % 3000)
        logger.record("line", {"number": number, "filling": filling})


class Shares(torch.utils.data.IterableDataset):
    """Eight rows; each rank's own, or the same for all."""

    def __init__(self, *, shared: bool) -> None:
        self.shared = shared

    def __iter__(self):
        rank = 0 if self.shared else torch.distributed.get_rank()
        return (torch.full((3,), float(number + 100 * rank)) for number in range(8))


class Bare(pl.LightningModule):
    """Knows nothing of us."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def watch_stream(spec: dict[str, Any]) -> list[str]:
    """Train on a stream; gives what was warned of."""
    loader = torch.utils.data.DataLoader(Shares(shared=spec["shared"]), batch_size=2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pl.Trainer(
            **{
                **QUIET, "max_epochs": 2, "callbacks": [RankConsistency()],
                "enable_checkpointing": False, **under_ddp(spec["world"]),
            }
        ).fit(Bare(), loader)  # fmt: skip
    return [str(one.message) for one in said if one.category is SeqDataWarning]


TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "watch": watch,
    "append": append,
    "watch_stream": watch_stream,
}
