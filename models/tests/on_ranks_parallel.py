"""Fit under a strategy, resumed from a checkpoint if one is given; run with SPEC (JSON)."""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torchmetrics
from seqdata_models import StatefulLM
from seqdata_models.parallel import RingStrategy, WavefrontStrategy

from seqdata import TBPTT, SequenceDataModule

sys.path.insert(0, str(Path(__file__).parent))
from on_mesh import break_it

TOKENS, CHUNKS = 7, 2


class Counting(StatefulLM):
    """Counts timesteps of validation: sums, which stages must not add to."""

    def __init__(self) -> None:
        super().__init__(TOKENS, 4, 6, 3, learning_rate=0.05)
        self.counted = torchmetrics.SumMetric()

    def validation_step(self, batch):
        super().validation_step(batch)
        self.counted.update(batch.num_tokens)
        self.log("counted_by_metric", self.counted)
        count = float(batch.num_tokens)
        self.log("counted", count, reduce_fx="sum", sync_dist=True, on_epoch=True)


class Saving(L.Callback):
    """Saves after the last update; the processes of a ring read parts of rows only."""

    def __init__(self, steps: int, path: str) -> None:
        self.steps, self.path = steps, path

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        assert (batch.whole is None) != isinstance(trainer.strategy, RingStrategy)
        if trainer.global_step == self.steps:
            trainer.save_checkpoint(self.path)


def fit(spec: dict[str, Any]) -> None:
    """Fit; write a checkpoint and metrics."""
    strategies = {
        "one": lambda: "auto",
        "data": lambda: "ddp",
        "wave": lambda: WavefrontStrategy(2, chunks=CHUNKS, lane_groups=2),
        "ring": lambda: RingStrategy(2, lane_groups=2, split_backward=True),
        "torch": lambda: WavefrontStrategy(2, chunks=CHUNKS, engine="torch"),
        "hybrid": lambda: WavefrontStrategy(2, chunks=CHUNKS, data=2),
        "ring hybrid": lambda: RingStrategy(2, lane_groups=2, data=2),
    }
    torch.manual_seed(0)
    random = np.random.default_rng(1)
    texts = [random.integers(0, TOKENS, n) for n in random.integers(1, 60, 24)]
    fault = spec.get("fault")
    data = SequenceDataModule(
        train=texts, val=None if fault else texts[:5], batching=TBPTT(4, 10, segments=True), shift=1
    )
    trainer = L.Trainer(
        max_steps=spec["steps"],
        accelerator="cpu",
        devices=spec["devices"],
        strategy=strategies[spec["strategy"]](),
        precision="64-true",
        accumulate_grad_batches=CHUNKS,
        gradient_clip_val=0.1,
        val_check_interval=None if fault else 0.25,
        callbacks=[Saving(spec["steps"], spec["save"])],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Counting()
    model.double()  # before a checkpoint is loaded: Lightning converts it later
    if fault and fault["rank"] == int(os.environ["RANK"]):
        break_it(model, fault["kind"], Path(spec["folder"]))
    trainer.fit(model, data, ckpt_path=spec.get("resume"), weights_only=False)
    if trainer.is_global_zero:
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        Path(spec["save"] + ".json").write_text(json.dumps(metrics))


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    spec = json.loads(sys.argv[1])
    if "group" in spec:  # a file: a port that is free now may be another program's in a moment
        rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{spec['group']}", rank=rank, world_size=world
        )
    fit(spec)


if __name__ == "__main__":
    main()
