"""Turns a signal to any rank into the same stop on all of them.

Lightning's own handler talks to other ranks from inside the signal, which hangs where the signal
came to another rank than 0, or to all. This one takes note; the loaders do the rest.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType

from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import ConfigError
from seqdata.lightning.datamodule import SequenceDataModule


class Preemption(Callback):
    """Makes every rank raise ``Preempted`` before the same next batch once one gets a signal.

    With ``ModelCheckpoint(save_on_exception=True)`` the run is then saved, and goes on from there
    as if it had not been stopped. Signals mean what they meant before once the fit is over.

    Args:
        signals: Names of signals; on SLURM the one of ``--signal``, say ``SIGUSR1``, too.

    Raises:
        ConfigError: If there is no such signal, or none that can be taken here.

    Examples:
        >>> stops = Preemption(("SIGTERM", "SIGUSR1"))
    """

    def __init__(self, signals: Sequence[str] = ("SIGTERM",)) -> None:
        names = (signals,) if isinstance(signals, str) else tuple(signals)
        for name in names:
            if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
                raise ConfigError(
                    f"preemption: `signals` has {name!r}, must be names of signals that a process "
                    "can take, as 'SIGTERM'"
                )
        self._signals = [signal.Signals[name] for name in names]
        self._datamodule: SequenceDataModule | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Look whether there is a DataModule that can stop, and a thread that gets signals."""
        del pl_module
        if stage != "fit":
            return
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(datamodule, SequenceDataModule):
            raise ConfigError(
                f"preemption: `datamodule` is a {type(datamodule).__name__}, must be a "
                "SequenceDataModule, whose loaders stop all ranks; pass one, or leave it out"
            )
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "preemption: `fit` runs in a thread, must be in the main one, which alone gets "
                "signals; call it there, or leave it out"
            )
        self._datamodule = datamodule

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the place of Lightning's handlers, which stand by now.

        At the end, and after an exception once all is saved, the Trainer puts back the handlers of
        before the fit, whoever's stand then.
        """
        del trainer, pl_module
        for number in self._signals:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._datamodule is not None:
            self._datamodule.stop(signal.Signals(number).name)
