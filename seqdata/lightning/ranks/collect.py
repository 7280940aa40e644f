"""Ranks agree before they begin: a difference or an error on one is the same error on all.

Two ranks with other data, or at another place, would train on with wrong batches, or hang far from
the cause. Place in the flow: called in ``setup`` and before the first step, on every rank. Reads: a
few primitives of each rank. Makes: nothing, or the same error everywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

import torch.distributed

from seqdata.errors import PlanError, SeqDataError, SeqDataWarning
from seqdata.world import World

PATIENCE = timedelta(seconds=60)
"""How long a rank waits for the others; they come within milliseconds or not at all."""

_NAMED = 4  # ranks of which a message names the numbers
Facts = Mapping[str, str | int | None]
Told = TypeVar("Told")


def agree(
    world: World,
    facts: Facts,
    error: SeqDataError | None = None,
    *,
    noted: Facts | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Return if all ranks gave the same facts and no error; else raise the same on every rank.

    It is a collective of the default process group. A world of one rank asks nobody: other
    ranks, if there are any, do something else.

    Args:
        world: Who we are.
        facts: What must be equal, by name.
        error: What went wrong on this rank, if anything did.
        noted: What had better be equal; a difference is a warning, on every rank.
        patience: How long the others may take to come here.

    Raises:
        SeqDataError: The first rank's error, with its rank.
        PlanError: If facts differ, naming each that does and who has what.
    """
    gathered = gather(world, (dict(facts), dict(noted or {}), error), patience=patience)
    for rank, (_, _, failure) in enumerate(gathered):
        if failure is not None:
            raise failure if len(gathered) == 1 else of_rank(failure, rank)
    different = differences([one for one, _, _ in gathered])
    if different:
        raise PlanError(
            f"ranks: {different}, must be equal; give every rank the same packages, data, options "
            "and checkpoint"
        )
    different = differences([one for _, one, _ in gathered])
    if different:
        warnings.warn(
            f"ranks: {different}, had better be equal: results may differ with the rank; set up "
            "every rank alike",
            SeqDataWarning,
            stacklevel=2,
        )


def differences(facts: Sequence[Facts]) -> str:
    """Say which facts differ and which ranks have what; empty: none does.

    Args:
        facts: Of each rank, in order; what a rank does not say is None.
    """
    found = []
    for name in dict.fromkeys(name for one in facts for name in one):
        ranks_of: dict[str | int | None, list[int]] = {}
        for rank, one in enumerate(facts):
            ranks_of.setdefault(one.get(name), []).append(rank)
        if len(ranks_of) > 1:
            said = (f"{value!r} on {_ranks(ranks)}" for value, ranks in ranks_of.items())
            found.append(f"`{name}` is {' but '.join(said)}")
    return "; ".join(found)


def _ranks(ranks: list[int]) -> str:
    first = ", ".join(map(str, ranks[:_NAMED]))
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {first}{more}"


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
