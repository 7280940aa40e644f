"""Copies outputs into pinned memory, from which a device fetches them while the host continues."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory as _pinned_parts

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError


def pin(output: Any) -> Any:
    """Return what is handed out with its tensors in pinned memory, as torch's DataLoader does.

    Args:
        output: A batch; or tensors, objects with ``pin_memory()``, tuples and dicts of them.
    """
    return output.pin_memory() if isinstance(output, SequenceBatch) else _pinned_parts(output)  # type: ignore[no-untyped-call]


def check_cuda() -> None:
    """Refuse to pin where there is nothing to pin for.

    Raises:
        ConfigError: If there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise ConfigError(
            "loader: `pin_memory` is True where there is no CUDA device, must be False; under a "
            "Trainer leave it None"
        )
