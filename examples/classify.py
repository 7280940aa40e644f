"""Classify which of two marks comes first: one label per sequence."""

import logging
import sys
import warnings

import lightning as L
import numpy as np
import torch
from seqdata_models import LSTMClassifier

from seqdata import Bucketed, SequenceDataModule

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")  # a hint that is not about this
torch.set_num_threads(1)  # a model this small is slower on several
count, epochs = (40, 1) if "--smoke" in sys.argv else (800, 10)


def marked(count: int, seed: int):
    """Yield noise ``x`` (T, 2) with a mark in each channel, and ``y``, the channel of the first."""
    rng = np.random.default_rng(seed)
    for length in rng.integers(10, 80, count):
        x, y = rng.normal(0, 0.3, (length, 2)).astype(np.float32), int(rng.integers(2))
        first, second = sorted(rng.choice(length, 2, replace=False))
        x[first, y] = x[second, 1 - y] = 3
        yield {"x": x, "y": y}


torch.manual_seed(0)
train, val, test = (list(marked(count, seed)) for seed in range(3))
data = SequenceDataModule(train=train, val=val, test=test, batching=Bucketed(32))
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = L.Trainer(max_epochs=epochs, devices=1, enable_checkpointing=False, **quiet)
model = LSTMClassifier(features=2, classes=2, hidden=32)
trainer.fit(model, data)
(found,) = trainer.test(model, data, verbose=False)
blind = np.bincount([row["y"] for row in test]).max() / len(test)
print(f"accuracy {found['test_accuracy']:.3f}; the best without the order {blind:.3f}")
