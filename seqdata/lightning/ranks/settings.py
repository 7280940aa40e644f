"""Settings of a rank's Trainer, callbacks and model, and its environment.

Ranks compare them before the first step, including those of the sanity check: with different
settings they would take different numbers of steps, or wait in an operation that only some of them
begin; in different environments they compute different results.
"""

from __future__ import annotations

import inspect
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    DeviceStatsMonitor,
    LearningRateMonitor,
    ModelSummary,
    ProgressBar,
    ThroughputMonitor,
    Timer,
)

from seqdata.code_digest import Description, describe_code
from seqdata.host import default_host
from seqdata.lightning import adapter
from seqdata.loading.rank_comparison import RankValues
from seqdata.runs.run_record import find_installed_versions

_MUST_BE_EQUAL = ("seqdata", "torch", "lightning", "numpy")
_DRIVER = Path("/proc/driver/nvidia/version")
_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "SEQDATA_PLUGINS")


def get_versions() -> RankValues:
    """Return the versions that must be equal on all ranks, by package."""
    installed = find_installed_versions()
    python = "{}.{}".format(*sys.version_info)
    return {"python": python, **{name: installed.get(name) for name in _MUST_BE_EQUAL}}


def get_environment(device: torch.device | None = None) -> RankValues:
    """Return settings that may differ between ranks, but can affect results.

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
    """Return the model and size of a GPU, or the type of another device."""
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


_LOCAL = (ProgressBar, ModelSummary, LearningRateMonitor, DeviceStatsMonitor, ThroughputMonitor)
_SETTINGS = (
    "accumulate_grad_batches", "barebones", "check_val_every_n_epoch", "fast_dev_run",
    "gradient_clip_algorithm", "gradient_clip_val", "limit_predict_batches", "limit_test_batches",
    "limit_train_batches", "limit_val_batches", "log_every_n_steps", "max_epochs", "max_steps",
    "min_epochs", "min_steps", "num_sanity_val_steps", "overfit_batches", "precision",
    "reload_dataloaders_every_n_epochs", "val_check_interval",
)  # fmt: skip
_LIBRARIES = ("lightning", "pytorch_lightning", "seqdata")
_PATHS = ("dirpath", "filename", "folder", "location", "name", "output_dir", "verbose")


def describe_settings(trainer: Trainer) -> Description:
    """Describe the settings that must be equal on all ranks of a Trainer, and those that should be.

    Callbacks of this package and of Lightning may wait for other ranks, so they must be on all
    ranks, with equal arguments, except those that only report, such as progress bars. Other
    callbacks should be on all ranks, unless they have ``is_rank_local = True``.
    """
    module: Any = trainer.lightning_module
    description = Description(
        {
            **_describe_trainer(trainer),
            "model": None if module is None else type(module).__qualname__,
        },
        {},
    )
    counts: Counter[str] = Counter()
    for callback in adapter.get_callbacks(trainer):
        if isinstance(callback, _LOCAL) or getattr(callback, "is_rank_local", False):
            continue
        kind = type(callback).__name__
        counts[kind] += 1
        name = f"callback {kind}" if counts[kind] == 1 else f"callback {kind} {counts[kind]}"
        must_be_equal = _is_of_a_library(callback)
        (description.fixed if must_be_equal else description.changing)[name] = "given"
        for argument, value in _iter_arguments(callback) if must_be_equal else ():
            label = f"{argument} of {name}"
            described = describe_code(label, value) if callable(value) else None
            description.fixed.update(described.fixed if described else {label: repr(value)})
            description.changing.update(described.changing if described else {})
    return description


def _describe_trainer(trainer: Trainer) -> dict[str, str | float | None]:
    settings = {name: getattr(trainer, name, None) for name in _SETTINGS}
    if settings["val_check_interval"] is None:
        settings["val_check_interval"] = adapter.get_validation_interval(trainer)
    settings |= adapter.get_strategy_settings(trainer)
    return {
        name: value if isinstance(value, str | int | float | None) else str(value)
        for name, value in settings.items()
    }


def _is_of_a_library(callback: Callback) -> bool:
    return any(
        base.__module__.partition(".")[0] in _LIBRARIES
        for base in type(callback).__mro__
        if base is not Callback
    )


def _iter_arguments(callback: Callback) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a callback that ranks compare: plain values and functions."""
    holder: Any = getattr(callback, "feedback_options", callback)
    for name in inspect.signature(type(holder)).parameters:
        value = getattr(holder, name, None)
        value = getattr(holder, f"_{name}", None) if value is None else value
        is_function = callable(value) and not hasattr(Callback, name)
        if name not in _PATHS and (is_function or _is_plain(value)):
            yield "max_time" if isinstance(callback, Timer) and name == "duration" else name, value


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | timedelta | None)
