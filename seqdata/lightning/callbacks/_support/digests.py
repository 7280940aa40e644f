"""Digests of tensors, computed on their device: equal bits give equal numbers.

Only the digests leave the device, 8 bytes for each tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

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
