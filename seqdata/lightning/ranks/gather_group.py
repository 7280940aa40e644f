"""Ranks tell each other something small, over a process group of their own.

The group is made once: making one takes longer than the telling. Place in the flow: monitors use
it every so many steps, on every rank at the same step. Reads: what pickles. Makes: a list by rank.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed

PATIENCE = timedelta(seconds=60)
"""How long a rank waits for a slower one."""

Told = TypeVar("Told")


class Gathering:
    """A gloo process group of all ranks; with one rank, or no process group, there is none."""

    def __init__(self) -> None:
        self._group: Any = None

    def open(self) -> None:
        """Make the group, once; all ranks do so at the same time."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if self._group is None and distributed and torch.distributed.get_world_size() > 1:
            self._group = torch.distributed.new_group(backend="gloo", timeout=PATIENCE)

    def gather(self, mine: Told) -> list[Told]:
        """Give what every rank says, in the order of ranks; all ranks ask at the same time."""
        if self._group is None:
            return [mine]
        gathered = [mine] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(gathered, mine, group=self._group)
        return gathered

    def close(self) -> None:
        """Leave the group; nobody is waited for."""
        group, self._group = self._group, None
        if group is not None and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group(group)
