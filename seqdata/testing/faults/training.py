"""Trains on several ranks under the real Trainer, and one of them comes to harm.

Place in the flow: the matrix's rows R1 to R3. Plays: a data set in a folder of its own, or one per
rank. Makes: outcomes, one per rank that can say something.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy

from seqdata.batch import SequenceBatch
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.together import Together
from seqdata.lightning.watcher import Bounds
from seqdata.policies.fixed import Fixed
from seqdata.testing.faults import damage
from seqdata.testing.faults import outcome as outcomes
from seqdata.testing.faults.outcome import Outcome, of_error
from seqdata.testing.faults.processes import Trap
from seqdata.testing.faults.ranks import NOTE, Ranks, alike, play_ranks, strike

_BATCH = 4
_STEP = 2  # at which it happens
_GRACE = 1.0  # seconds, where patience is short
_MOST_ERRORS = 1000
_BEATS = 6  # in the time of patience


def damaged(setting: Ranks) -> list[Outcome]:
    """Train until the struck rank reads a flipped bit in its own copy of the data."""
    roots = [Path(f"copy-{rank}") / "data" for rank in range(setting.world)]
    given = setting.subject.dataset()
    setting.subject.write(roots[0].resolve(), given)
    for root in roots[1:]:
        shutil.copytree(roots[0], root)
    root = roots[setting.struck]
    shards = setting.subject.shards(root)
    late = shards[len(shards) // 2 :]
    for name, position, size in setting.subject.values(root):
        if name in late:
            damage.flip_bit(root / name, 8 * (position + size // 2))
    play = partial(_fit, setting, roots, None, None)
    found = play_ranks(play, setting)
    return alike(found, setting.struck) if setting.policy == "raise" else _equally_far(found)


def _equally_far(found: Sequence[Outcome]) -> list[Outcome]:
    """Turn outcomes into broken ones where ranks made different numbers of steps, or none."""
    steps = {one.delivered for one in found}
    if len(steps) == 1 and 0 not in steps:
        return list(found)
    text = f"ranks made {sorted(steps)} steps"
    return [replace(one, what=outcomes.BROKEN, kinds=(), text=text) for one in found]


def raised(setting: Ranks, act: Callable[[], None]) -> list[Outcome]:
    """Train until a transform of the struck rank raises, or ends its worker."""
    root, given = _written(setting)
    due = [one for one in given if len(one["x"])]  # others are left out
    at = due[(_STEP * setting.world + setting.struck) * _BATCH]
    trap = Trap(act, "y", at["y"], NOTE.resolve())
    play = partial(_fit, setting, [root] * setting.world, trap, None)
    return alike(play_ranks(play, setting), setting.struck)


def signalled(setting: Ranks, number: int) -> list[Outcome]:
    """Train until the struck rank is ended or held by a signal; its workers get none."""
    root, _ = _written(setting)
    play = partial(_fit, setting, [root] * setting.world, None, number)
    return play_ranks(play, setting, silent=setting.struck)


class Struck(Callback):
    """Sends this process a signal before a step.

    Args:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Send it."""
        del trainer, pl_module, batch
        if batch_idx == _STEP:
            strike(self._number)


class Mean(LightningModule):
    """One parameter: each step of it needs all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.nn.Parameter(torch.zeros(2))

    def training_step(self, batch: SequenceBatch, batch_idx: int) -> torch.Tensor:
        """Give the squared distance of all timesteps."""
        del batch_idx
        error = ((batch["x"] - self.mean) ** 2).mean(-1)
        loss: torch.Tensor = (batch.score * error).sum() * batch.loss_scale
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Give plain descent."""
        return torch.optim.SGD(self.parameters(), 0.1)


def _written(setting: Ranks) -> tuple[Path, list[dict[str, Any]]]:
    root, given = Path("data").resolve(), setting.subject.dataset()
    setting.subject.write(root, given)
    return root, given


def _hurried(patience: float) -> Bounds:
    """Give short waits: no option of the DataModule, as only who waits for a test needs others."""
    beat = patience / _BEATS
    return Bounds(beat=beat, patience=patience, grace=_GRACE, parting=_GRACE)


def _fit(
    setting: Ranks, roots: list[Path], trap: Trap | None, number: int | None, rank: int
) -> Outcome:
    """Fit an epoch as one of the ranks; gives the error, in full."""
    struck = rank == setting.struck
    data = SequenceDataModule(
        train=setting.subject.open(roots[rank], setting.subject.verify[-1]),
        batching=Fixed(_BATCH, shuffle=False), num_workers=setting.workers,
        transform=trap if struck else None, on_error=setting.policy, max_errors=_MOST_ERRORS,
    )  # fmt: skip
    if setting.patience is not None:
        data._together = Together(_hurried(setting.patience))
    alone = setting.world == 1
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, devices=setting.world,
        strategy="auto" if alone else DDPStrategy(process_group_backend="gloo"),
        plugins=None if alone else [TorchElasticEnvironment()],
        callbacks=[] if number is None or not struck else [Struck(number)],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trainer.fit(Mean(), datamodule=data)
        except Exception as error:
            return of_error(error, seconds=0.0, delivered=trainer.global_step)
    return Outcome(what=outcomes.WHOLE, delivered=trainer.global_step)
