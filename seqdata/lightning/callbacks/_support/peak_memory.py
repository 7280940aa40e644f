"""How much memory this process has taken at most."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def get_peak_bytes(device: torch.device) -> int:
    """Return the most bytes that tensors on a CUDA device, or else this process, ever had."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if _STATUS.exists():
        for line in _STATUS.read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return _get_peak_resident()


def _get_peak_resident() -> int:
    import resource  # not on every system

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
