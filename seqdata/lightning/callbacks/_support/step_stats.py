"""Statistics of steps of a rank: times, timesteps and memory; their measurement and comparison.

The comparison finds a rank that has more work than the others, and the cause. All ranks wait for
the slowest, and the largest batch decides what fits in memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from lightning.pytorch import Trainer

from seqdata.errors import warn
from seqdata.lightning.callbacks._support.batch_info import (
    BatchInfo,
    get_batch_info,
    get_train_loader,
)

GIB = 1 << 30
_MIN_BYTES = 64 << 20  # smaller differences are noise
_MIN_WAIT_SECONDS = 0.001  # per step; smaller differences are noise


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """Sums over steps of one rank.

    Attributes:
        steps: Number of steps.
        seconds: Time from the end of one step to the end of the next, without validations.
        waited: Seconds that the Trainer waited for data, part of ``seconds``.
        tokens: Timesteps that count in the loss.
        real: Timesteps of sequences, without padding rows.
        padded: Timesteps including padding, which determine time and memory.
        largest: Timesteps including padding of the largest batch.
        peak_bytes: Peak memory so far; 0 if it was not measured.
    """

    steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    tokens: int = 0
    real: int = 0
    padded: int = 0
    largest: int = 0
    peak_bytes: int = 0

    def __add__(self, other: StepStats) -> StepStats:
        return StepStats(
            steps=self.steps + other.steps,
            seconds=self.seconds + other.seconds,
            waited=self.waited + other.waited,
            tokens=self.tokens + other.tokens,
            real=self.real + other.real,
            padded=self.padded + other.padded,
            largest=max(self.largest, other.largest),
            peak_bytes=max(self.peak_bytes, other.peak_bytes),
        )

    @property
    def tokens_per_second(self) -> float:
        """Timesteps that count in the loss, per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def padding_share(self) -> float:
        """Part of the batches that is padding or padding rows, from 0 to 1."""
        return 1.0 - self.real / self.padded if self.padded else 0.0

    @property
    def wait_share(self) -> float:
        """Part of the time spent waiting for data, from 0 to 1."""
        return min(1.0, self.waited / self.seconds) if self.seconds else 0.0


def describe_skew(ranks: Sequence[StepStats], max_ratio: float) -> str | None:
    """Return a warning about a rank that has much more than the others; None if there is none.

    Timesteps, memory and waiting for data are compared in this order, since one often causes the
    next.

    Args:
        ranks: Statistics of each rank over the same steps.
        max_ratio: Largest ratio of a rank's value to the median of the others.
    """
    if len(ranks) < 2:
        return None
    steps = ranks[0].steps
    rank, highest, others = _find_highest([stats.padded for stats in ranks])
    if highest > max_ratio * others > 0:
        return (
            f"rank {rank} had {highest / others:.2f} times the timesteps of the other ranks "
            f"({highest} against {others:.0f} after padding, in {steps} steps), more than "
            f"{max_ratio:g} times. The cause is its batches: use batches of equal cost "
            "(TokenBudget), or a multiple of the ranks as lanes"
        )
    rank, highest, others = _find_highest([stats.peak_bytes for stats in ranks])
    if highest > max_ratio * others > 0 and highest - others > _MIN_BYTES:
        return (
            f"rank {rank} has taken {highest / others:.2f} times the memory of the other ranks "
            f"({highest / GIB:.2f} GiB against {others / GIB:.2f} GiB), more than {max_ratio:g} "
            f"times: {_describe_reason(ranks, rank, max_ratio)}"
        )
    rank, waited_seconds, others = _find_highest([stats.waited for stats in ranks])
    seconds, extra_seconds = ranks[rank].seconds, waited_seconds - others
    if (
        seconds > max_ratio * (seconds - extra_seconds)
        and extra_seconds > _MIN_WAIT_SECONDS * steps
    ):
        return (
            f"rank {rank} waited {waited_seconds:.2f} s of {seconds:.2f} s for data, the other "
            f"ranks {others:.2f} s (in {steps} steps): steps take more than {max_ratio:g} times "
            "as long. The cause is its data: use more `num_workers` or `prefetch`, or check its "
            "disk"
        )
    return None


