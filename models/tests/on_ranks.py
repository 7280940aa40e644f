"""Train and validate both models on some ranks; run as ``on_ranks.py RANKS OUT``."""

import json
import os
import sys
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch
from seqdata_models import ByteLM, LSTMClassifier

from seqdata import Fixed, SequenceDataModule, TokenBudget


def labelled() -> list[dict[str, object]]:
    random = np.random.default_rng(0)
    return [
        {"x": random.normal(size=(int(random.integers(3, 20)), 4)), "y": int(random.integers(3))}
        for _ in range(25)  # 7 batches of 4: the last is short, and filler stands beside it
    ]


def texts() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [
        random.integers(0, 256, int(random.integers(2, 60))).astype(np.uint8) for _ in range(30)
    ]


def run(model: L.LightningModule, data: SequenceDataModule, ranks: int) -> dict[str, float]:
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        precision="64-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    found |= {f"weight {number}": float(one) for number, one in enumerate(weights[::97])}
    return {name: value for name, value in found.items() if not name.startswith("train")}


def main() -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*is deprecated")
    warnings.filterwarnings("ignore", message=".*weights_only=False.*")
    torch.set_num_threads(1)
    ranks, out = int(sys.argv[1]), Path(sys.argv[2])
    rows, found = labelled(), {}
    torch.manual_seed(0)
    classes = SequenceDataModule(train=rows, val=rows, batching=Fixed(4), batches_per_update=2)
    model = LSTMClassifier(4, 3, hidden=6, dropout=0.0)
    found["classifier"] = run(model, classes, ranks)
    torch.manual_seed(0)
    batching = TokenBudget(120)
    data = SequenceDataModule(
        train=texts(), val=texts(), batching=batching, shift=1, batches_per_update=2
    )
    found["bytes"] = run(ByteLM(4, 6), data, ranks)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
