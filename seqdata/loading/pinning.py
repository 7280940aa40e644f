"""Copies outputs into pinned memory, from which a device fetches them while the host continues."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory as _pinned_parts

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError


def pin(output: Any) -> Any:
    """Return an output with its tensors in pinned memory, as torch's DataLoader does.

    Args:
        output: A batch; or tensors, objects with ``pin_memory()``, tuples and dicts of them.
    """
    return output.pin_memory() if isinstance(output, SequenceBatch) else _pinned_parts(output)  # type: ignore[no-untyped-call]


def check_cuda() -> None:
    """Raise if there is no device to pin memory for.

    Raises:
        ConfigError: If there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise ConfigError(
            "loader: `pin_memory` must be False without a CUDA device, but is True. Under a "
            "Trainer leave it None."
        )
