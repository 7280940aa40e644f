"""Go on with a wave: two sines of known periods and unknown phases, 8 timesteps from 24."""

import logging
import sys
import warnings

import lightning as L
import numpy as np
import torch
from seqdata_models import Forecaster

from seqdata import Loader, SequenceDataModule, Windows

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")  # a hint that is not about this
torch.set_num_threads(1)  # a model this small is slower on several
count, epochs = (4, 1) if "--smoke" in sys.argv else (60, 8)


def waves(count: int, seed: int):
    """Yield float32 (T, 1) each."""
    rng = np.random.default_rng(seed)
    for length in rng.integers(60, 200, count):
        angles = 2 * np.pi * (np.arange(length)[:, None] / [11, 17] + rng.random(2))
        yield np.sin(angles).sum(axis=1, keepdims=True).astype(np.float32)


torch.manual_seed(0)
train, val, test = (list(waves(count, seed)) for seed in range(3))
windows = Windows(size=24, stride=4, batch_size=32, horizon=8)
data = SequenceDataModule(train=train, val=val, test=test, batching=windows)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = L.Trainer(max_epochs=epochs, devices=1, enable_checkpointing=False, **quiet)
model = Forecaster(features=1, horizon=8, hidden=32, learning_rate=0.01)
trainer.fit(model, data)
(found,) = trainer.test(model, data, verbose=False)
errors = [b.future["x"] - b.context["x"].mean(1, keepdim=True) for b in Loader(test, windows)]
mean = torch.cat(errors).square().mean()
print(f"mean squared error {found['test_mse']:.3f}; of the context's mean {mean:.3f}")
