"""Callback that monitors the memory and load of each rank, and reports a batch that does not fit.

The report names the batch and a size that would have fit.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import ConfigError, must_be, warn
from seqdata.lightning import adapter
from seqdata.lightning.callbacks._support.batch_info import (
    BatchInfo,
    get_planned_info,
    get_train_loader,
)
from seqdata.lightning.callbacks._support.step_stats import StepStats, StepTimer, describe_skew
from seqdata.lightning.ranks.collect import GatherGroup
from seqdata.lightning.trainer_loader import find_evaluated_loader, format_replay_hint

_STATUS = Path("/proc/self/status")
_MESSAGES = ("out of memory", "can't allocate memory")
_MAX_IDS = 20


def get_peak_bytes(device: torch.device) -> int:
    """Return the peak bytes of tensors on a CUDA device, or of this process on other devices."""
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


class RankMemoryMonitor(Callback):
    """Callback that logs memory and timesteps of each rank, and warns about unequal ranks.

    Every ``every_n_steps`` steps, the ranks gather their statistics over these steps. Rank 0 logs
    ``memory/rank_0/peak_bytes``, ``…/tokens`` (scored timesteps) and ``…/padded_timesteps`` of each
    rank, and warns once if a rank exceeds ``skew``. Peak memory is the maximum since the start, of
    tensors on a CUDA device, or of the whole process on other devices.

    If memory runs out, the callback adds a note to the exception: epoch, index, shape and first ids
    of the batch, the command that replays it, and advice, such as a budget that would have fit.

    Args:
        every_n_steps: Number of steps between exchanges.
        skew: Maximum ratio, above 1, of the timesteps or memory of a rank to the median of the
            other ranks, and of its step time to that without its longer wait for data.

    Attributes:
        ranks: Statistics of each rank at the latest exchange.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> monitor = RankMemoryMonitor()
    """

    def __init__(self, every_n_steps: int = 20, skew: float = 1.25) -> None:
        if not isinstance(every_n_steps, int) or every_n_steps < 1:
            raise ConfigError(
                must_be(
                    "RankMemoryMonitor: `every_n_steps`",
                    "an integer of at least 1",
                    repr(every_n_steps),
                )
            )
        if not isinstance(skew, int | float) or not skew > 1:
            raise ConfigError(
                must_be(
                    "RankMemoryMonitor: `skew`",
                    "a number above 1, the largest allowed ratio to the other ranks",
                    repr(skew),
                )
            )
        self.ranks: list[StepStats] = []
        self._every_n_steps, self._max_ratio = every_n_steps, skew
        self._timer = StepTimer("RankMemoryMonitor")
        self._gather_group = GatherGroup()
        self._recent_stats = StepStats()
        self._largest_batch = 0
        self._batch_info: BatchInfo | None = None
        self._has_warned = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset the statistics, and start the timer."""
        del pl_module
        self._gather_group.open()
        self._recent_stats, self._largest_batch, self._has_warned = StepStats(), 0, False
        self._timer.start(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the timer."""
        del pl_module
        self._timer.start(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pause the timer."""
        del trainer, pl_module
        self._timer.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Resume the timer."""
        del trainer, pl_module
        self._timer.resume()
        self._batch_info = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note the batch, for an exception."""
        del pl_module, batch_idx
        self._batch_info = self._timer.get_batch_info(trainer, batch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a step to the statistics, and exchange them every ``every_n_steps`` steps."""
        del pl_module, outputs, batch, batch_idx
        step_stats = self._timer.step(trainer, self._batch_info)
        self._recent_stats += step_stats
        self._largest_batch = max(self._largest_batch, step_stats.largest)
        if self._recent_stats.steps >= self._every_n_steps:
            self._report(trainer, check_skew=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the statistics of the last steps, and leave the process group."""
        del pl_module
        if self._recent_stats.steps:
            self._report(trainer, check_skew=False)
        self._gather_group.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Add a note about the batch to an exception if memory ran out."""
        del pl_module
        self._gather_group.close()
        if is_out_of_memory(exception):
            exception.add_note(f"RankMemoryMonitor: {self._describe_out_of_memory(trainer)}")
        self._batch_info = None

    def _describe_out_of_memory(self, trainer: Trainer) -> str:
        """Return the message about the batch for which memory ran out."""
        is_evaluation = not trainer.training
        loader = find_evaluated_loader(trainer) if is_evaluation else get_train_loader(trainer)
        info = None if is_evaluation else self._batch_info
        if loader is not None:
            info = get_planned_info(loader)
        if info is None:
            return f"out of memory on rank {trainer.global_rank}; the batch is unknown"
        description = describe_batch(info, trainer.global_rank)
        if is_evaluation:
            stage = adapter.get_stage(trainer)
            message = f"{description}, in {stage}: lower the budget of `eval_batching`"
        else:
            message = f"{description}. {make_advice(info, self._largest_batch)}"
        return (
            message
            if loader is None
            else message + format_replay_hint(loader, info.epoch, info.number)
        )

    def _report(self, trainer: Trainer, *, check_skew: bool) -> None:
        own_stats = replace(
            self._recent_stats, peak_bytes=get_peak_bytes(trainer.strategy.root_device)
        )
        self._recent_stats = StepStats()
        self.ranks = self._gather_group.all_gather(own_stats)
        if not trainer.is_global_zero:
            return
        adapter.log_now(trainer, _make_metrics(self.ranks))
        skew = (
            describe_skew(self.ranks, self._max_ratio)
            if check_skew and not self._has_warned
            else None
        )
        if skew is not None:
            self._has_warned = True
            warn(f"RankMemoryMonitor: {skew}")


def _make_metrics(ranks: list[StepStats]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for rank, stats in enumerate(ranks):
        metrics[f"memory/rank_{rank}/peak_bytes"] = stats.peak_bytes
        metrics[f"memory/rank_{rank}/tokens"] = stats.tokens
        metrics[f"memory/rank_{rank}/padded_timesteps"] = stats.padded
    return metrics


def is_out_of_memory(exception: BaseException) -> bool:
    """Return whether an exception means that a device or the machine has no memory left."""
    if isinstance(exception, torch.OutOfMemoryError | MemoryError):
        return True
    message = str(exception).lower()
    return isinstance(exception, RuntimeError) and any(text in message for text in _MESSAGES)


def describe_batch(info: BatchInfo, rank: int) -> str:
    """Return a message about the batch and its shape.

    Args:
        info: Information about the batch.
        rank: Rank that had no memory left.
    """
    sizes = [f"{name}: {_describe_size(part)}" for name, part in info.parts.items()]
    return (
        f"out of memory on rank {rank} in epoch {info.epoch}, batch {info.number}: "
        f"{'; '.join(sizes) or _describe_size(info)}"
    )


def make_advice(info: BatchInfo, largest: int) -> str:
    """Return advice about a batch that did not fit, such as a budget that would have.

    Args:
        info: Information about the batch that did not fit.
        largest: Number of timesteps, including padding, of the largest batch that fit; 0: none.
    """
    if info.parts:
        passed = "no step has passed before"
        if largest:
            passed = f"steps that passed before had at most {largest} timesteps"
        return (
            f"This step had {info.padded} timesteps after padding over all parts; {passed}. Lower "
            "the sizes of its parts' batches"
        )
    if not largest:
        return (
            f"No batch has passed. Use a budget below {info.padded} timesteps after padding "
            "(TokenBudget), or a smaller model"
        )
    if largest < info.padded:
        return (
            f"The largest batch that passed had {largest} timesteps after padding, so this budget "
            f"would have fit: TokenBudget({largest})"
        )
    return (
        f"A batch of {largest} timesteps after padding has passed before, so the size of this "
        "batch is not the cause: look for outputs that are kept from step to step, for other "
        "processes on the device, or for fragmentation "
        "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"
    )


def _describe_size(info: BatchInfo) -> str:
    ids = info.ids.tolist()
    shown = ", ".join(map(str, ids[:_MAX_IDS])) + (", …" if len(ids) > _MAX_IDS else "")
    return (
        f"{info.rows} rows x {info.width} timesteps, {info.padded} after padding "
        f"({info.real} real), ids {shown}"
    )
