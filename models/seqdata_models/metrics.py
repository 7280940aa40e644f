"""Metrics whose values do not depend on the number of processes.

The mean of the means of ranks is wrong if ranks have unequal numbers of rows or timesteps. These
metrics instead add up sums and counts in float64.
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
"""Label without a loss, ignored by all means: ``ignore_index`` of torch's cross entropy."""


class ExactMeanMetric(Metric):
    """Mean of values over batches and ranks, from a sum and a count in float64.

    Sum and count stay float64 if the module is converted to another dtype. In bfloat16, a count
    would not grow past 256.

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
        """Add the sum of a batch and its number of values.

        Args:
            total: Sum of the values, () of any dtype; it is detached.
            count: Number of values, () of any dtype, or a number.
        """
        # Not in place: after `Trainer.validate` the state is of inference mode.
        self.total = self.total + total.detach().double()
        self.count = self.count + count

    def compute(self) -> Tensor:
        """Return the mean, () float64; 0, not NaN, if the count is 0."""
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
    """Add the losses and correct predictions of a batch to two means over labelled timesteps.

    Args:
        logits: (B, T, C) float.
        labels: (B, T) integers in [0, C), or -100 for a timestep without a label.
        score: (B, T) bool, True for scored timesteps.
        mean_loss: Mean of the negative log-likelihood in nats; it is updated.
        accuracy: Fraction of timesteps whose label has the largest logit; it is updated.
    """
    score = score & (labels.long() != UNLABELLED)  # as uint8, -100 is 156
    count = score.sum()
    mean_loss.update(token_nll(logits, labels, score).double().sum(), count)
    accuracy.update((score & (logits.argmax(dim=-1) == labels)).sum(), count)


class Perplexity(ExactMeanMetric):
    """Perplexity, the exponential of the mean negative log-likelihood of a token.

    ``update(total, count)`` takes the sum in nats and the number of scored tokens, including
    end-of-sequence tokens if there are any.

    The first token has no context and is not scored. With ``shift=1`` and ``TBPTT(…,
    continuous=True)`` this is one token of the whole stream, otherwise one token of each sequence.
    Perplexities are comparable only under the same convention. With ``continuous``, they are also
    comparable only for the same number of lanes (published results use one), because each lane
    except the first begins without the tokens before it.

    Examples:
        >>> perplexity = Perplexity()
        >>> perplexity.update(4 * torch.tensor(65.0).log(), 4)
        >>> round(float(perplexity.compute()), 4)
        65.0
    """

    def compute(self) -> Tensor:
        """Return the perplexity, () float64; 1 if the count is 0."""
        return super().compute().exp()


class BitsPerToken(ExactMeanMetric):
    """Mean negative log-likelihood per token, in bits.

    ``update(total, count)`` takes the sum in nats and the number of scored tokens. If tokens are
    characters or bytes, the result is bits per character or byte. If tokens are word pieces, a
    ``count`` of the UTF-8 bytes of the scored tokens gives bits per byte, which do not depend on
    the tokenizer. ``Perplexity`` describes which tokens are scored.

    Examples:
        >>> bits = BitsPerToken()
        >>> bits.update(torch.tensor(256.0).log(), 1)
        >>> round(float(bits.compute()), 4)
        8.0
    """

    def compute(self) -> Tensor:
        """Return the mean in bits, () float64; 0 if the count is 0."""
        return super().compute() / math.log(2)
