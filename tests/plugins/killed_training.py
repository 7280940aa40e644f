"""Train on the data of a package until killed, then resume: ``killed_training.py ORDERS``.

ORDERS is a file of JSON: ``data`` (arguments of SequenceDataModule), ``folder`` of checkpoints,
``record`` (the file to which each step appends a line) and ``kill_at`` (a step, or null).
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from seqdata import Bucketed, SequenceBatch, SequenceDataModule

EPOCHS = 2


SEED = 5


def make_policy() -> Bucketed:
    """Return the policy of the training batches."""
    return Bucketed(2)


def describe(batch: SequenceBatch) -> str:
    """Return the ids of a batch, and a digest of its values."""
    digest = hashlib.sha256()
    for name in sorted(batch):
        value = batch[name]
        if isinstance(value, torch.Tensor):
            digest.update(np.ascontiguousarray(value.numpy()).tobytes())
        else:
            digest.update(repr(value).encode())
    return f"{batch.ids} {digest.hexdigest()}"


class Recorder(L.LightningModule):
    """Records each batch; kills its process, in the middle of an epoch, when told."""

    def __init__(self, record: Path, kill_at: int | None) -> None:
        super().__init__()
        self.record, self.kill_at = record, kill_at
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch: SequenceBatch, batch_idx: int) -> torch.Tensor:
        """Append a line: the step, and the batch."""
        with self.record.open("a") as file:
            file.write(json.dumps([self.global_step, describe(batch)]) + "\n")
        if self.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.weight.sum() * 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD."""
        return torch.optim.SGD(self.parameters(), 0.1)


def main(orders: dict[str, Any]) -> None:
    """Train two epochs; every second step is saved."""
    folder = Path(orders["folder"])
    saves = ModelCheckpoint(folder, save_last=True, every_n_train_steps=2, save_on_exception=False)
    trainer = L.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, callbacks=[saves],
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    last = folder / "last.ckpt"
    trainer.fit(
        Recorder(Path(orders["record"]), orders["kill_at"]),
        SequenceDataModule(batching=make_policy(), seed=SEED, num_workers=2, **orders["data"]),
        ckpt_path=str(last) if last.exists() else None,
    )


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
