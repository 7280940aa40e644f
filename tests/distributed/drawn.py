"""What a rank does in tests of what is drawn: trains until it is killed, and writes down all."""

import json
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
from lightning.pytorch.callbacks import ModelCheckpoint

from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.planning.parts import Part
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted, balanced
from seqdata.protocols import Policy
from tests.distributed.ddp import under_ddp
from tests.lightning.harness import QUIET, Recorder, quietly, sequences

COUNTS = {"books": 31, "code": 12}
GROUP, EPOCHS = 4, 3  # batches of an update, over all ranks
WEIGHTS = 1.0 + np.arange(31) % 5


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Return sequences with a rare label."""
    return [
        {"x": x, "label": int(number % 7 == 0)} for number, x in enumerate(sequences(count, seed))
    ]


BOOKS, CODE = rows(31, 1), rows(12, 2)
BOTH = {"books": BOOKS, "code": CODE}
CASES: dict[str, tuple[Any, Callable[[], Policy]]] = {
    "mix": (
        BOTH,
        lambda: Mix(
            {"books": Part(0.7, Bucketed(3)), "code": Part(0.3, TokenBudget(30))}, batches=22
        ),
    ),
    "weighted": (BOOKS, lambda: Weighted(Bucketed(3), WEIGHTS, draws=50)),
    "balanced": (BOOKS, lambda: Weighted(Bucketed(3), balanced("label"), draws=47)),
    "mix of weighted": (
        BOTH,
        lambda: Mix(
            {
                "books": Part(0.6, Weighted(Fixed(2), WEIGHTS, draws=40)),
                "code": Part(0.4, Weighted(Bucketed(3), balanced("label"), importance=True)),
            },
            batches=21,
            by="timesteps",
        ),
    ),
    "rows": (BOTH, lambda: Mix({"books": 1, "code": 1}, Bucketed(2), rows=True)),
}


class Killed(Recorder):
    """Writes each batch to a file, and kills its process after so many steps."""

    def __init__(self, path: Path, after: int | None) -> None:
        super().__init__()
        self.path, self.left = path, after

    def training_step(self, batch, batch_idx):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left = None if self.left is None else self.left - 1
        told = {
            "update": self.trainer.global_step, "place": [batch.epoch, batch.number],
            "part": batch.part, "part_epoch": batch.part_epoch,
            "ids": batch.ids[batch.weight > 0].tolist(),
        }  # fmt: skip
        with self.path.open("a") as file:
            file.write(json.dumps(told) + "\n")
        return super().training_step(batch, batch_idx)


def draw_epochs(spec: dict[str, Any]) -> dict[str, Any]:
    """Train from a checkpoint, if there is one, until killed or done."""
    train, make_policy = CASES[spec["case"]]
    data = SequenceDataModule(
        train=train, batching=make_policy(), batches_per_update=GROUP, seed=3, transform=None
    )
    folder = Path(spec["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    saves = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    is_killed = spec["after"] is not None and spec["rank"] == spec["world"] - 1
    model = Killed(folder / f"rank-{spec['rank']}.jsonl", spec["after"] if is_killed else None)
    with quietly(), warnings.catch_warnings():
        # a resumed ModelCheckpoint saves once before its first update
        warnings.filterwarnings("ignore", message=".*inside an update.*")
        ranks = under_ddp(spec["world"]) if spec["world"] > 1 else {}
        trainer = pl.Trainer(**{**QUIET, "max_epochs": EPOCHS, "callbacks": [saves], **ranks})
        trainer.fit(model, datamodule=data, ckpt_path=spec["ckpt"])
    return {"parameters": model.parameters_of(), "updates": trainer.global_step}


TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {"draw_epochs": draw_epochs}
