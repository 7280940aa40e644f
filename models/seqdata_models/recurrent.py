"""Parts of stateful models: a recurrent layer by name, and Adam with or without a schedule."""

from __future__ import annotations

from typing import Literal

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn

from seqdata import ConfigError
from seqdata_models.schedules import Cosine, count_updates, each_update

Cell = Literal["lstm", "gru"]


def recurrent_layer(
    model: str, cell: str, inputs: int, hidden: int, layers: int, dropout: float
) -> nn.LSTM | nn.GRU:
    """Return a recurrent layer over (B, T, inputs).

    Args:
        model: Name of the model, for the error.
        cell: ``lstm`` or ``gru``.
        inputs: Number of features of a timestep.
        hidden: Size of the hidden state.
        layers: Number of stacked layers.
        dropout: Fraction of activations dropped between layers.

    Raises:
        ConfigError: If ``cell`` is neither ``lstm`` nor ``gru``.
    """
    kinds: dict[str, type[nn.LSTM | nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
    if cell not in kinds:
        raise ConfigError(f"{model}: `cell` must be 'lstm' or 'gru', but is {cell!r}. Use 'lstm'.")
    between = dropout if layers > 1 else 0.0
    return kinds[cell](inputs, hidden, layers, batch_first=True, dropout=between)


def adam(module: L.LightningModule, learning_rate: float, *, cosine: bool) -> OptimizerLRScheduler:
    """Return Adam over all parameters, with or without a schedule.

    Args:
        module: Module to train, with a Trainer.
        learning_rate: Initial learning rate.
        cosine: Whether the learning rate falls to 0 along half a cosine over the updates of the
            whole fit. It is constant if the length of the fit is unknown (endless epochs).
    """
    optimizer = torch.optim.Adam(module.parameters(), learning_rate)
    total, done = count_updates(module) if cosine else (0, 0)
    return each_update(optimizer, Cosine(optimizer, total, done)) if total else optimizer
