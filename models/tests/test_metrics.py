"""Means that are sums over counts."""

from __future__ import annotations

import torch
from seqdata_models.metrics import ExactMean


def test_mean_over_unequal_batches_is_the_mean_over_all():
    mean = ExactMean()
    mean.update(torch.tensor(10.0), 1)
    mean.update(torch.tensor(2.0), torch.tensor(3))
    assert float(mean.compute()) == 3.0
    assert mean.compute().dtype == torch.float64


def test_mean_over_nothing_is_zero():
    mean = ExactMean()
    mean.update(torch.tensor(0.0), 0)
    assert float(mean.compute()) == 0.0


def test_sums_keep_what_float32_would_lose():
    mean = ExactMean()
    for _ in range(1000):
        mean.update(torch.tensor(0.1), 1)
    mean.update(torch.tensor(1e8), 1)
    expected = (1000 * float(torch.tensor(0.1).double()) + 1e8) / 1001
    assert abs(float(mean.compute()) - expected) <= 1e-6
