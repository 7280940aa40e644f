"""Digests of tensors, computed on their device: equal bits give equal numbers.

Only the digests leave the device, 8 bytes for each tensor. By them ranks are found that train on
the same batch, as if an iterable dataset is not sharded. Nothing fails in that case; all ranks but
one just work in vain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from seqdata.batch.batch import SequenceBatch

_SLICE_ELEMENTS = 1 << 20  # elements that are digested at once
_STEP, _FIRST, _SECOND = -7046029254386353131, -49064778989728563, -4265267296055464877
_BIT_DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_tensors(tensors: Sequence[Tensor]) -> list[int]:
    """Return a digest of each tensor; each device is waited for once."""
    if not tensors:
        return []
    digests = [_digest_tensor(tensor.detach()) for tensor in tensors]
    numbers: list[int] = torch.stack([digest.to(digests[0].device) for digest in digests]).tolist()
    return numbers


def _digest_tensor(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    bits = tensor.contiguous().reshape(-1).view(_BIT_DTYPES[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for first in range(0, bits.numel(), _SLICE_ELEMENTS):
        values = bits[first : first + _SLICE_ELEMENTS].to(torch.int64)
        indices = torch.arange(first, first + values.numel(), device=bits.device)
        mixed = (values ^ (indices * _STEP)) * _FIRST  # wraps around, equally everywhere
        mixed = (mixed ^ (mixed >> 32)) * _SECOND
        total += (mixed ^ (mixed >> 29)).sum()
    return total


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """The batch of a rank.

    Attributes:
        replica: Its data-parallel rank; ranks of one replica must have the same batch.
        digest: Digest of its batch; empty if it has only filler.
    """

    replica: int
    digest: tuple[int, ...]


def digest_batch(batch: Any) -> tuple[int, ...]:
    """Return digests of all tensors of a batch of any kind; none for filler."""
    tensors: list[Tensor] = []
    if isinstance(batch, Mapping):
        return tuple(digest for part in batch.values() for digest in digest_batch(part))
    if isinstance(batch, SequenceBatch):
        if not bool((batch.weight > 0).any()):
            return ()
        tensors = [batch.ids, batch.start]
        batch = batch.data
    apply_to_collection(batch, Tensor, tensors.append)
    return tuple(digest_tensors([tensor for tensor in tensors if tensor.layout == torch.strided]))


def describe_duplicates(ranks: Sequence[SeenBatch]) -> str:
    """Return a text with the ranks of several replicas that have the same batch; else ""."""
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
        f"in the first step ranks {ranks_text} have the same batch, so they repeat each other's "
        "work. Pass a SequenceDataModule, or shard the data by rank"
    )
