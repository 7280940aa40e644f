"""Values that are added up over replicas: the stages or parts of one have the same batches.

Without this a sum over all processes, such as a count of validation's tokens, would be as many
times too large as a replica has processes. Place in the flow: below the strategies. Reads: what
modules log with ``sync_dist``, and torchmetrics. Makes: the values of one process.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors


class Replicas:
    """The processes with one place in each replica; what a metric gathers its tensors by.

    Args:
        size: Stages or parts of a replica.
        rank: Rank of this process.
        world: Number of processes; all of them make this together.

    Attributes:
        group: The processes with this one's place.
    """

    def __init__(self, size: int, rank: int, world: int) -> None:
        places = [list(range(place, world, size)) for place in range(size)]
        groups: list[Any] = [dist.new_group(ranks) for ranks in places]
        self.group = groups[rank % size]

    def __call__(self, value: Tensor, group: Any = None) -> list[Tensor]:
        """Return the value of each replica."""
        return gather_all_tensors(value, group or self.group)

    def __deepcopy__(self, _: Any) -> Replicas:
        """Return this object: a process group cannot be copied with a module."""
        return self

    def join(self, module: nn.Module) -> None:
        """Make the metrics of a module gather over replicas, unless they gather in another way."""
        for metric in module.modules():
            if isinstance(metric, Metric) and metric.dist_sync_fn is None:
                metric.dist_sync_fn = self

    def leave(self, module: nn.Module) -> None:
        """Make the metrics of a module gather as they did before ``join``."""
        for metric in module.modules():
            if isinstance(metric, Metric) and metric.dist_sync_fn is self:
                metric.dist_sync_fn = None
