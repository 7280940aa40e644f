"""What a rank runs on: the versions and settings that decide what comes out of the same data.

Place in the flow: the DataModule's ``setup`` hands it to ``agree``. Reads: installed packages,
torch's settings, a few environment variables. Makes: facts to compare between ranks.
"""

from __future__ import annotations

import os
import platform
import sys

import torch

from seqdata.lightning.agreement import Facts
from seqdata.lightning.replay.record import installed_versions
from seqdata.opening import default_host

_MUST = ("seqdata", "torch", "lightning", "numpy")
_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "SEQDATA_PLUGINS")


def versions() -> Facts:
    """Give the versions that must be the same on every rank, by package."""
    installed = installed_versions()
    python = "{}.{}".format(*sys.version_info)
    return {"python": python, **{name: installed.get(name) for name in _MUST}}


def settings() -> Facts:
    """Give what may differ without harm, and may be what makes results differ."""
    backends = torch.backends
    plugins = [f"{one.name} {one.version}" for one in default_host().listing()[1:]]
    return {
        "python release": platform.python_version(),
        "pyarrow": installed_versions().get("pyarrow"),
        "CUDA of torch": torch.version.cuda,
        "cuDNN": backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "cuDNN benchmark": backends.cudnn.benchmark,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "plugins": ", ".join(sorted(plugins)),
        **{name: os.environ.get(name) for name in _VARIABLES},
    }
