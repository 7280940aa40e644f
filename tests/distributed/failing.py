"""What a rank does in the tests of failing together: fits in which one rank goes wrong."""

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from seqdata.errors import DecodeError, SeqDataError
from seqdata.lightning.callbacks.preemption import Preemption
from seqdata.lightning.ranks.coordinator import RankCoordinator
from seqdata.lightning.ranks.watchdog import RankTimeouts
from seqdata.policies.fixed import Bucketed
from tests.distributed.ddp import under_ddp
from tests.lightning.harness import QUIET, Recorder, data_of, quietly


class Failing:
    """A transform that goes wrong at the sequences of one length, on one rank.

    Args:
        how: ``raise``, ``decode``, ``odd`` (an error that does not pickle), ``die`` or nothing.
        length: Of these sequences.
        spare: How many of them it lets pass.
    """

    def __init__(self, how: str, length: int = 9, spare: int = 0) -> None:
        self.rank = {"how": how, "length": length, "spare": spare}  # its own: not compared

    def __call__(self, sequence, rng):
        how = self.rank["how"]
        if len(sequence["x"]) != self.rank["length"] or not how:
            return sequence
        if self.rank["spare"]:
            self.rank["spare"] -= 1
            return sequence
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "decode":
            raise DecodeError.at("field 'x' is bad", shard=7)
        if how == "odd":
            raise OddError("nine", "is too many")
        raise ValueError("nine is too many")


