"""Runs whose callbacks log figures, and what was logged."""

import lightning.pytorch as pl

from tests.lightning.harness import QUIET, Recorder, quietly


class CarelessModel(Recorder):
    """Trains without a look at its batch."""

    def training_step(self, batch, batch_idx):
        return self.layer.weight.sum()


def read_logged(folder):
    """Return the rows that were logged, as dicts of what is there."""
    lines = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    head, *rows = lines
    return [
        {name: float(value) for name, value in zip(head, row, strict=True) if value} for row in rows
    ]


class BareLoader:
    """An iterable, and nothing else."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def fit_loader(loader, *callbacks, model=None):
    options = {**QUIET, "enable_checkpointing": False, "callbacks": list(callbacks)}
    with quietly():
        trainer = pl.Trainer(**options, max_epochs=1, log_every_n_steps=1)
        trainer.fit(model or CarelessModel(), loader)
    return trainer
