"""Lightning knows how many rows a batch has, although iterating it gives names."""

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Fixed


class Means(pl.LightningModule):
    """Logs means over an epoch without a batch size."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, _):
        self.log("train", float(batch["y"].float().mean()), on_step=False, on_epoch=True)
        return self.layer(batch["x"]).sum()

    def validation_step(self, batch, _):
        self.log("val", batch["y"].float().mean())

    def test_step(self, batch, number):
        self.log("test", batch["y"].float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


@pytest.mark.filterwarnings("error:.*infer the `batch_size`")
def test_means_are_weighted_by_rows(tmp_path):
    rows = [{"x": np.ones((2, 1), np.float32), "y": float(number)} for number in range(7)]
    data = SequenceDataModule(train=rows, val=rows, test=rows, batching=Fixed(4))
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Means(), data)
    metrics = dict(trainer.callback_metrics)
    metrics.update(*trainer.test(Means(), data, verbose=False))
    assert {name: float(value) for name, value in metrics.items()} == {
        "train": pytest.approx(3.0), "val": pytest.approx(3.0), "test": pytest.approx(3.0)
    }  # fmt: skip
