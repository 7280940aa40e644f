"""Gather over all ranks, and comparison of ranks before a fit.

All gathers use ``gather``: over a persistent group (``GatherGroup``), over a temporary group
(``all_gather``), or while ranks are watched (``RankSynchronizer``). ``check_consistent`` compares
values of the ranks: with different data or positions they would train with wrong batches, or hang
far from the cause.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed

from seqdata.errors import PlanError, SeqDataError, warn
from seqdata.loading.rank_comparison import RankValues, describe_differences
from seqdata.sharing import World

GATHER_TIMEOUT = timedelta(seconds=60)
"""Longest wait of a rank for the others, which normally takes milliseconds."""

Value = TypeVar("Value")


def check_consistent(
    world: World,
    values: RankValues,
    error: SeqDataError | None = None,
    *,
    advisory: RankValues | None = None,
    timeout: timedelta = GATHER_TIMEOUT,
) -> None:
    """Raise the same error on every rank if a rank has an error, or values differ.

    It is a collective operation of the default process group. One rank communicates nothing.

    Args:
        world: This rank and the number of ranks.
        values: Values that must be equal, by name.
        error: The error on this rank, if there was one.
        advisory: Values that should be equal; a difference is a warning, on every rank.
        timeout: Longest wait for the other ranks.

    Raises:
        SeqDataError: If a rank has an error: that of the first such rank, with its rank.
        PlanError: If values differ; the message names each, with its values by rank.
    """
    gathered = all_gather(world, (dict(values), dict(advisory or {}), error), timeout=timeout)
    for rank, (_, _, failure) in enumerate(gathered):
        if failure is not None:
            raise failure if len(gathered) == 1 else with_rank(failure, rank)
    difference = describe_differences([rank_values for rank_values, _, _ in gathered])
    if difference:
        raise PlanError(
            f"ranks: {difference}, which must be equal. Give every rank the same packages, data, "
            "options and checkpoint"
        )
    difference = describe_differences([rank_values for _, rank_values, _ in gathered])
    if difference:
        warn(
            f"ranks: {difference}; results may differ between ranks. Configure every rank alike",
        )


def _complete(work: Any) -> None:
    work.wait()  # ends: within the group's timeout


def gather(group: Any, value: Value, complete: Callable[[Any], None] = _complete) -> list[Value]:
    """Return the values of every rank of a group, in the order of ranks; a collective operation.

    Args:
        group: A gloo process group.
        value: The value of this rank; any picklable object.
        complete: Function that waits for a collective operation.
    """
    ranks = torch.distributed.get_world_size(group)
    own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(ranks)]
    own_size = torch.tensor([len(own)], dtype=torch.int64, device="cpu")
    complete(torch.distributed.all_gather(sizes, own_size, group=group, async_op=True))
    max_bytes = max(int(size) for size in sizes)
    buffers = [own.new_empty(max_bytes) for _ in range(ranks)]
    padded = torch.cat([own, own.new_zeros(max_bytes - len(own))])
    complete(torch.distributed.all_gather(buffers, padded, group=group, async_op=True))
    return [
        pickle.loads(buffer[: int(size)].numpy().tobytes())
        for buffer, size in zip(buffers, sizes, strict=True)
    ]


def all_gather(world: World, value: Value, *, timeout: timedelta = GATHER_TIMEOUT) -> list[Value]:
    """Return the values of every rank, in the order of the default process group's ranks.

    Args:
        world: This rank and the number of ranks; with one rank nothing is communicated.
        value: The value of this rank; any picklable object.
        timeout: Longest wait for the other ranks.
    """
    if world.size == 1 or not torch.distributed.is_initialized():
        return [value]
    group = torch.distributed.new_group(backend="gloo", timeout=timeout)
    try:
        return gather(group, value)
    finally:
        torch.distributed.destroy_process_group(group)


class GatherGroup:
    """Gloo process group of all ranks for many gathers; making one takes longer than a gather.

    With one rank, or without a default process group, there is no group.
    """

    def __init__(self) -> None:
        self._group: Any = None

    def open(self) -> None:
        """Make the group, once; a collective operation."""
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if self._group is None and is_distributed and torch.distributed.get_world_size() > 1:
            self._group = torch.distributed.new_group(backend="gloo", timeout=GATHER_TIMEOUT)

    def all_gather(self, value: Value) -> list[Value]:
        """Return the values of every rank, in the order of ranks; a collective operation."""
        return [value] if self._group is None else gather(self._group, value)

    def close(self) -> None:
        """Leave the group without waiting for other ranks."""
        group, self._group = self._group, None
        if group is not None and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group(group)


def with_rank(error: SeqDataError, rank: int) -> SeqDataError:
    """Return the error with its rank in its message and its details."""
    return type(error).at(f"rank {rank}: {error}", **{**error.details, "rank": rank})
