"""Callback that monitors data loading: tokens per second, padding and time spent waiting."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.lightning import adapter
from seqdata.lightning.callbacks._support.batch_info import get_train_loader
from seqdata.lightning.callbacks._support.step_stats import StepStats, StepTimer
from seqdata.lightning.ranks.collect import GatherGroup

_WAIT_METRICS = frozenset({"wait_share", "wait_seconds"})
_BATCH_METRICS = frozenset(
    {"tokens_per_second", "padding_share", "real_timesteps", "padded_timesteps"}
)


class DataMonitor(Callback):
    """Callback that logs metrics of data loading.

    In each step that the Trainer logs (``log_every_n_steps``), the callback logs metrics of rank 0
    over the steps since the previous one, without communication or device synchronization:

    - ``data/tokens_per_second``: scored timesteps per second.
    - ``data/wait_share``: fraction of the time spent waiting for data, from 0 to 1.
    - ``data/wait_seconds``: seconds per step spent waiting for data.
    - ``data/padding_share``: fraction of timesteps in padding or padding rows, from 0 to 1.
    - ``data/real_timesteps``: timesteps of sequences per step.
    - ``data/padded_timesteps``: timesteps per step, including padding.

    At the end of each epoch, the ranks gather their metrics over the epoch, and the callback logs
    ``data/rank_0/tokens_per_second``, ``…/wait_share`` and ``…/padding_share`` for every rank.

    The callback ignores validation. If batches are tuples or dicts, it computes the metrics from
    the plan. If the loader does not belong to a ``SequenceDataModule``, the callback warns once,
    and leaves out the waiting for data and, if batches are not ``SequenceBatch``, their timesteps.

    Attributes:
        ranks: Statistics of each rank in the latest complete epoch; empty before its end.

    Examples:
        >>> monitor = DataMonitor()
    """

    def __init__(self) -> None:
        self.ranks: list[StepStats] = []
        self._timer = StepTimer("DataMonitor")
        self._gather_group = GatherGroup()
        self._recent_stats = self._epoch_stats = StepStats()
        self._unknown: frozenset[str] = frozenset()  # metrics without a source

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the timer."""
        del pl_module
        self._gather_group.open()
        self._begin(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset the statistics, and start the timer."""
        del pl_module
        self._begin(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pause the timer."""
        del trainer, pl_module
        self._timer.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Resume the timer."""
        del trainer, pl_module
        self._timer.resume()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a step to the statistics, and log them if the Trainer logs."""
        del outputs, batch_idx
        info = self._timer.get_batch_info(trainer, batch)
        step_stats = self._timer.step(trainer, info)
        self._unknown = _WAIT_METRICS if get_train_loader(trainer) is None else frozenset()
        self._unknown |= _BATCH_METRICS if info is None else frozenset()
        self._recent_stats, self._epoch_stats = (
            self._recent_stats + step_stats,
            self._epoch_stats + step_stats,
        )
        if adapter.is_logging_step(trainer):
            recent_stats, self._recent_stats = self._recent_stats, StepStats()
            metrics = {
                f"data/{name}": value
                for name, value in _make_metrics(recent_stats).items()
                if name not in self._unknown
            }
            pl_module.log_dict(metrics, on_step=True, on_epoch=False, batch_size=1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of the epoch for every rank."""
        self.ranks = self._gather_group.all_gather(self._epoch_stats)
        self._recent_stats = self._epoch_stats = StepStats()
        if trainer.is_global_zero:
            pl_module.log_dict(
                {
                    f"data/rank_{rank}/{name}": value
                    for rank, stats in enumerate(self.ranks)
                    for name, value in _make_rates(stats).items()
                    if name not in self._unknown
                },
                batch_size=1,
                rank_zero_only=True,
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the process group."""
        del trainer, pl_module
        self._gather_group.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the process group."""
        del trainer, pl_module, exception
        self._gather_group.close()

    def _begin(self, trainer: Trainer) -> None:
        self._recent_stats = self._epoch_stats = StepStats()
        self._timer.start(trainer)


def _make_rates(stats: StepStats) -> dict[str, float]:
    return {
        "tokens_per_second": stats.tokens_per_second,
        "wait_share": stats.wait_share,
        "padding_share": stats.padding_share,
    }


def _make_metrics(stats: StepStats) -> dict[str, float]:
    steps = stats.steps
    return {
        **_make_rates(stats),
        "wait_seconds": stats.waited / steps,
        "real_timesteps": stats.real / steps,
        "padded_timesteps": stats.padded / steps,
    }
