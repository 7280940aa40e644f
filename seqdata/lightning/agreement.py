"""Ranks agree before they begin: a difference or an error on one is the same error on all.

Two ranks with other data, or at another place, would train on with wrong batches, or hang far from
the cause. Place in the flow: called in ``setup`` and before the first step, on every rank. Reads: a
few primitives of each rank. Makes: nothing, or the same error everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TypeVar

import torch.distributed

from seqdata.errors import PlanError, SeqDataError
from seqdata.world import World

PATIENCE = timedelta(seconds=60)
"""How long a rank waits for the others; they come within milliseconds or not at all."""

Facts = Mapping[str, str | int | None]
Told = TypeVar("Told")


def agree(
    world: World,
    facts: Facts,
    error: SeqDataError | None = None,
    *,
    patience: timedelta = PATIENCE,
) -> None:
    """Return if all ranks gave the same facts and no error; else raise the same on every rank.

    It is a collective of the default process group. A world of one rank asks nobody: other
    ranks, if there are any, do something else.

    Args:
        world: Who we are.
        facts: What must be equal, by name.
        error: What went wrong on this rank, if anything did.
        patience: How long the others may take to come here.

    Raises:
        SeqDataError: The first rank's error, with its rank.
        PlanError: If facts differ, naming the first that does and who has what.
    """
    gathered = gather(world, (dict(facts), error), patience=patience)
    for rank, (_, failure) in enumerate(gathered):
        if failure is not None:
            raise failure if len(gathered) == 1 else of_rank(failure, rank)
    for name in gathered[0][0]:
        values = [one.get(name) for one, _ in gathered]
        if any(value != values[0] for value in values):
            other = next(rank for rank, value in enumerate(values) if value != values[0])
            raise PlanError(
                f"ranks: `{name}` is {values[0]!r} on rank 0 but {values[other]!r} on rank {other},"
                " must be equal; give every rank the same data, options and checkpoint"
            )


def gather(world: World, mine: Told, *, patience: timedelta = PATIENCE) -> list[Told]:
    """Give what every rank says, in the order of the default process group's ranks.

    Args:
        world: Who we are; alone, nobody is asked.
        mine: What this rank says; anything that pickles.
        patience: How long the others may take to come here.
    """
    if world.size == 1 or not torch.distributed.is_initialized():
        return [mine]
    gathered = [mine] * torch.distributed.get_world_size()
    group = torch.distributed.new_group(backend="gloo", timeout=patience)
    try:
        torch.distributed.all_gather_object(gathered, mine, group=group)
    finally:
        torch.distributed.destroy_process_group(group)
    return gathered


def of_rank(error: SeqDataError, rank: int) -> SeqDataError:
    """Give the error with its rank in text and facts."""
    return type(error).at(f"rank {rank}: {error}", **{**error.facts, "rank": rank})
