"""A small classifier, trained on sequences in a given order: what an order does to a model."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from shuffling_set.orders import Order

WIDTH, HIDDEN, TESTED = 16, 32, 5_000
UPDATES, EVERY = 200, 10  # the last updates, after every tenth of which the model is tested
OPTIMIZERS = {
    "Adam": partial(torch.optim.Adam, lr=1e-3),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
}


class Examples(NamedTuple):
    """The pooled features of sequences, float32 (n, WIDTH), and their classes, int64 (n,)."""

    features: torch.Tensor
    labels: torch.Tensor


def make_examples(
    labels: NDArray[np.int64], spread: float, seed: int = 0
) -> tuple[Examples, Examples]:
    """Return the examples of some labels, and others of the same classes to test with.

    Args:
        labels: int64 (n,).
        spread: How far classes lie apart, in deviations of an example from its class.
        seed: Seed of the classes and the deviations.
    """
    rng = np.random.default_rng(seed)
    centers = spread * rng.normal(size=(int(labels.max()) + 1, WIDTH)).astype(np.float32)

    def draw(labels: NDArray[np.int64]) -> Examples:
        noise = rng.standard_normal((len(labels), WIDTH), dtype=np.float32)
        return Examples(torch.from_numpy(centers[labels] + noise), torch.from_numpy(labels))

    return draw(labels), draw(rng.choice(labels, TESTED))


def train(
    order: Order, examples: Examples, tested: Examples, optimizer: str = "Adam", seed: int = 0
) -> float:
    """Train for one epoch; return the percent of right answers to the test in the last updates."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classes = int(examples.labels.max()) + 1
        model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))
    update = OPTIMIZERS[optimizer](model.parameters())
    numbers, bounds = torch.from_numpy(order.numbers), order.offsets.tolist()
    rows = float(order.sizes.mean())  # of a batch: each sequence counts the same in the epoch
    scores, last = [], len(order.sizes) - 1
    for batch in range(len(order.sizes)):
        chosen = numbers[bounds[batch] : bounds[batch + 1]]
        logits = model(examples.features[chosen])
        update.zero_grad()
        loss = nn.functional.cross_entropy(logits, examples.labels[chosen], reduction="sum")
        (loss / rows).backward()
        update.step()
        if last - batch < UPDATES and (last - batch) % EVERY == 0:
            with torch.no_grad():
                is_right = model(tested.features).argmax(1) == tested.labels
            scores.append(100 * float(is_right.float().mean()))
    return float(np.mean(scores))
