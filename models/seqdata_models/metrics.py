"""Metrics that are the same on one process and on many.

A mean of ranks' means is wrong where ranks hold unequal numbers of rows or timesteps; sums and
counts in float64 are not. Place in the flow: filled by a model's evaluation steps, logged by
Lightning.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class ExactMean(Metric):
    """A sum over a count, both float64, each added up over batches and ranks.

    Example:
        >>> mean = ExactMean()
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
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, total: Tensor, count: Tensor | float) -> None:
        """Add a batch's sum and the number of things summed.

        Args:
            total: (), any type.
            count: (), any type, or a number.
        """
        self.total += total.detach().double()
        self.count += count

    def compute(self) -> Tensor:
        """Give the mean, () float64; 0 over nothing, never NaN."""
        nothing = self.count == 0
        return torch.where(nothing, 0.0, self.total / torch.where(nothing, 1.0, self.count))
