"""The exact mean in one process; on several: tests/distributed/test_prediction.py."""

import lightning.pytorch as pl
import pytest
import torch

from seqdata.errors import ConfigError
from seqdata.lightning.metrics import ExactMean


def test_it_is_a_sum_over_a_count():
    mean = ExactMean()
    mean.update(torch.tensor(3.0, requires_grad=True), torch.tensor(2))
    mean.update(1, 2)
    assert mean.compute() == mean.compute() == 1.0


def test_the_mean_over_nothing_is_zero():
    mean = ExactMean()
    assert mean.compute() == 0.0
    mean.update(0.0, 0)
    assert mean.compute() == 0.0


def test_reset_begins_anew():
    mean = ExactMean()
    mean.update(5.0, 1)
    mean.reset()
    mean.update(1.0, 4)
    assert mean.compute() == 0.25


def test_small_things_are_not_lost_beside_large_ones():
    mean = ExactMean()
    for _ in range(1000):
        mean.update(torch.tensor(16777216.0), torch.tensor(0.5, dtype=torch.float16))
        mean.update(torch.tensor(1.0), torch.tensor(0.5, dtype=torch.float16))
    assert mean.compute() == 16777217.0


def test_it_is_no_part_of_a_modules_state():
    module = pl.LightningModule()
    module.mean = ExactMean()
    assert list(module.state_dict()) == list(module.buffers()) == list(module.children()) == []


def test_a_sum_is_one_number():
    with pytest.raises(
        ConfigError, match=r"`total` must be a single number, but has shape \(3,\). Sum it"
    ):
        ExactMean().update(torch.ones(3), 3)
    with pytest.raises(
        ConfigError, match=r"`count` must be a single number, but has shape \(1,\). Sum it"
    ):
        ExactMean().update(torch.tensor(1.0), torch.ones(1))