def _describe_reason(ranks: Sequence[StepStats], rank: int, max_ratio: float) -> str:
    largest, others_largest = (
        ranks[rank].largest,
        _median_of_others([stats.largest for stats in ranks], rank),
    )
    if largest > max_ratio * others_largest:
        return (
            f"the cause is its largest batch of {largest} timesteps after padding, against "
            f"{others_largest:.0f}: use batches of equal cost (TokenBudget)"
        )
    return (
        f"the cause is not its batches (the largest has {largest} timesteps after padding, "
        f"against {others_largest:.0f}): look for outputs that are kept there, and for other "
        "processes on its device"
    )


def _find_highest(values: Sequence[float]) -> tuple[int, float, float]:
    """Return the rank with the highest value, the value, and the median of the others."""
    rank = max(range(len(values)), key=values.__getitem__)
    return rank, values[rank], _median_of_others(values, rank)


def _median_of_others(values: Sequence[float], rank: int) -> float:
    return float(median([*values[:rank], *values[rank + 1 :]]))


class StepTimer:
    """Clock that runs while training runs.

    A step ends at the Trainer's hook, where the next one begins: kernels that still run on a device
    count for later steps. Sums over many steps are correct without waiting for the device.

    Args:
        name: Name of the callback, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._started_at = 0.0
        self._paused_at: float | None = None
        self._loader: object = None
        self._waited_before = 0.0
        self._has_warned = False

    def start(self, trainer: Trainer) -> None:
        """Start a step now."""
        self._started_at, self._paused_at = time.perf_counter(), None
        self._take_waited(trainer)

    def pause(self) -> None:
        """Stop the clock: a validation begins."""
        self._paused_at = time.perf_counter()

    def resume(self) -> None:
        """Resume the clock."""
        if self._paused_at is not None:
            self._started_at += time.perf_counter() - self._paused_at
            self._paused_at = None

    def get_batch_info(self, trainer: Trainer, batch: Any) -> BatchInfo | None:
        """Return information about a batch; warn once if it, or the waiting, is unknown."""
        loader = get_train_loader(trainer)
        info = get_batch_info(batch, loader)
        if not self._has_warned and (info is None or loader is None):
            self._has_warned = True
            unknown = "waiting for data" if info else "waiting for data, tokens and padding"
            if trainer.is_global_zero:
                warn(
                    f"{self._name}: the loader is a {type(trainer.train_dataloader).__name__} "
                    f"that returns a {type(batch).__name__}, for which {unknown} are unknown. "
                    "Pass a SequenceDataModule as `datamodule`",
                )
        return info

    def step(self, trainer: Trainer, info: BatchInfo | None) -> StepStats:
        """End a step, and begin the next.

        Args:
            trainer: The Trainer.
            info: Information about the batch; None if nothing is known.
        """
        started_at, self._started_at = self._started_at, time.perf_counter()
        seconds, waited = self._started_at - started_at, self._take_waited(trainer)
        if info is None:
            return StepStats(steps=1, seconds=seconds, waited=waited)
        return StepStats(
            steps=1,
            seconds=seconds,
            waited=waited,
            tokens=info.tokens,
            real=info.real,
            padded=info.padded,
            largest=info.padded,
        )

    def _take_waited(self, trainer: Trainer) -> float:
        """Return the seconds of waiting since the last call."""
        loader = get_train_loader(trainer)
        if loader is None:
            return 0.0
        waited_before = self._waited_before if loader is self._loader else 0.0
        self._loader, self._waited_before = loader, loader.waited_seconds
        return loader.waited_seconds - waited_before