class OddError(Exception):
    """An error that cannot be made from its text."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


class Hurt(Callback):
    """Does something to this process in a training or validation batch.

    Args:
        how: ``raise``, ``late`` (raise once another rank is known to have failed), ``hang``,
            ``end`` (the fit, of this rank alone), or the name of a signal.
        at: Global step, or number of validation batches, before which it does.
    """

    def __init__(self, how: str = "", at: int = 2, *, in_val: bool = False) -> None:
        self.how, self.at, self.in_val, self.seen = how, at, in_val, 0
        self.handed: list[tuple[int, int]] = []
        self.pids: list[int] = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.handed.append((trainer.train_dataloader.last_batch.step, batch_idx))
        if not self.in_val and trainer.global_step == self.at:
            self._do(trainer)

    def on_validation_batch_start(self, trainer, module, batch, batch_idx, dataloader_idx=0):
        self.seen += 1
        if self.in_val and self.seen == self.at + 1:
            self._do(trainer)

    on_test_batch_start = on_validation_batch_start

    def _do(self, trainer):
        how, self.how = self.how, ""
        if how == "late":
            while trainer.datamodule._coordinator._groups.watchdog.failure is None:
                time.sleep(0.01)
        if how in ("raise", "late"):
            raise KeyError("told to fail")
        if how == "hang":
            time.sleep(3600)  # as in a collective that nobody answers
        if how == "end":
            trainer.should_stop = True
        elif how:
            Path(f"hurt-{trainer.global_rank}").write_text(str(time.time()))
            if trainer.train_dataloader is not None:
                self.pids = trainer.train_dataloader.engine.worker_pids
            for pid in (*self.pids, os.getpid()):
                os.kill(pid, getattr(signal, how))


class Looking(Callback):
    """Looks at a batch of each loader before training, on rank 0 alone, as people do to log one."""

    def on_train_start(self, trainer, module):
        if trainer.is_global_zero:
            next(iter(trainer.train_dataloader))
            next(iter(trainer.val_dataloaders))


class Gathering(Callback):
    """Adds up something over ranks after each batch of a test, as a metric does."""

    def on_test_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        torch.distributed.all_reduce(torch.zeros(1))


def callbacks_of(spec: dict[str, Any], hurt: Hurt) -> list[Callback]:
    """Make the callbacks that a task is told of."""
    callbacks: list[Callback] = [hurt]
    if "folder" in spec:
        callbacks.append(
            ModelCheckpoint(
                dirpath=spec["folder"], filename="saved", every_n_train_steps=1000,
                save_on_exception=True,
            )
        )  # fmt: skip
    if spec.get("gathers"):
        callbacks.append(Gathering())
    if spec.get("looks"):
        callbacks.append(Looking())
    if "preemption" in spec:
        callbacks.append(Preemption(**spec["preemption"]))
    return callbacks


def fail(spec: dict[str, Any]) -> dict[str, Any]:
    """Fit until something happens; says what, and how long it took."""
    hurt = Hurt(**spec.get("hurt", {}))
    model = Recorder()
    callbacks = callbacks_of(spec, hurt)
    options = dict(spec.get("data", {}))
    transform = Failing(**spec.get("transform", {"how": ""}))
    data = data_of(
        batching=Bucketed(options.pop("batch", 4), balance_ranks=2), transform=transform, **options
    )
    if "bounds" in spec:
        data._coordinator = RankCoordinator(RankTimeouts(**spec["bounds"]))
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR1)]
    trainer = {"max_epochs": 2, **spec.get("trainer", {})}
    ckpt, alone = spec.get("ckpt"), spec["world"] == 1
    error: BaseException | None = None
    began = time.monotonic()
    with quietly():
        made = pl.Trainer(
            **{
                **QUIET, "enable_checkpointing": "folder" in spec, "callbacks": callbacks,
                **trainer, **({} if alone else under_ddp(spec["world"])),
            }
        )  # fmt: skip
        try:
            if spec.get("evaluates"):
                made.test(model, datamodule=data)
            else:
                made.fit(model, datamodule=data, ckpt_path=ckpt)
        except Exception as failure:
            error = failure
            if spec.get("raises"):
                raise
    after = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGUSR1)]
    return {
        "train": model.log_of.train,
        "steps": model.log_of.steps,
        "val": model.log_of.val,
        "global_step": made.global_step,
        "parameters": model.parameters_of(),
        "class": type(error).__name__,
        "text": str(error),
        "details": error.details if isinstance(error, SeqDataError) else {},
        "context": type(error.__cause__).__name__ if error is not None else "",
        "notes": list(getattr(error, "__notes__", ())),
        "cause": str(error.__cause__) if error is not None else "",
        "seconds": time.monotonic() - began,
        "handed": hurt.handed,
        "workers": [(pid, (Path("/proc") / str(pid)).exists()) for pid in hurt.pids],
        "signals": before == after,
        "waited": made.train_dataloader.waited_seconds
        if made.train_dataloader is not None
        else 0.0,
    }


def draw(spec: dict[str, Any]) -> dict[str, Any]:
    """Draw numbers with the other ranks, without a Trainer; gives what came, and the error."""
    together, drawn, error = RankCoordinator(RankTimeouts(**spec["bounds"])), [], None
    began = time.monotonic()
    try:
        for _ in range(spec.get("rounds", 1)):
            numbers = together.iterate_synchronized(iter(range(spec["count"])), spec["world"])
            drawn.extend(itertools.islice(numbers, spec.get("take")))
    except SeqDataError as failure:
        error = f"{type(failure).__name__}: {failure}", failure.details
    took = time.monotonic() - began
    together.leave()
    return {
        "drawn": drawn,
        "error": error,
        "seconds": took,
        "left": time.monotonic() - began - took,
    }


def steps(spec: dict[str, Any]) -> dict[str, float]:
    """Draw with and without the channel; gives the median microseconds of each ``next``."""
    together, count, pause = RankCoordinator(), spec["count"], spec["pause"]
    medians: dict[str, float] = {}
    for name in ("alone", "agreed"):
        numbers = iter(range(count))
        if name == "agreed":
            numbers = together.iterate_synchronized(numbers, spec["world"])
        took = []
        for _ in range(count):
            time.sleep(pause)
            asked = time.perf_counter()
            next(numbers)
            took.append(1e6 * (time.perf_counter() - asked))
        medians[name] = sorted(took)[count // 2]
    together.leave()
    return medians


TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {"fail": fail, "draw": draw, "steps": steps}
