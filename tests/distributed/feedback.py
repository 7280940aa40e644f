"""What a rank does in the tests of feedback: a part of a run, which may fail at a batch."""

import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from seqdata.errors import SeqDataError
from tests.distributed.ddp import under_ddp
from tests.lightning.feeding import feed


class Spoiling(Callback):
    """Makes a score of one rank NaN, at one of its steps."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_rank == self.rank and batch_idx == 1:
            outputs["row_loss"][:] = torch.tensor(math.nan)


def weigh_by_process(scores):
    """Return weights of an unseeded generator: other ones on each rank."""
    weights = np.random.default_rng(os.getpid()).random(len(scores))
    return dict(zip(scores, weights.tolist(), strict=True)) if isinstance(scores, dict) else weights


def weigh_or_fail(scores):
    """Fail on rank 1 alone."""
    if torch.distributed.get_rank() == 1:
        raise OSError("no weights")
    return np.ones(len(scores))


WEIGHS = {"by process": weigh_by_process, "fails on rank 1": weigh_or_fail}


def part(spec: dict[str, Any]) -> dict[str, Any]:
    """Train from a checkpoint, if there is one; an error of ours is told, not raised."""
    warnings.filterwarnings("ignore", message=".*inside an update.*")
    world = spec["world"]
    spoiling = (Spoiling(spec["spoiled"]),) if "spoiled" in spec else ()
    trainer = under_ddp(world) if world > 1 else {}
    try:
        model = feed(
            spec["policy"], folder=Path(spec["folder"]), ckpt=spec.get("ckpt"),
            fail_at=spec.get("fail_at"), data=spec.get("data"), spoiling=spoiling,
            weigh=WEIGHS.get(spec.get("weigh")), **trainer,
        )  # fmt: skip
    except (SeqDataError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"train": model.log_of.train, "parameters": model.parameters_of(), "error": None}


TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {"feedback": part}
