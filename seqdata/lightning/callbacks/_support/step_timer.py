"""Takes the time of a rank's training steps, and what their batches hold.

Place in the flow: monitors call it in the Trainer's hooks. Reads: the clock, the loader's waiting,
batches. Makes: ``Figures`` of each step.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

from lightning.pytorch import Trainer

from seqdata.errors import SeqDataWarning
from seqdata.lightning.callbacks._support.batch_facts import BatchFacts, facts_of, loader_of
from seqdata.lightning.callbacks._support.step_stats import Figures


class Meter:
    """A clock that runs while training does.

    A step ends where the Trainer says so, and the next begins there: kernels that still run on a
    device are counted later, so that sums over many steps are right without waiting for it.

    Args:
        name: Of the callback, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._began = 0.0
        self._paused: float | None = None
        self._loader: object = None
        self._waited = 0.0
        self._said = False

    def start(self, trainer: Trainer) -> None:
        """Begin a step now."""
        self._began, self._paused = time.perf_counter(), None
        self._waiting(trainer)

    def pause(self) -> None:
        """Stop the clock: a validation begins."""
        self._paused = time.perf_counter()

    def go_on(self) -> None:
        """Let the clock run again."""
        if self._paused is not None:
            self._began += time.perf_counter() - self._paused
            self._paused = None

    def look(self, trainer: Trainer, batch: Any) -> BatchFacts | None:
        """Give what is known of a batch; where that is nothing, say so, once."""
        loader = loader_of(trainer)
        facts = facts_of(batch, loader)
        if not self._said and (facts is None or loader is None):
            self._said = True
            unknown = "waiting for data" if facts else "waiting for data, tokens and padding"
            if trainer.is_global_zero:
                warnings.warn(
                    f"{self._name}: the loader is a {type(trainer.train_dataloader).__name__} that "
                    f"gives a {type(batch).__name__}, must be that of a SequenceDataModule to tell "
                    f"{unknown}; pass one as `datamodule`",
                    SeqDataWarning,
                    stacklevel=2,
                )
        return facts

    def step(self, trainer: Trainer, facts: BatchFacts | None) -> Figures:
        """End a step, and begin the next.

        Args:
            trainer: Whose step it is.
            facts: Of its batch; None: nothing is known.
        """
        began, self._began = self._began, time.perf_counter()
        seconds, waited = self._began - began, self._waiting(trainer)
        if facts is None:
            return Figures(steps=1, seconds=seconds, waited=waited)
        return Figures(
            steps=1,
            seconds=seconds,
            waited=waited,
            tokens=facts.tokens,
            real=facts.real,
            padded=facts.padded,
            largest=facts.padded,
        )

    def _waiting(self, trainer: Trainer) -> float:
        """Give the seconds that were waited since this was asked last."""
        loader = loader_of(trainer)
        if loader is None:
            return 0.0
        before = self._waited if loader is self._loader else 0.0
        self._loader, self._waited = loader, loader.waited
        return loader.waited - before
