"""Recognize nine speakers by 7 to 29 frames of sound, with a bidirectional LSTM.

::

    python examples/japanese_vowels.py --predictions predictions.json

The data comes with seqdata (``seqdata.datasets``: UCI, CC BY 4.0). With a FOLDER, other data in the
text format of the UEA archive is read from its files ``*_TRAIN.ts`` and ``*_TEST.ts``. The last
line printed is the mean test accuracy over the seeds.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from seqdata_models import LSTMClassifier

from seqdata import Fixed, SequenceDataModule
from seqdata.datasets import load_japanese_vowels

BATCH = 30
# The usual value, fixed beforehand. An earlier version had 3e-3, found partly by looking at test
# accuracies: such a figure is no test any more, so it was taken back.
WEIGHT_DECAY = 1e-4
Rows = list[dict[str, Any]]


def read_ts(path: Path) -> tuple[list[np.ndarray], list[str]]:
    """Return the sequences of a .ts file, each float32 (T, channels), and their labels."""
    sequences, labels = [], []
    _, data = path.read_text().split("@data\n", maxsplit=1)
    for line in data.splitlines():
        *channels, label = line.strip().split(":")
        if not channels:
            continue  # an empty line
        rows = [np.array(channel.split(","), dtype=np.float32) for channel in channels]
        sequences.append(np.stack(rows, axis=1))
        labels.append(label)
    return sequences, labels


def read_split(folder: Path | None, part: str) -> tuple[list[np.ndarray], list[str]]:
    """Return what the one file of a part, TRAIN or TEST, holds; without a folder, our own data."""
    if folder is None:
        store = load_japanese_vowels(part.lower())
        return [row["x"] for row in store], [str(row["y"] + 1) for row in store]
    files = sorted(folder.glob(f"*_{part}.ts"))
    if len(files) != 1:
        raise SystemExit(f"{folder}: has {len(files)} files *_{part}.ts, must have one")
    return read_ts(files[0])


def as_rows(
    sequences: list[np.ndarray], labels: list[str], known: list[str], train: list[np.ndarray]
) -> Rows:
    """Return dicts of ``x``, scaled by the mean and deviation of the training data, and ``y``."""
    frames = np.concatenate(train)
    mean, deviation = frames.mean(axis=0), frames.std(axis=0)
    return [
        {"x": (x - mean) / deviation, "y": known.index(label)}
        for x, label in zip(sequences, labels, strict=True)
    ]


def quiet_trainer(epochs: int) -> L.Trainer:
    """Return a Trainer that writes no file and shows nothing."""
    return L.Trainer(
        max_epochs=epochs,
        gradient_clip_val=1.0,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def predict(trainer: L.Trainer, model: LSTMClassifier, data: SequenceDataModule) -> torch.Tensor:
    """Return the logits of all sequences, in the data's own order, (sequences, classes)."""
    batches = trainer.predict(model, data)
    ids = torch.cat([batch["ids"] for batch in batches])
    return torch.cat([batch["logits"] for batch in batches])[ids.argsort()]


def run(seed: int, epochs: int, train: Rows, test: Rows, classes: int) -> torch.Tensor:
    """Train on one seed and give the logits of the test sequences."""
    L.seed_everything(seed, verbose=False)
    features = train[0]["x"].shape[1]
    model = LSTMClassifier(features, classes, layout="dense", weight_decay=WEIGHT_DECAY)
    trainer = quiet_trainer(epochs)
    trainer.fit(model, SequenceDataModule(train=train, batching=Fixed(BATCH)))
    logits = predict(trainer, model, SequenceDataModule(predict=test, batching=Fixed(BATCH)))
    whole = predict(trainer, model, SequenceDataModule(predict=test, batching=Fixed(len(test))))
    difference = float((whole - logits).abs().max())
    print(f"  one batch of all and batches of {BATCH}: logits differ by at most {difference:.1e}")
    return logits


def main() -> None:
    """Train on every seed, tell each accuracy, and last their mean."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where two .ts files lie")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--predictions", type=Path, help="JSON: for each seed the test's labels")
    parser.add_argument("--smoke", action="store_true", help="two epochs of two seeds")
    options = parser.parse_args()
    if options.smoke:
        options.epochs = options.seeds = 2
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # hints that are not about this
    torch.set_num_threads(1)  # several are much slower where other programs want the cores too

    train, train_labels = read_split(options.folder, "TRAIN")
    test, test_labels = read_split(options.folder, "TEST")
    known = sorted(set(train_labels))
    train_rows = as_rows(train, train_labels, known, train)
    test_rows = as_rows(test, test_labels, known, train)
    print(f"{len(train)} sequences to train, {len(test)} to test, {len(known)} speakers")

    predictions, accuracies = [], []
    for seed in range(options.seeds):
        begun = time.perf_counter()
        logits = run(seed, options.epochs, train_rows, test_rows, len(known))
        predictions.append([known[label] for label in logits.argmax(dim=-1).tolist()])
        accuracies.append(100 * float(np.mean(np.array(predictions[-1]) == test_labels)))
        print(f"seed {seed}: {accuracies[-1]:.1f} % in {time.perf_counter() - begun:.0f} s")
    if options.predictions:
        options.predictions.write_text(json.dumps(predictions))
    print(f"mean test accuracy {np.mean(accuracies):.1f} % over {options.seeds} seeds")


if __name__ == "__main__":
    main()
