"""A signal stops a run of one process before the next batch, and the run goes on from there."""

import os
import signal
import threading

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import Callback

from seqdata.errors import ConfigError, PreemptedError
from seqdata.lightning.callbacks.preemption import Preemption
from seqdata_testing.waiting import patient
from tests.lightning.harness import QUIET, Recorder, data_of, fit, quietly


class Struck(Callback):
    """Sends this process a signal, in the training step or validation batch with this number."""

    def __init__(self, name: str = "SIGTERM", at: int = 2, *, in_val: bool = False) -> None:
        self.name, self.at, self.in_val = name, at, in_val

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if not self.in_val and trainer.global_step == self.at:
            self._strike()

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        if self.in_val and batch_idx == self.at:
            self._strike()

    def _strike(self):
        self.at = -1
        os.kill(os.getpid(), getattr(signal, self.name))


def handlers():
    return [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR1)]


@pytest.mark.parametrize("every", [2, 1.0])
@pytest.mark.parametrize("struck", [Struck(), Struck("SIGUSR1", 0), Struck(at=0, in_val=True)])
def test_a_run_that_a_signal_stopped_goes_on_as_if_nothing_was(struck, every, tmp_path):
    options = {"max_epochs": 2, "val_check_interval": every}
    whole = fit(data_of(), **options)
    before, model = handlers(), Recorder()
    stops = Preemption(("SIGTERM", "SIGUSR1"))
    struck = Struck(struck.name, struck.at, in_val=struck.in_val)
    with pytest.raises(
        PreemptedError, match=f"rank 0 was requested to stop by {struck.name}"
    ) as caught:
        fit(
            data_of(), model=model, folder=tmp_path, every=100, callbacks=(struck, stops), **options
        )
    assert handlers() == before
    assert caught.value.details == {"rank": 0, "cause": struck.name}
    (path,) = tmp_path.glob("*.ckpt")
    rest = fit(data_of(), ckpt=path, callbacks=(stops,), **options)
    assert model.log_of.train + rest.log.train == whole.log.train
    cut = [] if struck.in_val else model.log_of.val  # one that was cut off is run as a whole
    assert cut + rest.log.val == whole.log.val
    assert rest.model.parameters_of() == whole.model.parameters_of()
    assert handlers() == before


def test_a_signal_in_the_last_batch_of_a_run_changes_nothing():
    before = handlers()
    run = fit(data_of(val=None), callbacks=(Struck(at=11), Preemption()), max_epochs=2)
    assert len(run.log.train) == 12
    assert handlers() == before


def test_a_program_may_stop_a_run_itself():
    class Stopping(Recorder):
        def training_step(self, batch, batch_idx):
            self.trainer.datamodule.stop("the budget")
            return super().training_step(batch, batch_idx)

    model, data = Stopping(), data_of()
    with pytest.raises(PreemptedError, match="requested to stop by the budget, and every rank"):
        fit(data, model=model, max_epochs=1)
    assert len(model.log_of.train) == 1
    assert len(fit(data, max_epochs=1).log.train) == 6  # the next fit is not stopped


@pytest.mark.parametrize("signals", ["SIGNONE", ("SIGTERM", "SIGKILL"), (15,)])
def test_signals_must_be_names_of_some_that_can_be_taken(signals):
    with pytest.raises(ConfigError, match="must be names of signals that a process can handle"):
        Preemption(signals)


def test_it_needs_a_datamodule_that_can_stop():
    trainer = pl.Trainer(**QUIET, max_epochs=1, callbacks=[Preemption()])
    wanted = (
        "preemption: `datamodule` must be a SequenceDataModule, whose loaders stop all "
        "ranks, but is None"
    )
    with quietly(), pytest.raises(ConfigError, match=wanted):
        trainer.fit(Recorder(), [[1]])


def test_it_needs_the_main_thread():
    caught = []

    def inside():
        try:
            fit(data_of(), callbacks=(Preemption(),), max_epochs=1)
        except ConfigError as error:
            caught.append(str(error))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join(timeout=patient())
    (text,) = caught
    assert text.startswith("preemption: `fit` must run in the main thread, which")
