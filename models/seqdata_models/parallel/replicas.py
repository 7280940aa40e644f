"""Sums over replicas: all stages or parts of a replica have the same batches.

A sum over all processes, such as the number of tokens in validation, would count every batch once
for each stage or part. Place in the flow: below the strategies. Reads: values that modules log with
``sync_dist``, and torchmetrics. Makes: the values of a single process.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors


class Replicas:
    """Processes with the same position in each replica, over which metrics gather their tensors.

    All processes must create this object, because it creates process groups.

    Args:
        size: Number of stages or parts of a replica.
        rank: Rank of this process.
        world: Number of processes.

    Attributes:
        group: Process group of the processes with the position of this one.
    """

    def __init__(self, size: int, rank: int, world: int) -> None:
        places = [list(range(place, world, size)) for place in range(size)]
        groups: list[Any] = [dist.new_group(ranks) for ranks in places]
        self.group = groups[rank % size]

    def __call__(self, value: Tensor, group: Any = None) -> list[Tensor]:
        """Return the value of each replica; a collective operation.

        Args:
            value: Value of this process.
            group: Process group; None: ``self.group``.
        """
        return gather_all_tensors(value, group or self.group)

    def __deepcopy__(self, _: Any) -> Replicas:
        """Return this object, because a process group cannot be copied with a module."""
        return self

    def join(self, module: nn.Module) -> None:
        """Make the metrics of a module gather over replicas.

        Metrics with a ``dist_sync_fn`` of their own do not change.
        """
        for metric in module.modules():
            if isinstance(metric, Metric) and metric.dist_sync_fn is None:
                metric.dist_sync_fn = self

    def leave(self, module: nn.Module) -> None:
        """Make the metrics of a module gather as before ``join``."""
        for metric in module.modules():
            if isinstance(metric, Metric) and metric.dist_sync_fn is self:
                metric.dist_sync_fn = None
