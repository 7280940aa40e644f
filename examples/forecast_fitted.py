"""Forecast loads of sites of very different sizes: fitted on the past, tested on later days."""

import logging
import sys
import warnings

import lightning as L
import numpy as np
import torch
from seqdata_models import Forecaster

from seqdata import Loader, MeanStd, SequenceDataModule, Windows, fit, split

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")  # a hint that is not about this
torch.set_num_threads(1)  # a model this small is slower on several
days, epochs = (40, 1) if "--smoke" in sys.argv else (200, 6)
rng, hours = np.random.default_rng(0), np.arange(24 * days)
start = int(np.datetime64("2024-01-01", "s").astype(int))
sites = [
    {
        "x": (level * (2 + np.sin(2 * np.pi * (hours / 24 + rng.random()))))[:, None],
        "when": start + 3600 * hours,
        "site": site,
    }
    for site, level in enumerate([3.0, 40.0, 700.0])
]
torch.manual_seed(0)
parts = split(sites, {"train": 0.6, "val": 0.2, "test": 0.2}, along="time", context=48)
stats = fit(parts["train"], {"x": MeanStd(by="site")})
windows = Windows(size=48, stride=8, batch_size=32, horizon=12)
data = SequenceDataModule(
    **parts, batching=windows, transform=stats.transform(), dtype="float32", fields=["x", "site"]
)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = L.Trainer(max_epochs=epochs, devices=1, enable_checkpointing=False, **quiet)
model = Forecaster(features=1, horizon=12, hidden=32, learning_rate=0.01)
trainer.fit(model, data)
errors, naive = [], []
options = {"transform": stats.transform(), "dtype": "float32", "fields": ["x", "site"]}
for batch in Loader(parts["test"], windows, **options):
    found = {"forecast": model(batch.context["x"]), "future": batch.future["x"]}
    found["mean"] = batch.context["x"].mean(1, keepdim=True).expand(-1, 12, -1)
    true, forecast, mean = (
        stats.inverse()({"x": found[name].detach(), "site": batch["site"].tolist()})["x"]
        for name in ("future", "forecast", "mean")
    )
    errors.append(((forecast - true) / true).abs())
    naive.append(((mean - true) / true).abs())
print(f"off by {100 * torch.cat(errors).mean():.1f} % of the load; "
      f"the context's mean by {100 * torch.cat(naive).mean():.1f} %")  # fmt: skip
