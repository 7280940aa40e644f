"""Means that are sums over counts."""

from __future__ import annotations

import math

import pytest
import torch
from seqdata_models.metrics import BitsPerToken, ExactMeanMetric, Perplexity
from torch import nn


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_metrics_of_a_module_that_is_converted_stay_float64(dtype):
    """As `precision="bf16-true"` converts it, of which a count stands still at 256."""
    module = nn.ModuleList([ExactMeanMetric(), Perplexity(), BitsPerToken()])
    module[0].update(torch.tensor(5.0), 1)
    module.to(dtype)
    for number in range(2):  # after a reset the states are the defaults
        for metric in module:
            for _ in range(3000 - (number == 0 and metric is module[0])):
                metric.update(torch.tensor(5.0), 1)
        assert [float(metric.compute()) for metric in module] == [5, math.exp(5), 5 / math.log(2)]
        for metric in module:
            metric.reset()
            assert metric.total.dtype == metric.count.dtype == torch.float64


def test_metrics_move_to_a_device_as_they_are():
    module = nn.ModuleList([ExactMeanMetric()]).to("meta", torch.bfloat16)
    assert module[0].count.device.type == module[0].device.type == "meta"
    assert module[0].count.dtype == torch.float64
    module.to_empty(device="cpu")
    assert module[0].total.device.type == "cpu"
