"""What makes a Trainer one of the pool's ranks."""

from typing import Any

from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy


def under_ddp(world: int) -> dict[str, Any]:
    """Return what a Trainer needs to be one of ``world`` ranks that were started from outside."""
    return {
        "devices": world,
        "strategy": DDPStrategy(process_group_backend="gloo"),
        "plugins": [TorchElasticEnvironment()],
    }
