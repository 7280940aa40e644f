"""The smallest plugin of seqdata: a backend, a policy and a collator."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seqdata import Plan, hookimpl


def open_lines(location, *, verify):
    """Open a text file with a sequence of numbers per line."""
    from seqdata.storage.memory import MemoryStore

    lines = Path(location).read_text("utf-8").splitlines()
    return MemoryStore.from_sequences([np.array(line.split(), dtype=np.float32) for line in lines])


@dataclass(frozen=True)
class Singles:
    """One sequence per batch, in the data's own order."""

    axis: str = "time"

    def plan(self, index, *, seed, epoch):
        order = np.arange(len(index))
        lengths = index.run(self.axis, 0, len(index))
        spans = np.stack([order, np.zeros_like(order), lengths], axis=1)
        return Plan(spans, offsets=np.arange(len(index) + 1))

    def num_batches(self, index):
        return len(index)


@dataclass(frozen=True)
class Flat:
    """All rows of a batch end to end, without padding."""

    def __call__(self, columns, batch):
        import torch

        for name, column in columns.items():
            pieces = [column[row] for row in range(len(column))]
            batch.data[name] = torch.from_numpy(np.concatenate(pieces))
        return batch


@hookimpl
def seqdata_register_backends():
    return {"tiny": open_lines}


@hookimpl
def seqdata_register_policies():
    return {"tiny-singles": Singles}


@hookimpl
def seqdata_register_collators():
    return {"tiny-flat": Flat}
