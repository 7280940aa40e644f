"""A run whose weights follow from its losses, and what it did."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from seqdata.lightning.callbacks.feedback import Feedback
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed
from seqdata.policies.mix import Mix
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from tests.lightning.harness import QUIET, Recorder, quietly, sequences

EPOCHS, GROUP = 2, 4
POLICIES = {
    "weighted": lambda: {"train": sequences(30), "batching": Weighted(Bucketed(2), draws=46)},
    "importance": lambda: {
        "train": sequences(30), "batching": Weighted(Bucketed(2), draws=46, importance=True),
    },
    "token budget": lambda: {"train": sequences(30), "batching": Weighted(TokenBudget(10))},
    "mix": lambda: {
        "train": {"a": sequences(9, 1), "b": sequences(14, 2), "c": sequences(3, 3)},
        "batching": Mix({"a": 2, "b": 1, "c": 1}, Bucketed(2), batches=22),
    },
    "rows": lambda: {
        "train": {"a": sequences(9, 1), "b": sequences(20, 2), "c": sequences(3, 3)},
        "batching": Mix({"a": 2, "b": 1, "c": 1}, Bucketed(2), rows=True),
    },
}  # fmt: skip
OTHER_PARTS = {
    "other parts": lambda: {  # than those of "mix"
        "train": {"a": sequences(9, 1), "c": sequences(3, 3), "d": sequences(12, 4)},
        "batching": Mix({"a": 2, "c": 1, "d": 1}, Bucketed(2), batches=22),
    },
}  # fmt: skip


class Feeding(Recorder):
    """Returns the mean loss of each row with the loss of the batch.

    Args:
        fail_at: Number of the batch of this process at which a step raises; None: never.
    """

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        error = (self.layer(batch["x"]).squeeze(-1) - 1.0) ** 2
        rows = (error * batch.score).sum(1) / batch.lengths
        return {"loss": loss, "row_loss": rows.detach()}


def feed(
    policy: str = "weighted",
    *,
    folder: Path | None = None,
    ckpt: str | Path | None = None,
    every: int = 2,
    fail_at: int | None = None,
    data: dict[str, Any] | None = None,
    spoiling: tuple[pl.Callback, ...] = (),
    weigh: Callable[[Any], Any] | None = None,
    **trainer: Any,
) -> Feeding:
    """Fit with feedback; saves after every update, and does not save when a step fails."""
    model = Feeding(fail_at)
    options = {
        "seed": 3, "batches_per_update": GROUP, "on_changed": "error",
        **{**POLICIES, **OTHER_PARTS}[policy](),
        **(data or {}),
    }  # fmt: skip
    saves = []
    if folder is not None:
        saves = [
            ModelCheckpoint(
                dirpath=folder, filename="{step}", every_n_train_steps=1, save_top_k=-1,
                save_on_exception=False,
            )
        ]  # fmt: skip
    with quietly():
        fitted = pl.Trainer(
            **{
                **QUIET, "max_epochs": EPOCHS, "default_root_dir": ".",
                "callbacks": [*spoiling, Feedback("row_loss", every, weigh), *saves],
                "enable_checkpointing": folder is not None, **trainer,
            }
        )  # fmt: skip
        try:
            fitted.fit(model, datamodule=SequenceDataModule(**options), ckpt_path=ckpt)
        except OSError:
            if fail_at is None:
                raise
    return model


def saved(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, in the order of their steps."""
    return sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))
