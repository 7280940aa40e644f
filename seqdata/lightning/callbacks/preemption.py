"""Callback that stops all ranks at the same batch after a signal to any of them.

The signal handler of Lightning communicates with other ranks, and hangs if a signal is sent to all
ranks, or to a rank other than 0. This handler only sets a flag, which the loaders exchange.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType

from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import ConfigError, must_be
from seqdata.lightning.datamodule import SequenceDataModule


class Preemption(Callback):
    """Callback that stops all ranks before the same batch after a signal to any rank.

    Every rank raises ``PreemptedError`` before that batch. ``ModelCheckpoint`` with
    ``save_on_exception=True`` then saves the run, which can continue exactly from there. After the
    fit, the Trainer restores the previous signal handlers.

    Args:
        signals: Names of signals, including, on SLURM, the signal of ``--signal``, such as
            ``SIGUSR1``.

    Raises:
        ConfigError: If a signal does not exist, or a process cannot handle it. In ``setup``, if the
            Trainer has no SequenceDataModule, or if this is not the main thread.

    Examples:
        >>> stops = Preemption(("SIGTERM", "SIGUSR1"))
    """

    is_rank_local = True  # not compared over ranks: loaders exchange its flag

    def __init__(self, signals: Sequence[str] = ("SIGTERM",)) -> None:
        names = (signals,) if isinstance(signals, str) else tuple(signals)
        for name in names:
            if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
                raise ConfigError(
                    "preemption: `signals` must be names of signals that a process can handle, "
                    f"such as 'SIGTERM', but has {name!r}."
                )
        self._signals = [signal.Signals[name] for name in names]
        self._datamodule: SequenceDataModule | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check, in a fit, that there is a SequenceDataModule, and that this thread gets signals.

        Raises:
            ConfigError: If there is none, or if this is not the main thread.
        """
        del pl_module
        if stage != "fit":
            return
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(datamodule, SequenceDataModule):
            raise ConfigError(
                must_be(
                    "preemption: `datamodule`",
                    "a SequenceDataModule, whose loaders stop all ranks",
                    "None" if datamodule is None else f"a {type(datamodule).__name__}",
                    "Pass one, or leave the callback out",
                )
            )
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "preemption: `fit` must run in the main thread, which alone receives signals. "
                "Call it there, or leave the callback out."
            )
        self._datamodule = datamodule

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace the signal handlers that Lightning has set.

        The Trainer restores the handlers from before the fit at the end, and, after an exception,
        when everything is saved.
        """
        del trainer, pl_module
        for number in self._signals:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._datamodule is not None:
            self._datamodule.stop(signal.Signals(number).name)
