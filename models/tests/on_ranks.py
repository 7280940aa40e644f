"""Train and validate every model on some ranks; run as ``on_ranks.py RANKS OUT``."""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from seqdata_models import ByteLM, Forecaster, LSTMClassifier, LSTMTagger, Seq2SeqLSTM

from seqdata import Fixed, SequenceDataModule, TokenBudget, Windows, write_store


def labelled() -> list[dict[str, object]]:
    random = np.random.default_rng(0)
    return [
        {"x": random.normal(size=(int(random.integers(3, 20)), 4)), "y": int(random.integers(3))}
        for _ in range(17)  # 5 batches of 4: the last is short, and a padding row beside it
    ]


def tagged() -> list[dict[str, object]]:
    random = np.random.default_rng(2)
    return [{"x": row["x"], "y": random.integers(0, 3, len(row["x"]))} for row in labelled()]


def pairs(folder: Path) -> Path:
    random = np.random.default_rng(3)
    rows = [
        {name: random.integers(0, 7, random.integers(1, 12)) for name in ("source", "target")}
        for _ in range(17)
    ]
    if not folder.exists():  # the run of rank 0 writes it, before there are others
        write_store(folder, rows, axes={"source": "time", "target": "text"})
    return folder


def texts() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [
        random.integers(0, 256, int(random.integers(2, 60))).astype(np.uint8) for _ in range(20)
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


def train_all(ranks: int, folder: Path) -> dict[str, Any]:
    """Return what each model finds; any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*is deprecated")
        warnings.filterwarnings("ignore", message=".*weights_only=False.*")
        return _train_all(ranks, folder)


def _train_all(ranks: int, folder: Path) -> dict[str, Any]:
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
    torch.manual_seed(0)
    rows = tagged()
    tags = SequenceDataModule(train=rows, val=rows, batching=TokenBudget(40), batches_per_update=2)
    found["tagger"] = run(LSTMTagger(4, 3, hidden=6), tags, ranks)
    torch.manual_seed(0)
    series = [row["x"] for row in labelled()]
    batching = Windows(6, 2, 5, horizon=3)
    data = SequenceDataModule(train=series, val=series, batching=batching, batches_per_update=2)
    found["forecaster"] = run(Forecaster(4, 3, hidden=6), data, ranks)
    torch.manual_seed(0)
    store = pairs(folder / "pairs")
    data = SequenceDataModule(train=store, val=store, batching=Fixed(4), batches_per_update=2)
    found["seq2seq"] = run(Seq2SeqLSTM(7, 7, embedding=4, hidden=6), data, ranks)
    return found


def main() -> None:
    torch.set_num_threads(1)
    ranks, out = int(sys.argv[1]), Path(sys.argv[2])
    found = train_all(ranks, out.parent)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
