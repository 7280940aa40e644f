"""Functions for models over padded rows: last valid timestep, masked means and masked losses.

Padding never affects a result or a gradient, even if it is NaN. Masked values are replaced with
``torch.where`` before they are used, because ``0 * NaN`` is NaN.
"""

from __future__ import annotations

import warnings
from typing import Literal

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from seqdata import ConfigError, SequenceBatch, check_autocast, unwrap_module

Layout = Literal["packed", "dense"]  # how an LSTM is trained over padded rows

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # the order that `torch.lstm` takes


def check_layout(model: str, layout: str) -> None:
    """Raise if a value is not a ``Layout``.

    Args:
        model: Name of the model, for the error.
        layout: Value to check.

    Raises:
        ConfigError: If it is neither ``"packed"`` nor ``"dense"``.
    """
    if layout not in ("packed", "dense"):
        raise ConfigError(
            f"{model}: `layout` must be 'packed' or 'dense', but is {layout!r}. Use 'packed'."
        )


def check_precision(module: L.LightningModule) -> None:
    """Raise if this processor cannot run the LSTMs of a module in the Trainer's precision.

    Args:
        module: Module with a Trainer; its ``setup`` calls this function, before the first step.

    Raises:
        ConfigError: If the processor has no kernel for the precision.
    """
    with module.trainer.precision_plugin.forward_context():
        check_autocast(module, module.trainer.strategy.root_device)


def check_rows(model: str, batch: SequenceBatch) -> None:
    """Raise if a row contains several sequences, because a model would mix their states.

    Args:
        model: Name of the model, for the error.
        batch: Batch to check.

    Raises:
        ConfigError: If a row contains more than one sequence.
    """
    if batch.segments is not None and len(batch.segments) > len(batch):
        raise ConfigError(
            f"{model}: each row must hold one sequence, but {len(batch)} rows hold "
            f"{len(batch.segments)}. Batch with Bucketed or TokenBudget in place of Packed."
        )


def field_name(x: str, field: str | None) -> str:
    """Return the name of the field that a model reads.

    A ``field`` that differs from ``x`` is returned, with a DeprecationWarning.

    Args:
        x: Value of the argument ``x``.
        field: Value of the argument ``field`` of version 0.1; None if it was not passed.
    """
    if field is None or field == x:
        return x
    warnings.warn("`field` is deprecated: write `x`", DeprecationWarning, stacklevel=3)
    return field


def last_valid(
    out: Tensor | PackedSequence, lengths: Tensor, *, bidirectional: bool = False
) -> Tensor:
    """Return the output of each row at its last valid timestep.

    The result equals ``out[:, -1]`` only for rows without padding.

    Args:
        out: (B, T, H) float, outputs of a recurrent layer, or a PackedSequence of them.
        lengths: (B,) int64, number of valid timesteps of each row, on any device.
        bidirectional: Whether the second half of H is the output of a backward direction. Its last
            output is at the first timestep of the row and is read there; at the last valid timestep
            it has read only one timestep. The result is then ``h_n`` of the last layer in a packed
            run, with both directions concatenated.

    Returns:
        (B, H) float; 0 for a row of length 0.
    """
    if isinstance(out, PackedSequence):
        out, _ = pad_packed_sequence(out, batch_first=True)
    lengths = lengths.to(out.device)
    last = (lengths - 1).clamp(min=0)
    final = out[torch.arange(len(out), device=out.device), last]  # (B, H)
    if bidirectional:
        forward, _ = final.chunk(2, dim=-1)
        _, backward = out[:, 0].chunk(2, dim=-1)
        final = torch.cat([forward, backward], dim=-1)
    return torch.where((lengths > 0)[:, None], final, 0.0)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each row over its valid timesteps.

    Args:
        x: (B, T, *shape) float.
        mask: (B, T) bool, True for valid timesteps.

    Returns:
        (B, *shape) float; 0, not NaN, for a row without valid timesteps.
    """
    steps = mask.reshape(*mask.shape, *[1] * (x.dim() - 2))  # (B, T, 1, …)
    total = torch.where(steps, x, 0.0).sum(dim=1)
    return total / steps.sum(dim=1).clamp(min=1)


def token_nll(logits: Tensor, targets: Tensor, score: Tensor) -> Tensor:
    """Return the negative log-likelihood of each scored timestep, in nats.

    Args:
        logits: (B, T, C) float.
        targets: (B, T) integers in [0, C) at scored timesteps; other timesteps are ignored.
        score: (B, T) bool, True for scored timesteps.

    Returns:
        (B, T) float; 0 for timesteps that are not scored.
    """
    logits = torch.where(score[..., None], logits, 0.0)  # a NaN here would reach the gradient
    targets = torch.where(score, targets.long(), 0)
    nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")  # (B * T,)
    return torch.where(score, nll.view_as(score), 0.0)


def masked_token_loss(logits: Tensor, targets: Tensor, score: Tensor) -> Tensor:
    """Return the sum of the negative log-likelihood over the scored timesteps, in nats.

    The loss of training is this sum times ``batch.loss_scale``. The mean to report is this sum
    divided by the number of scored timesteps.

    Args:
        logits: (B, T, C) float.
        targets: (B, T) integers in [0, C) at scored timesteps; other timesteps are ignored.
        score: (B, T) bool, True for scored timesteps.

    Returns:
        () float; 0 if no timestep is scored.
    """
    return token_nll(logits, targets, score).sum()


def reverse_valid(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the rows with their valid timesteps in reverse order; padding keeps its place.

    Args:
        x: (B, T, F).
        lengths: (B,) int64, number of valid timesteps of each row, on any device.

    Returns:
        (B, T, F), in the dtype of ``x``.
    """
    step = torch.arange(x.shape[1], device=x.device)[None, :]  # (1, T)
    lengths = lengths.to(x.device)[:, None]  # (B, 1)
    source = torch.where(step < lengths, lengths - 1 - step, step)  # (B, T)
    return x.gather(1, source[..., None].expand_as(x))


