"""Learn from few labels and many sequences without: a batch of both in every step.

::

    python examples/semi_supervised.py

The data is Japanese Vowels of ``seqdata.datasets``, or that of a folder as in japanese_vowels.py. A
few sequences of each of nine speakers keep their label, the others lose it. For those the model is
asked twice: where it is sure of a speaker, it should also say so of the same sequence with noise
(pseudo-labels, as FixMatch has them). The last line printed compares the test accuracy with that of
the same training in which sequences without a label do not count.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from japanese_vowels import Rows, as_rows, predict, quiet_trainer, read_split
from seqdata_models import LSTMClassifier
from torch import Tensor

from seqdata import Bucketed, SequenceBatch, SequenceDataModule, Zip

LABELLED, UNLABELLED, HIDDEN = 9, 27, 32  # rows of a batch; size of the model
NOISE, CONFIDENCE = 0.5, 0.95  # deviation of noise; share of certainty from which a label is taken


class SemiSupervised(LSTMClassifier):
    """A classifier that also learns from its own sure answers.

    Args:
        unlabelled_weight: How much sequences without a label count; 0: not at all.
    """

    def __init__(self, features: int, classes: int, unlabelled_weight: float) -> None:
        super().__init__(features, classes, hidden=HIDDEN, layout="dense")
        self.unlabelled_weight = unlabelled_weight

    def training_step(self, batch: dict[str, SequenceBatch]) -> Tensor:
        """Return the loss of both parts, each an exact mean over its own rows."""
        labelled, unlabelled = batch["labelled"], batch["unlabelled"]
        targets, sure = self.guess(unlabelled)
        supervised = F.cross_entropy(self.noisy(labelled), labelled["y"], reduction="none")
        guessed = F.cross_entropy(self.noisy(unlabelled), targets, reduction="none") * sure
        loss = (supervised * labelled.weight).sum() * labelled.sequence_scale
        more = (guessed * unlabelled.weight).sum() * unlabelled.sequence_scale
        ramp = min(1.0, 3 * self.current_epoch / self.trainer.max_epochs)  # first learn labels
        return loss + self.unlabelled_weight * ramp * more

    @torch.no_grad()
    def guess(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Return the likeliest class of each row, and whether the model is sure of it."""
        self.eval()
        certainty, targets = self(batch).softmax(dim=-1).max(dim=-1)
        self.train()
        return targets, (certainty > CONFIDENCE).float()

    def noisy(self, batch: SequenceBatch) -> Tensor:
        """Return the logits of rows with noise."""
        clean = batch.data["x"]
        batch.data["x"] = clean + NOISE * torch.randn_like(clean)
        logits: Tensor = self(batch)
        batch.data["x"] = clean
        return logits


def split_rows(rows: Rows, kept: int, seed: int) -> dict[str, Rows]:
    """Return ``kept`` rows of each class with their label, and the others without."""
    order = np.random.default_rng(seed).permutation(len(rows)).tolist()
    parts: dict[str, Rows] = {"labelled": [], "unlabelled": []}
    counts: dict[int, int] = {}
    for row in (rows[number] for number in order):
        counts[row["y"]] = counts.get(row["y"], 0) + 1
        is_kept = counts[row["y"]] <= kept
        parts["labelled" if is_kept else "unlabelled"].append(row if is_kept else {"x": row["x"]})
    return parts


def evaluate(parts: dict[str, Rows], test: Rows, weight: float, seed: int, epochs: int) -> float:
    """Train a model and return its test accuracy in percent."""
    L.seed_everything(seed, verbose=False)
    features, classes = test[0]["x"].shape[1], 1 + max(row["y"] for row in test)
    model, trainer = SemiSupervised(features, classes, weight), quiet_trainer(epochs)
    batching = Zip(
        {"labelled": Bucketed(LABELLED), "unlabelled": Bucketed(UNLABELLED)}, lead="labelled"
    )
    trainer.fit(model, SequenceDataModule(train=parts, batching=batching))
    logits = predict(trainer, model, SequenceDataModule(predict=test, batching=Bucketed(64)))
    found, real = logits.argmax(dim=-1).numpy(), np.array([row["y"] for row in test])
    return 100 * float((found == real).mean())


def main() -> None:
    """Compare both, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where two .ts files lie")
    parser.add_argument("--kept", type=int, default=2, help="labels of each class that are kept")
    parser.add_argument("--epochs", type=int, default=120, help="passes over what is labelled")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # hints that are not about this
    torch.set_num_threads(1)

    train, train_labels = read_split(options.folder, "TRAIN")
    test, test_labels = read_split(options.folder, "TEST")
    known = sorted(set(train_labels))
    train_rows = as_rows(train, train_labels, known, train)
    test_rows = as_rows(test, test_labels, known, train)
    results = []
    for seed in range(options.seeds):
        parts = split_rows(train_rows, options.kept, seed)
        if not seed:
            print(f"{len(parts['labelled'])} sequences with a label, {len(parts['unlabelled'])} "
                  "without")  # fmt: skip
        results.append(
            [evaluate(parts, test_rows, weight, seed, options.epochs) for weight in (0.0, 1.0)]
        )
        print(f"seed {seed}: {results[-1][0]:.1f} % and {results[-1][1]:.1f} %")
    alone, both = np.mean(results, axis=0).tolist()
    print(f"accuracy {alone:.1f} % from labels alone; {both:.1f} % with sequences without a label")


if __name__ == "__main__":
    main()
