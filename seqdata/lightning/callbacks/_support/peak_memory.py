"""The peak memory of this process."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def get_peak_bytes(device: torch.device) -> int:
    """Return the peak number of bytes of tensors on a CUDA device, or else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS.exists():
        for line in _STATUS.read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return _get_peak_resident()


def _get_peak_resident() -> int:
    import resource  # not available on every system

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