def linear_exactly(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer with sums in float64, rounded once to the dtype of ``x``.

    The order of summation in a matrix product depends on its number of rows. In float32, this
    changes logits by several 1e-6. In float64, the effect of other rows is far below the rounding
    error of float32.

    Args:
        layer: Linear layer, also wrapped by DDP or ``torch.compile``.
        x: (…, F) float. On MPS, which has no float64, the result is ``layer(x)``.

    Returns:
        (…, out_features), in the dtype of ``x``.
    """
    if x.device.type == "mps":
        plain: Tensor = layer(x)
        return plain
    layer = unwrap_module(layer)
    bias = None if layer.bias is None else layer.bias.double()
    return F.linear(x.double(), layer.weight.double(), bias).to(x.dtype)


def run_dense(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> Tensor:
    """Run an LSTM over padded rows without packing; the result of a row is as if it ran alone.

    Parameters and results are those of a packed run. A dense run may use kernels that do not
    support packed input. It also computes padding, so it suits rows of nearly equal lengths.

    Args:
        lstm: LSTM with ``batch_first=True`` and biases, without projection.
        x: (B, T, F) float; padding may have any value.
        lengths: (B,) int64, number of valid timesteps of each row, on any device.

    Returns:
        (B, T, H * directions) float; values at padded timesteps are undefined.

    Raises:
        ConfigError: If the LSTM has ``batch_first=False``, no biases or a projection.
    """
    layer: nn.LSTM = unwrap_module(lstm)
    if not (layer.batch_first and layer.bias) or layer.proj_size:
        raise ConfigError(
            "run_dense: `lstm` must have batch_first=True, biases and no projection, but is "
            f"{lstm!r}. Create it so, or call it with a PackedSequence."
        )
    mask = torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None]  # (B, T)
    x = torch.where(mask[..., None], x, 0.0)
    if not layer.bidirectional:  # a forward pass meets the padding after the valid steps
        out: Tensor = lstm(x)[0]
        return out
    for number in range(layer.num_layers):
        if number:
            x = F.dropout(x, layer.dropout, layer.training)
        forward = _direction(layer, x, f"l{number}")
        backward = _direction(layer, reverse_valid(x, lengths), f"l{number}_reverse")
        x = torch.cat([forward, reverse_valid(backward, lengths)], dim=-1)
    return x


def _direction(lstm: nn.LSTM, x: Tensor, name: str) -> Tensor:
    """Run one layer of an LSTM in one direction."""
    weights = [getattr(lstm, f"{kind}_{name}") for kind in WEIGHTS]
    # One run of memory, as cuDNN wants it: it warns and copies at each call otherwise.
    flat = torch.cat([weight.flatten() for weight in weights])
    pieces = torch.split(flat, [weight.numel() for weight in weights])
    weights = [piece.view_as(weight) for piece, weight in zip(pieces, weights, strict=True)]
    start = x.new_zeros(1, len(x), lstm.hidden_size)
    train = lstm.training  # cuDNN keeps what a backward pass needs only then
    return torch.lstm(x, (start, start), weights, True, 1, 0.0, train, False, True)[0]
