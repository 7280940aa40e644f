"""A model whose predictions are known, and the real Trainer that writes them down."""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from seqdata.api import open_store
from seqdata.lightning.predictions.writer import PredictionWriter
from tests.lightning.harness import QUIET, quietly


class Predictor(pl.LightningModule):
    """Predicts the running sum of each timestep, or the sum of each sequence, or both.

    Args:
        gives: ``steps``, ``sum``, ``both``, or a name of ``OTHERS``.
        fail_at: The step at which it raises; None: never.
    """

    def __init__(self, gives: str = "both", fail_at: int | None = None) -> None:
        super().__init__()
        self.gives = gives
        self.fail_at = fail_at

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        if batch_idx == self.fail_at:
            raise OSError("told to fail")
        if self.gives in OTHERS:
            return OTHERS[self.gives](batch)
        x = torch.where(batch.mask[..., None], batch["x"], 7.0)  # padding is seen where it is kept
        steps = x.cumsum(1)
        whole = torch.where(batch.mask[..., None], x, 0.0).sum(1).repeat(1, 2) * torch.ones(2)
        return {"steps": steps, "sum": whole, "both": {"steps": steps, "sum": whole}}[self.gives]


OTHERS = {
    "real": lambda batch: batch.real()["x"].sum((1, 2)),
    "bfloat16": lambda batch: batch["x"].to(torch.bfloat16),
    "flags": lambda batch: batch["x"][..., 0] > 0.5,
    "wide": lambda batch: torch.zeros(len(batch), 9),
    "nine": lambda batch: torch.zeros(len(batch), 9, 2),
    "many": lambda batch: torch.zeros(len(batch) + 1, 2),
    "empty": lambda batch: torch.zeros(len(batch), 0),
    "complex": lambda batch: torch.zeros(len(batch), dtype=torch.complex64),
    "number": lambda batch: torch.tensor(1.0),
    "list": lambda batch: [1.0] * len(batch),
    "reserved": lambda batch: {"id": batch["x"]},
    "varying": lambda batch: torch.zeros(len(batch), batch.number + 20),
    "entries": lambda batch: {str(batch.number > 0): torch.zeros(len(batch))},
    "forecast": lambda batch: batch["x"][:, -2:, 0] * 2,
}


def predict(
    data: Any, location: Path, *, model: Predictor | None = None, trainer: Any = None, **writer: Any
) -> None:
    """Predict with the real Trainer and write the predictions."""
    callbacks = [PredictionWriter(location, **writer)]
    with quietly():
        made = pl.Trainer(**{**QUIET, **(trainer or {})}, callbacks=callbacks)
        made.predict(model or Predictor(), datamodule=data, return_predictions=False)


def read(location: Path) -> dict[str, list[Any]]:
    """Return field -> one value for each sequence, as lists."""
    store = open_store(location)
    spans = np.zeros((len(store), 3), dtype=np.int64)
    spans[:, 0] = np.arange(len(store))
    found = {}
    for name, field in store.fields.items():
        axis = field.axis or next(iter(store.lengths_of))
        spans[:, 2] = store.lengths_of[axis]
        column = store.read(spans, [name], axis=axis)[name]
        rows = column if isinstance(column, list) else [one.tolist() for one in column]
        flat = field.axis is None and not isinstance(column, list)
        found[name] = [row[0] for row in rows] if flat else rows
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
