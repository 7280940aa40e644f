"""One training run on any number of machines: the same updates as on one.

``torchrun`` and SLURM start this file on every machine; Ray Train calls ``make_model`` and
``make_data`` (``ray_train.py``).

    python train.py STORE OUT.ckpt                                                 # one process
    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-endpoint HOST:29500 train.py STORE OUT.ckpt
"""

import os
import sys

import lightning as L
import torch

from seqdata import Bucketed, SequenceDataModule


class Classifier(L.LightningModule):
    """An LSTM whose last state says the class; the loss is exact over ranks and accumulation."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 16, batch_first=True)
        self.head = torch.nn.Linear(16, 1)

    def training_step(self, batch, batch_idx):
        """Return the share of this batch in the mean over the sequences of an update."""
        del batch_idx
        _, (last, _) = self.lstm(batch.packed("x"))
        errors = (self.head(last[-1])[:, 0] - batch["y"]) ** 2
        return (errors * batch.weight).sum() * batch.sequence_scale

    def configure_optimizers(self):
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), 0.1)


def make_model() -> L.LightningModule:
    """Return the model, with the same weights on every machine."""
    L.seed_everything(0)
    return Classifier().double()


def make_data(store: str) -> SequenceDataModule:
    """Return the data: each update holds two batches of the plan, wherever they are computed."""
    return SequenceDataModule(
        train=store, batching=Bucketed(8), batches_per_update=2, dtype="float64"
    )


def main(store: str, out: str) -> None:
    """Train for two epochs and save a checkpoint."""
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", os.environ.get("SLURM_NNODES", "1")))
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("SLURM_NTASKS_PER_NODE", "1")))
    trainer = L.Trainer(
        accelerator="auto", num_nodes=nodes, devices=devices, max_epochs=2, logger=False,
        strategy="ddp" if nodes * devices > 1 else "auto", enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(make_model(), make_data(store))
    trainer.save_checkpoint(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
