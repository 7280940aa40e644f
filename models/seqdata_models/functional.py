"""Functions for models over padded rows: the last valid step, masked means, masked losses.

Padding, even NaN, never enters a result or a gradient: masked values are
replaced with ``torch.where`` before they are used, because ``0 * NaN`` is NaN.
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
        model: The model's name, for the error.
        layout: The value.

    Raises:
        ConfigError: If it is not a ``Layout``.
    """
    if layout not in ("packed", "dense"):
        raise ConfigError(
            f"{model}: `layout` must be 'packed' or 'dense', but is {layout!r}. Use 'packed'."
        )


def check_precision(module: L.LightningModule) -> None:
    """Raise if this processor cannot run a module's LSTM in the Trainer's precision.

    Args:
        module: Within its ``setup``: no step has been made.

    Raises:
        ConfigError: If it cannot.
    """
    with module.trainer.precision_plugin.forward_context():
        check_autocast(module, module.trainer.strategy.root_device)


def check_rows(model: str, batch: SequenceBatch) -> None:
    """Raise if rows hold several sequences, whose states a model would mix.

    Args:
        model: The model's name, for the error.
        batch: The batch.

    Raises:
        ConfigError: If a row holds more than one sequence.
    """
    if batch.segments is not None and len(batch.segments) > len(batch):
        raise ConfigError(
            f"{model}: each row must hold one sequence, but {len(batch)} rows hold "
            f"{len(batch.segments)}. Batch with Bucketed or TokenBudget in place of Packed."
        )


def field_name(x: str, field: str | None) -> str:
    """Return the name of the field that a model reads.

    Args:
        x: The name.
        field: The field, under the name that this argument had in version 0.1; None if it was not
            passed.
    """
    if field is None or field == x:
        return x
    warnings.warn("`field` is deprecated: write `x`", DeprecationWarning, stacklevel=3)
    return field


def last_valid(
    out: Tensor | PackedSequence, lengths: Tensor, *, bidirectional: bool = False
) -> Tensor:
    """Return each row's output at its last valid step: what ``out[:, -1]`` is only without padding.

    Args:
        out: (B, T, H) float, the outputs of a recurrent layer, or the PackedSequence of them.
        lengths: (B,) int64, valid steps per row, on any device.
        bidirectional: Whether the second half of H ran backward. Its last step is the row's first,
            so it is taken there. (At the last valid step it has seen one step only.) The result is
            then the last layer's ``h_n`` of a packed run, both directions side by side.

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
    """Return each row's mean over its valid steps; 0 without any, never NaN.

    Args:
        x: (B, T, *shape) float.
        mask: (B, T) bool, the steps that count.

    Returns:
        (B, *shape) float.
    """
    steps = mask.reshape(*mask.shape, *[1] * (x.dim() - 2))  # (B, T, 1, …)
    total = torch.where(steps, x, 0.0).sum(dim=1)
    return total / steps.sum(dim=1).clamp(min=1)


def token_nll(logits: Tensor, targets: Tensor, score: Tensor) -> Tensor:
    """Return the negative log-likelihood of each scored timestep, in nats; 0 elsewhere.

    Args:
        logits: (B, T, C) float.
        targets: (B, T) integers in [0, C) where scored; other positions are never read.
        score: (B, T) bool, the timesteps that count.

    Returns:
        (B, T) float.
    """
    logits = torch.where(score[..., None], logits, 0.0)  # a NaN here would reach the gradient
    targets = torch.where(score, targets.long(), 0)
    nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")  # (B * T,)
    return torch.where(score, nll.view_as(score), 0.0)


def masked_token_loss(logits: Tensor, targets: Tensor, score: Tensor) -> Tensor:
    """Return the negative log-likelihood in nats, summed over the scored timesteps.

    Multiply it by ``batch.loss_scale`` to train; divide it by the scored timesteps to report it.

    Args:
        logits: (B, T, C) float.
        targets: (B, T) integers in [0, C) where scored; other positions are never read.
        score: (B, T) bool, the timesteps that count.

    Returns:
        () float; 0 where nothing is scored.
    """
    return token_nll(logits, targets, score).sum()


def reverse_valid(x: Tensor, lengths: Tensor) -> Tensor:
    """Return each row with its valid steps in reverse order; padding stays in place.

    Args:
        x: (B, T, F).
        lengths: (B,) int64, valid steps per row, on any device.

    Returns:
        (B, T, F).
    """
    step = torch.arange(x.shape[1], device=x.device)[None, :]  # (1, T)
    lengths = lengths.to(x.device)[:, None]  # (B, 1)
    source = torch.where(step < lengths, lengths - 1 - step, step)  # (B, T)
    return x.gather(1, source[..., None].expand_as(x))


def linear_exactly(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply a linear layer with sums in float64, rounded once to the type of ``x``.

    The order of a matrix product's sums depends on its number of rows; in float32 that changes
    logits by several 1e-6. Summed in float64, what the other rows change is far below the rounding
    of float32.

    Args:
        layer: The layer.
        x: (…, F) float, on a device that has float64 (MPS has not: there it is ``layer(x)``).
    """
    if x.device.type == "mps":
        plain: Tensor = layer(x)
        return plain
    layer = unwrap_module(layer)
    bias = None if layer.bias is None else layer.bias.double()
    return F.linear(x.double(), layer.weight.double(), bias).to(x.dtype)


def run_dense(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> Tensor:
    """Run an LSTM over padded rows without packing them, each row as if it ran alone.

    Parameters and results are those of a packed run. A dense run may use kernels that packed input
    excludes, and computes the padding, so it suits batches of nearly equal lengths.

    Args:
        lstm: With ``batch_first=True`` and biases, without projection.
        x: (B, T, F) float; padding may hold anything.
        lengths: (B,) int64, valid steps per row, on any device.

    Returns:
        (B, T, H * directions) float; values at padded steps have no meaning.

    Raises:
        ConfigError: If the LSTM is of another kind.
    """
    layer: nn.LSTM = unwrap_module(lstm)
    if not (layer.batch_first and layer.bias) or layer.proj_size:
        raise ConfigError(
            "run_dense: `lstm` must have batch_first=True, biases and no projection, but is "
            f"{lstm!r}. "
            "Make it so, or run it on a PackedSequence."
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
