"""Train stateful models on some ranks; run as ``on_ranks_stateful.py RANKS OUT``."""

import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.strategies import DDPStrategy
from seqdata_models import StatefulLM, StatefulTagger
from torch import Tensor

from seqdata import TBPTT, RankConsistency, SequenceDataModule

TOKENS = 7


class Recording(L.Callback):
    """Keeps the loss of each step, over all ranks."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        loss = outputs["loss"].detach().clone()
        if trainer.world_size > 1:
            torch.distributed.all_reduce(loss)
        self.losses.append(float(loss) / trainer.world_size)


def texts() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.integers(0, TOKENS, n) for n in random.integers(1, 60, 18)]


def tagged() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(2)
    lengths = random.integers(1, 90, 12)
    return [{"x": random.normal(size=(n, 3)), "y": random.integers(0, 3, n)} for n in lengths]


def run(model: L.LightningModule, data: SequenceDataModule, ranks: int) -> dict[str, Any]:
    recording = Recording()
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(timeout=timedelta(seconds=120)) if ranks > 1 else "auto",
        precision="64-true",
        accumulate_grad_batches=2,
        gradient_clip_val=0.1,
        val_check_interval=4,
        callbacks=[recording, RankConsistency(every_n_steps=1)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return {
        "losses": recording.losses,
        "metrics": {name: one for name, one in metrics.items() if not name.startswith("train")},
        "weights": weights[::31].tolist(),
        "states": states(model, ranks),
    }


def states(model: L.LightningModule, ranks: int) -> list[dict[int, float]]:
    """Return for each rank the lanes that it keeps and a figure of each one's state."""
    table = model.lanes.state_dict()["tables"]["train"]
    found = leaf(table["state"])[0].abs().sum(dim=-1)  # of the first layer, (lanes,)
    mine = dict(zip(table["lanes"].tolist(), found.tolist(), strict=True))
    every: list[Any] = [mine] * ranks
    if ranks > 1:
        torch.distributed.all_gather_object(every, mine)
    return every


def leaf(state: Any) -> Tensor:
    return state if isinstance(state, Tensor) else leaf(state[0])


def train_all(ranks: int) -> dict[str, Any]:
    """Return what each model finds; any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*is deprecated")
        warnings.filterwarnings("ignore", message=".*the load is uneven")
        return _train_all(ranks)


def _train_all(ranks: int) -> dict[str, Any]:
    found = {}
    torch.manual_seed(0)
    data = SequenceDataModule(
        train=texts(),
        val=texts()[:5],
        batching=TBPTT(6, 10, continuous=True),
        shift=1,
    )
    found["stream"] = run(StatefulLM(TOKENS, 4, 6), data, ranks)
    torch.manual_seed(0)
    data = SequenceDataModule(train=tagged(), val=tagged()[:5], batching=TBPTT(3, 16))
    found["lanes"] = run(StatefulTagger(3, 3, hidden=5, cell="gru"), data, ranks)
    torch.manual_seed(0)
    data = SequenceDataModule(
        train=texts(), val=texts()[:5], batching=TBPTT(6, 10, segments=True), shift=1
    )
    found["segments"] = run(StatefulLM(TOKENS, None, 6), data, ranks)
    return found


def main() -> None:
    torch.set_num_threads(1)
    ranks, out = int(sys.argv[1]), Path(sys.argv[2])
    found = train_all(ranks)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
