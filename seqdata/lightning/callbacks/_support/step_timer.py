"""Measures the time of a rank's training steps and the size of their batches."""

from __future__ import annotations

import time
import warnings
from typing import Any

from lightning.pytorch import Trainer

from seqdata.errors import SeqDataWarning
from seqdata.lightning.callbacks._support.batch_facts import BatchFacts, get_facts, get_train_loader
from seqdata.lightning.callbacks._support.step_stats import StepStats


class StepTimer:
    """A clock that runs while training runs.

    A step ends at the Trainer's hook, where the next one begins: kernels that still run on a device
    count for later steps, so that sums over many steps are correct without waiting for the device.

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

    def get_facts(self, trainer: Trainer, batch: Any) -> BatchFacts | None:
        """Return the facts about a batch; warn once if there are none."""
        loader = get_train_loader(trainer)
        facts = get_facts(batch, loader)
        if not self._has_warned and (facts is None or loader is None):
            self._has_warned = True
            unknown = "waiting for data" if facts else "waiting for data, tokens and padding"
            if trainer.is_global_zero:
                warnings.warn(
                    f"{self._name}: the loader is a {type(trainer.train_dataloader).__name__} "
                    f"that returns a {type(batch).__name__}, for which {unknown} are unknown. "
                    "Pass a SequenceDataModule as `datamodule`",
                    SeqDataWarning,
                    stacklevel=2,
                )
        return facts

    def step(self, trainer: Trainer, facts: BatchFacts | None) -> StepStats:
        """End a step, and begin the next.

        Args:
            trainer: The Trainer.
            facts: Facts about the batch; None if nothing is known.
        """
        started_at, self._started_at = self._started_at, time.perf_counter()
        seconds, waited = self._started_at - started_at, self._take_waited(trainer)
        if facts is None:
            return StepStats(steps=1, seconds=seconds, waited=waited)
        return StepStats(
            steps=1,
            seconds=seconds,
            waited=waited,
            tokens=facts.tokens,
            real=facts.real,
            padded=facts.padded,
            largest=facts.padded,
        )

    def _take_waited(self, trainer: Trainer) -> float:
        """Return the seconds of waiting since the last call."""
        loader = get_train_loader(trainer)
        if loader is None:
            return 0.0
        waited_before = self._waited_before if loader is self._loader else 0.0
        self._loader, self._waited_before = loader, loader.waited_seconds
        return loader.waited_seconds - waited_before
