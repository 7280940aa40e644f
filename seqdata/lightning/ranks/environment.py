"""The environment of a rank: versions and settings that determine its results."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import torch

from seqdata.host import default_host
from seqdata.loading.rank_comparison import Facts
from seqdata.runs.run_record import find_installed_versions

_MUST_BE_EQUAL = ("seqdata", "torch", "lightning", "numpy")
_DRIVER = Path("/proc/driver/nvidia/version")
_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "SEQDATA_PLUGINS")


def get_versions() -> Facts:
    """Return the versions that must be equal on all ranks, by package."""
    installed = find_installed_versions()
    python = "{}.{}".format(*sys.version_info)
    return {"python": python, **{name: installed.get(name) for name in _MUST_BE_EQUAL}}


def get_environment(device: torch.device | None = None) -> Facts:
    """Return settings that may differ between ranks, but can change results.

    Args:
        device: The device of this rank; None if it is unknown.
    """
    backends = torch.backends
    plugins = [f"{plugin.name} {plugin.version}" for plugin in default_host().listing()[1:]]
    return {
        "python release": platform.python_version(),
        "pyarrow": find_installed_versions().get("pyarrow"),
        "machine": platform.machine(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "device": _describe_device(device),
        "driver": _read_driver_version(),
        "CUDA of torch": torch.version.cuda,
        "cuDNN": backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "cuDNN benchmark": backends.cudnn.benchmark,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "plugins": ", ".join(sorted(plugins)),
        **{name: os.environ.get(name) for name in _VARIABLES},
    }


def _describe_device(device: torch.device | None) -> str | None:
    """Return the model of a GPU with its size; for other devices their type."""
    if device is None or device.type != "cuda":
        return None if device is None else device.type
    properties = torch.cuda.get_device_properties(device)
    return (
        f"{properties.name}, {properties.multi_processor_count} processors, "
        f"{properties.total_memory >> 20} MiB"
    )


def _read_driver_version() -> str | None:
    """Return the version of the GPU driver."""
    try:
        content = _DRIVER.read_text()
    except OSError:
        return None
    return content.partition("\n")[0]
