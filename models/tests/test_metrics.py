"""Means that are sums over counts."""

from __future__ import annotations

import math

import torch
from seqdata_models.metrics import BitsPerToken, ExactMeanMetric, Perplexity


def test_mean_over_unequal_batches_is_the_mean_over_all():
    mean = ExactMeanMetric()
    mean.update(torch.tensor(10.0), 1)
    mean.update(torch.tensor(2.0), torch.tensor(3))
    assert float(mean.compute()) == 3.0
    assert mean.compute().dtype == torch.float64


def test_mean_over_nothing_is_zero():
    mean = ExactMeanMetric()
    mean.update(torch.tensor(0.0), 0)
    assert float(mean.compute()) == 0.0


def test_sums_keep_what_float32_would_lose():
    mean = ExactMeanMetric()
    for _ in range(1000):
        mean.update(torch.tensor(0.1), 1)
    mean.update(torch.tensor(1e8), 1)
    expected = (1000 * float(torch.tensor(0.1).double()) + 1e8) / 1001
    assert abs(float(mean.compute()) - expected) <= 1e-6


def test_perplexity_and_bits_are_of_the_exact_mean_over_unequal_batches():
    perplexity, bits = Perplexity(), BitsPerToken()
    for metric in (perplexity, bits):
        metric.update(torch.tensor(10.0), 3)
        metric.update(torch.tensor(2.0), torch.tensor(1))
    assert float(perplexity.compute()) == math.exp(3.0)
    assert float(bits.compute()) == 3.0 / math.log(2)
    assert perplexity.compute().dtype == bits.compute().dtype == torch.float64


def test_as_likely_as_one_of_n_is_a_perplexity_of_n_and_log2_n_bits():
    nll = torch.full((7,), math.log(256), dtype=torch.float64).sum()
    perplexity, bits = Perplexity(), BitsPerToken()
    for metric in (perplexity, bits):
        metric.update(nll, 7)
    assert abs(float(perplexity.compute()) - 256) <= 1e-9
    assert abs(float(bits.compute()) - 8) <= 1e-12


def test_perplexity_and_bits_over_nothing_are_of_a_mean_of_zero():
    perplexity, bits = Perplexity(), BitsPerToken()
    for metric in (perplexity, bits):
        metric.update(torch.tensor(0.0), 0)
    assert float(perplexity.compute()) == 1.0
    assert float(bits.compute()) == 0.0
