"""Parts that are measured are those that were counted, and each size is measured once."""

import pytest
import torch
from torch import nn

from seqdata.cli._doctor.stack_counts import StackTimer, _make_module, count_model

MODELS = {
    "lstm": nn.LSTM(3, 8, 2, batch_first=True),
    "gru": nn.GRU(3, 8, 2, bias=False),
    "rnn": nn.RNN(3, 8, bidirectional=True),
    "projection": nn.LSTM(3, 8, 2, proj_size=2, bidirectional=True),
    "head": nn.Sequential(nn.LSTM(3, 8), nn.Linear(8, 5, bias=False)),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_measured_has_the_weights_that_were_counted(name):
    for part in count_model(MODELS[name], name, is_cpu=True).parts:
        made = _make_module(part)
        assert sum(value.numel() for value in made.parameters()) == part.parameters


def test_each_size_is_measured_once(monkeypatch):
    measured = []
    monkeypatch.setattr(
        StackTimer,
        "_measure",
        lambda self, part, rows: float(len(measured.append(rows) or measured)),
    )
    timer = StackTimer("cpu", torch.float32, timesteps=4)
    first, second = count_model(nn.LSTM(8, 8, 2), "x", is_cpu=True).parts
    assert timer(first, 4) == timer(second, 4) == 1 / 4
    assert timer(first, 2) == 2 / 4
    assert measured == [4, 2]


def test_seconds_are_those_of_forward_and_backward():
    timer = StackTimer("cpu", torch.float64, timesteps=2)
    for name in MODELS:
        assert all(
            timer(part, 2) > 0 for part in count_model(MODELS[name], name, is_cpu=True).parts
        )
