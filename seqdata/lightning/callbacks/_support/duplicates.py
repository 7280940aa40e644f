"""Ranks that train on the same batch: as where an iterable dataset is not shared out.

Nothing fails then and nothing is learned wrongly; every rank just does what one would have done.
Place in the flow: ``RankConsistency`` asks in the first step. Reads: a batch. Makes: a number for
it, and a warning's text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from seqdata.batch.batch import SequenceBatch
from seqdata.lightning.callbacks._support.digests import digests_of


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank holds.

    Attributes:
        replica: Its data-parallel place; several ranks of one replica must hold the same.
        digest: Of its batch; empty where it has none of its own.
    """

    replica: int
    digest: tuple[int, ...]


def digest_of(batch: Any) -> tuple[int, ...]:
    """Give numbers for all tensors of a batch of any kind; none for filler."""
    tensors: list[Tensor] = []
    if isinstance(batch, SequenceBatch):
        if not bool((batch.weight > 0).any()):
            return ()
        tensors = [batch.ids, batch.start]
        batch = batch.data
    apply_to_collection(batch, Tensor, tensors.append)
    return tuple(digests_of([one for one in tensors if one.layout == torch.strided]))


def duplicates(ranks: Sequence[Held]) -> str:
    """Say which ranks of several replicas hold the same batch; nothing where none do."""
    same: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, held in enumerate(ranks):
        if held.digest:
            same[held.digest].append(rank)
    found = [one for one in same.values() if len({ranks[rank].replica for rank in one}) > 1]
    if not found:
        return ""
    named = "; ".join(", ".join(map(str, one)) for one in found)
    return (
        f"in the first step ranks {named} have the same batch, must have others: what is trained "
        "several times is time lost; pass a SequenceDataModule, or share the data out by rank"
    )
