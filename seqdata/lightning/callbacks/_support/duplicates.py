"""Ranks that train on the same batch: as where an iterable dataset is not shared out.

Nothing fails then and nothing is learned wrongly; every rank just does what one would have done.
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
from seqdata.lightning.callbacks._support.digests import digest_tensors


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """What a rank holds.

    Attributes:
        replica: Its data-parallel place; several ranks of one replica must hold the same.
        digest: Of its batch; empty where it has none of its own.
    """

    replica: int
    digest: tuple[int, ...]


def digest_batch(batch: Any) -> tuple[int, ...]:
    """Return numbers for all tensors of a batch of any kind; none for filler."""
    tensors: list[Tensor] = []
    if isinstance(batch, SequenceBatch):
        if not bool((batch.weight > 0).any()):
            return ()
        tensors = [batch.ids, batch.start]
        batch = batch.data
    apply_to_collection(batch, Tensor, tensors.append)
    return tuple(digest_tensors([one for one in tensors if one.layout == torch.strided]))


def describe_duplicates(ranks: Sequence[SeenBatch]) -> str:
    """Say which ranks of several replicas hold the same batch; nothing where none do."""
    ranks_by_digest: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, seen_batch in enumerate(ranks):
        if seen_batch.digest:
            ranks_by_digest[seen_batch.digest].append(rank)
    duplicated = [
        ranks_of_batch
        for ranks_of_batch in ranks_by_digest.values()
        if len({ranks[rank].replica for rank in ranks_of_batch}) > 1
    ]
    if not duplicated:
        return ""
    ranks_text = "; ".join(", ".join(map(str, ranks_of_batch)) for ranks_of_batch in duplicated)
    return (
        f"in the first step ranks {ranks_text} have the same batch, must have others: what is "
        "trained "
        "several times is time lost; pass a SequenceDataModule, or share the data out by rank"
    )
