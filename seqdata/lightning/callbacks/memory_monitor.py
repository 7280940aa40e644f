"""Watches each rank's memory and load, and tells what did not fit where memory runs out.

Place in the flow: beside the model. Reads: allocators, batches. Makes: metrics, one warning, and a
note on an exception.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import ConfigError, SeqDataWarning
from seqdata.lightning import adapter
from seqdata.lightning.callbacks._support.batch_facts import BatchFacts, loader_of, planned
from seqdata.lightning.callbacks._support.out_of_memory import advice_of, is_out_of_memory, place_of
from seqdata.lightning.callbacks._support.peak_memory import peak_bytes
from seqdata.lightning.callbacks._support.skew import skew_of
from seqdata.lightning.callbacks._support.step_stats import Figures
from seqdata.lightning.callbacks._support.step_timer import Meter
from seqdata.lightning.error_context import evaluated, shown
from seqdata.lightning.ranks.gather_group import Gathering


class RankMemoryMonitor(Callback):
    """Logs peak memory and timesteps of each rank, and warns once where a rank stands out.

    Every so many steps the ranks tell each other, in one small gather, and rank 0 logs
    ``memory/rank_0/peak_bytes``, ``…/tokens`` and ``…/padded_timesteps`` of these steps for each.
    Peak memory is that of tensors on a CUDA device since the start, else of the process.

    On an error that memory ran out the exception gets a note: the batch's epoch, number, shape and
    ids, the command that makes it again, and the budget that would have fitted.

    Args:
        every_n_steps: After how many steps.
        skew: How many times the other ranks' timesteps, memory, or step time by waiting for data
            a rank may have over these steps.

    Attributes:
        ranks: Figures of each rank when it was last asked.

    Raises:
        ConfigError: If an argument cannot be meant.

    Examples:
        >>> monitor = RankMemoryMonitor()
    """

    def __init__(self, every_n_steps: int = 20, skew: float = 1.25) -> None:
        if not isinstance(every_n_steps, int) or every_n_steps < 1:
            raise ConfigError(
                f"RankMemoryMonitor: `every_n_steps` is {every_n_steps!r}, must be an integer of at"
                " least 1"
            )
        if not isinstance(skew, int | float) or not skew > 1:
            raise ConfigError(
                f"RankMemoryMonitor: `skew` is {skew!r}, must be a number above 1: how many times "
                "the others is too much"
            )
        self.ranks: list[Figures] = []
        self._every, self._most = every_n_steps, skew
        self._meter = Meter("RankMemoryMonitor")
        self._gathering = Gathering()
        self._recent = Figures()
        self._largest = 0
        self._facts: BatchFacts | None = None
        self._warned = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to watch."""
        del pl_module
        self._gathering.open()
        self._recent, self._largest, self._warned = Figures(), 0, False
        self._meter.start(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch."""
        del pl_module
        self._meter.start(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        del trainer, pl_module
        self._meter.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the clock go on."""
        del trainer, pl_module
        self._meter.go_on()
        self._facts = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note which batch it is."""
        del pl_module, batch_idx
        self._facts = self._meter.look(trainer, batch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count a step; every so often ask the other ranks."""
        del pl_module, outputs, batch, batch_idx
        step = self._meter.step(trainer, self._facts)
        self._recent += step
        self._largest = max(self._largest, step.largest)
        if self._recent.steps >= self._every:
            self._tell(trainer, judge=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the last steps, and leave the other ranks."""
        del pl_module
        if self._recent.steps:
            self._tell(trainer, judge=False)
        self._gathering.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Say what did not fit, where that is what happened."""
        del pl_module
        self._gathering.close()
        if is_out_of_memory(exception):
            exception.add_note(f"RankMemoryMonitor: {self._told(trainer)}")
        self._facts = None

    def _told(self, trainer: Trainer) -> str:
        """Say of which batch memory ran out, also of one that did not get onto the device."""
        evaluates = not trainer.training
        loader = evaluated(trainer) if evaluates else loader_of(trainer)
        facts = planned(loader) if loader is not None else None if evaluates else self._facts
        if facts is None:
            return f"out of memory on rank {trainer.global_rank}, in no batch that is known"
        told = place_of(facts, trainer.global_rank)
        if evaluates:
            stage = adapter.stage_of(trainer)
            what = f"{told}, in {stage}: lower the budget of `eval_batching`"
        else:
            what = f"{told}. {advice_of(facts, self._largest)}"
        return what if loader is None else what + shown(loader, facts.epoch, facts.number)

    def _tell(self, trainer: Trainer, *, judge: bool) -> None:
        mine = replace(self._recent, peak_bytes=peak_bytes(trainer.strategy.root_device))
        self._recent = Figures()
        self.ranks = self._gathering.gather(mine)
        if not trainer.is_global_zero:
            return
        adapter.log_now(trainer, _metrics_of(self.ranks))
        skew = skew_of(self.ranks, self._most) if judge and not self._warned else None
        if skew is not None:
            self._warned = True
            warnings.warn(f"RankMemoryMonitor: {skew}", SeqDataWarning, stacklevel=2)


def _metrics_of(ranks: list[Figures]) -> dict[str, float]:
    made: dict[str, float] = {}
    for rank, figures in enumerate(ranks):
        made[f"memory/rank_{rank}/peak_bytes"] = figures.peak_bytes
        made[f"memory/rank_{rank}/tokens"] = figures.tokens
        made[f"memory/rank_{rank}/padded_timesteps"] = figures.padded
    return made
