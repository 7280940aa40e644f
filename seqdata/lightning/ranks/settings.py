"""What each rank was given of its own: settings of the Trainer, callbacks and the model.

Ranks compare it before the first step, sanity check included: with other settings they take another
number of steps, or wait for each other in an operation that only some of them begin.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    DeviceStatsMonitor,
    LearningRateMonitor,
    ModelSummary,
    ProgressBar,
    ThroughputMonitor,
    Timer,
)

from seqdata.code_digest import CodeFacts, describe_code
from seqdata.lightning import adapter

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


def describe_settings(trainer: Trainer) -> CodeFacts:
    """Return what must be equal on all ranks of a Trainer, and what should be.

    Callbacks of this package and of Lightning may wait for other ranks, so they must be on all
    ranks, with equal arguments; others should be, unless they have ``is_rank_local = True``.
    """
    module: Any = trainer.lightning_module
    facts = CodeFacts(
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
        (facts.fixed if must_be_equal else facts.changing)[name] = "given"
        for argument, value in _iter_arguments(callback) if must_be_equal else ():
            label = f"{argument} of {name}"
            described = describe_code(label, value) if callable(value) else None
            facts.fixed.update(described.fixed if described else {label: repr(value)})
            facts.changing.update(described.changing if described else {})
    return facts


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
