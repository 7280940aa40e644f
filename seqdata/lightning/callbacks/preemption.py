"""Callback that stops all ranks at the same batch after a signal to any of them.

Lightning communicates with other ranks inside the signal handler, which hangs if the signal is sent
to another rank than 0, or to all. This handler only sets a flag, which the loaders exchange.
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
    """Makes every rank raise ``PreemptedError`` before the same next batch once one gets a signal.

    With ``ModelCheckpoint(save_on_exception=True)`` the run is then saved, and continues from there
    as if it had not been stopped. After the fit the previous handlers are restored.

    Args:
        signals: Names of signals; on SLURM also the one of ``--signal``, such as ``SIGUSR1``.

    Raises:
        ConfigError: If a signal does not exist, or cannot be handled here.

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
        """Check that there is a SequenceDataModule, and that this thread receives signals."""
        del pl_module
        if stage != "fit":
            return
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(datamodule, SequenceDataModule):
            raise ConfigError(
                must_be(
                    "preemption: `datamodule`",
                    "a SequenceDataModule, whose loaders stop all ranks",
                    f"a {type(datamodule).__name__}",
                    "Pass one, or leave it out",
                )
            )
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "preemption: `fit` must run in the main thread, which alone receives signals. "
                "Call it there, or leave the callback out."
            )
        self._datamodule = datamodule

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace Lightning's handlers, which are set by now.

        The Trainer restores the handlers from before the fit at its end, and after an exception
        once everything is saved.
        """
        del trainer, pl_module
        for number in self._signals:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._datamodule is not None:
            self._datamodule.stop(signal.Signals(number).name)
