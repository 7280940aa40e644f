"""Ranks tell each other something small, over a process group of their own.

The group is made once: making one takes longer than the telling. Place in the flow: monitors use
it every so many steps, on every rank at the same step. Reads: what pickles. Makes: a list by rank.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed

GATHER_TIMEOUT = timedelta(seconds=60)
"""How long a rank waits for a slower one."""

Value = TypeVar("Value")


class GatherGroup:
    """A gloo process group of all ranks; with one rank, or no process group, there is none."""

    def __init__(self) -> None:
        self._group: Any = None

    def open(self) -> None:
        """Make the group, once; all ranks do so at the same time."""
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if self._group is None and is_distributed and torch.distributed.get_world_size() > 1:
            self._group = torch.distributed.new_group(backend="gloo", timeout=GATHER_TIMEOUT)

    def all_gather(self, value: Value) -> list[Value]:
        """Return what every rank says, in the order of ranks; all ranks ask at the same time."""
        if self._group is None:
            return [value]
        values = [value] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def close(self) -> None:
        """Leave the group; nobody is waited for."""
        group, self._group = self._group, None
        if group is not None and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group(group)
