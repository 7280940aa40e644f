"""Models that show what randomness does: digests of what they are given, losses with dropout."""

import hashlib
from typing import Any

import lightning.pytorch as pl
import torch

from tests.lightning.crashing import noisy
from tests.lightning.harness import Recorder, data_of, fit


class Digesting(Recorder):
    """Keeps a digest of each real sequence that it is given; ``seen`` is by (epoch, id)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[int, int], str] = {}

    def training_step(self, batch, batch_idx):
        rows = zip(
            batch["x"], batch.lengths.tolist(), batch.ids.tolist(), batch.weight, strict=True
        )
        for row, length, number, weight in rows:
            if weight:
                found = hashlib.sha256(row[:length].numpy().tobytes()).hexdigest()
                self.seen[batch.epoch, number] = found
        return super().training_step(batch, batch_idx)


class Dropping(Recorder):
    """An LSTM with dropout, in float32; keeps its losses as they are, bit by bit."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.LSTM(1, 8, num_layers=2, dropout=0.3, batch_first=True)
        self.head = torch.nn.Linear(8, 1)
        self.losses: list[str] = []

    def training_step(self, batch, batch_idx):
        found, _ = self.layer(batch["x"].float())
        error = (self.head(found).squeeze(-1) - 1.0) ** 2
        loss = (batch.score * error).sum() * batch.loss_scale
        self.losses.append(float(loss.detach()).hex())
        return loss


def many_steps(model: Any, steps: int, **trainer: Any) -> Any:
    """Train with noise and dropout from one seed; gives the model."""
    pl.seed_everything(7, verbose=False)
    data = data_of(100, transform=noisy, val=None)
    fit(data, model=model, max_steps=steps, max_epochs=-1, **trainer)
    return model
