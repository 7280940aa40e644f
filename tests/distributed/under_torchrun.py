"""A script for ``torchrun``: trains until one rank is hurt.

Run as a program: folder, how rank 1 is hurt (a signal, or nothing), what rank 0 does then
(``train`` on, or ``hang``), whether with ``Preemption``.
"""

import os
import signal
import sys
import time
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy

from seqdata import Bucketed, Preemption, SequenceDataModule
from tests.lightning.harness import QUIET, Recorder, sequences


class Hurt(Callback):
    """Hurts rank 1 before its third step; rank 0 may hang there."""

    def __init__(self, folder: Path, how: str, other: str) -> None:
        self.folder, self.how, self.other = folder, how, other

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step != 2 or trainer.current_epoch:
            return
        if trainer.global_rank == 1 and self.how:
            (self.folder / "hurt").write_text(str(time.time()))
            os.kill(os.getpid(), getattr(signal, self.how))
        elif self.other == "hang":
            time.sleep(3600)


def main(folder: Path, how: str, other: str, preemption: bool) -> None:
    """Train."""
    torch.set_num_threads(1)
    (folder / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    data = SequenceDataModule(train=sequences(40), batching=Bucketed(4), seed=3, num_workers=1)
    saves = ModelCheckpoint(folder, "saved", save_on_exception=True, every_n_train_steps=1000)
    model = Recorder()
    callbacks = [Hurt(folder, how, other), saves, *([Preemption()] if preemption else [])]
    strategy = DDPStrategy(process_group_backend="gloo")
    trainer = pl.Trainer(
        **{
            **QUIET,
            "max_epochs": 2,
            "devices": 2,
            "strategy": strategy,
            "callbacks": callbacks,
            "default_root_dir": folder,
        }
    )
    trainer.fit(model, datamodule=data)
    (folder / f"ended-{trainer.global_rank}").write_text(str(model.log_of.train))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "True")
