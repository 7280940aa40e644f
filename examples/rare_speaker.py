"""Find a rare speaker: the same model trained with sequences as they come, and drawn by weight.

::

    python examples/rare_speaker.py

The data is Japanese Vowels of ``seqdata.datasets``, or that of a folder as in japanese_vowels.py.
One of the nine speakers is to be told from the others, and only a few of the speaker's training
sequences are kept. The last line printed compares how many of the speaker's test sequences are
found (recall), and F1, which also counts those of others that are taken for the speaker's.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch
from japanese_vowels import Rows, as_rows, predict, quiet_trainer, read_split
from seqdata_models import LSTMClassifier

from seqdata import Bucketed, SequenceDataModule, Weighted, balanced
from seqdata.protocols import Policy

BATCH, HIDDEN = 16, 24


def make_rows(folder: Path | None, speaker: str, kept: int) -> tuple[Rows, Rows]:
    """Return the rows of both parts; ``y`` is 1 for the speaker, of whom few are kept to train."""
    train, train_labels = read_split(folder, "TRAIN")
    test, test_labels = read_split(folder, "TEST")
    own = [number for number, label in enumerate(train_labels) if label == speaker]
    numbers = sorted(set(range(len(train))) - set(own[kept:]))
    few = [train[number] for number in numbers]
    labels = [str(int(train_labels[number] == speaker)) for number in numbers]
    of_test = [str(int(label == speaker)) for label in test_labels]
    return as_rows(few, labels, ["0", "1"], few), as_rows(test, of_test, ["0", "1"], few)


def evaluate(
    train: Rows, test: Rows, batching: Policy, seed: int, epochs: int
) -> tuple[float, float]:
    """Train a model and return its recall and F1 of the rare class over the test rows."""
    L.seed_everything(seed, verbose=False)
    model = LSTMClassifier(train[0]["x"].shape[1], 2, hidden=HIDDEN)
    trainer = quiet_trainer(epochs)
    trainer.fit(model, SequenceDataModule(train=train, batching=batching))
    logits = predict(trainer, model, SequenceDataModule(predict=test, batching=Bucketed(64)))
    found, real = logits.argmax(dim=-1).numpy() == 1, np.array([row["y"] == 1 for row in test])
    hits = int((found & real).sum())
    return hits / int(real.sum()), 2 * hits / int(found.sum() + real.sum())


def compare(
    train: Rows, test: Rows, seeds: int, epochs: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the mean recall and F1 without weights, and with balanced ones."""
    means = []
    for batching in (Bucketed(BATCH), Weighted(Bucketed(BATCH), weights=balanced("y"))):
        results = [evaluate(train, test, batching, seed, epochs) for seed in range(seeds)]
        recall, f1 = np.mean(results, axis=0).tolist()
        means.append((recall, f1))
    return means[0], means[1]


def main() -> None:
    """Compare both, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where two .ts files lie")
    parser.add_argument("--speaker", default="3", help="who is to be found")
    parser.add_argument("--kept", type=int, default=5, help="training sequences of the speaker")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # hints that are not about this
    torch.set_num_threads(1)

    train, test = make_rows(options.folder, options.speaker, options.kept)
    print(f"{len(train)} sequences to train, {sum(row['y'] for row in train)} of the speaker's")
    plain, weighted = compare(train, test, options.seeds, options.epochs)
    print(
        f"recall {plain[0]:.2f}, F1 {plain[1]:.2f} as they come; "
        f"recall {weighted[0]:.2f}, F1 {weighted[1]:.2f} balanced"
    )


if __name__ == "__main__":
    main()
