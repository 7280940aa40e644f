"""Metrics that are the same on one process and on many.

A mean of ranks' means is wrong if ranks hold unequal numbers of rows or timesteps; sums and counts
in float64 are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from seqdata_models.functional import token_nll

UNLABELLED = -100
"""The label of what has no loss and counts in no mean: `ignore_index` of torch's cross entropy."""


class ExactMeanMetric(Metric):
    """A sum over a count, both float64, each added up over batches and ranks.

    They stay float64 if the module is converted: of bfloat16 a count would stand still at 256.

    Examples:
        >>> mean = ExactMeanMetric()
        >>> mean.update(torch.tensor(3.0), 2)
        >>> mean.update(torch.tensor(1.0), 2)
        >>> float(mean.compute())
        1.0
    """

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "count"):
            zero = torch.zeros((), dtype=torch.float64, device="cpu")
            self.add_state(name, zero, dist_reduce_fx="sum")

    def update(self, total: Tensor, count: Tensor | float) -> None:
        """Add a batch's sum and the number of things summed.

        Args:
            total: (), any type.
            count: (), any type, or a number.
        """
        # Not in place: after `Trainer.validate` the state is of inference mode.
        self.total = self.total + total.detach().double()
        self.count = self.count + count

    def compute(self) -> Tensor:
        """Return the mean, () float64; 0 over nothing, never NaN."""
        is_empty = self.count == 0
        return torch.where(is_empty, 0.0, self.total / torch.where(is_empty, 1.0, self.count))

    def _apply(self, fn: Callable[..., Any], *options: Any) -> nn.Module:
        """Move the states, also if `fn` converts them: `precision="bf16-true"` does so."""

        def move(value: Tensor) -> Tensor:
            moved: Tensor = fn(value)
            return moved if moved.dtype == value.dtype else value.to(moved.device)

        return super()._apply(move, *options)


def update_label_means(
    logits: Tensor,
    labels: Tensor,
    score: Tensor,
    mean_loss: ExactMeanMetric,
    accuracy: ExactMeanMetric,
) -> None:
    """Add a batch's losses and right labels to two means over its labelled timesteps.

    Args:
        logits: (B, T, C) float.
        labels: (B, T) integers in [0, C), or -100 of a timestep that does not count.
        score: (B, T) bool, the timesteps that may count.
        mean_loss: The mean of the negative log-likelihood in nats.
        accuracy: The fraction of timesteps whose label has the largest logit.
    """
    score = score & (labels.long() != UNLABELLED)  # as uint8, -100 is 156
    count = score.sum()
    mean_loss.update(token_nll(logits, labels, score).double().sum(), count)
    accuracy.update((score & (logits.argmax(dim=-1) == labels)).sum(), count)


class Perplexity(ExactMeanMetric):
    """exp of a mean negative log-likelihood: the number of equally likely tokens it amounts to.

    ``update(total, count)`` takes nats and scored tokens, end-of-sequence tokens included if there
    are any; 1 over nothing. The first token has nothing before it and is not scored: with
    ``shift=1`` and ``TBPTT(…, continuous=True)`` that is one of the whole stream, else one of each
    sequence. Figures can be compared only under the same convention, and with ``continuous`` only
    with the same number of lanes (published ones: one), since each lane but the first begins
    without what is before it.

    Examples:
        >>> perplexity = Perplexity()
        >>> perplexity.update(4 * torch.tensor(65.0).log(), 4)
        >>> round(float(perplexity.compute()), 4)
        65.0
    """

    def compute(self) -> Tensor:
        """Return it, () float64."""
        return super().compute().exp()


class BitsPerToken(ExactMeanMetric):
    """A mean negative log-likelihood in bits: per character or byte if these are the tokens.

    ``update(total, count)`` takes nats. Where tokens are pieces of words, count the UTF-8 bytes of
    the scored ones for bits per byte, which do not depend on the tokenization; 0 over nothing. What
    is scored: as for ``Perplexity``.

    Examples:
        >>> bits = BitsPerToken()
        >>> bits.update(torch.tensor(256.0).log(), 1)
        >>> round(float(bits.compute()), 4)
        8.0
    """

    def compute(self) -> Tensor:
        """Return it, () float64."""
        return super().compute() / math.log(2)
