"""Transforms, small stores that they are applied to, and the batches that come of it."""

import numpy as np

from seqdata.loading.engine import EpochEngine
from seqdata.loading.options import EngineOptions
from seqdata.policies.fixed import Fixed
from seqdata.storage.memory import MemoryStore

STORE = MemoryStore.from_sequences(
    [
        {"x": np.arange(n) + 10 * n, "y": n, "v": np.ones(2), "text": np.arange(4), "id": f"s{n}"}
        for n in (4, 2, 3)
    ],
    axes={"text": "text", "v": None},
)
LONG = MemoryStore.from_sequences(
    [{"x": np.arange(n) + 100 * n, "id": f"s{n}"} for n in (9, 4, 1, 6)]
)  # halved: 4, 2, 0, 3
PLAIN = Fixed(3, shuffle=False)


def make_batch(transform, store=STORE, policy=PLAIN, epoch=0, **options):
    options = {"prefetch": 0, **options}
    return next(
        EpochEngine(store, policy, EngineOptions(transform=transform, **options)).iterate(epoch, 0)
    )


def halve(sequence, rng):
    x = sequence["x"]
    return {**sequence, "x": x[: len(x) // 2 * 2].reshape(-1, 2).sum(axis=1)}


halve.lengths = lambda lengths: lengths // 2


def runs(sequence, rng):
    """Keep a value where another one begins; nobody can say how many from the length alone."""
    x = sequence["x"]
    return {"x": x[np.flatnonzero(np.diff(x, prepend=-1))], "u": rng.integers(1 << 62)}
