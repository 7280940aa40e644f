"""Training on several ranks with the real Trainer, one of which is harmed."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import DataError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.ranks.coordinator import RankCoordinator
from seqdata.lightning.ranks.watchdog import RankTimeouts
from seqdata.policies.fixed import Fixed
from seqdata_testing.faults import damage
from seqdata_testing.faults import outcome as outcomes
from seqdata_testing.faults.on_error import find_different_row
from seqdata_testing.faults.outcome import Outcome, of_error
from seqdata_testing.faults.processes import FaultTransform
from seqdata_testing.faults.ranks import NOTE, Ranks, mark_differing, play_ranks, strike

UNREADABLE = "row that cannot be read"
_BATCH = 4
_STEP = 2  # at which it happens
_GRACE = 1.0  # seconds, where patience is short
_MOST_ERRORS = 1000
_BEATS = 6  # in the time of patience


def train_on_damage(setup: Ranks) -> list[Outcome]:
    """Train until the struck rank reads a flipped bit in its own copy of the data."""
    roots = [Path(f"copy-{rank}") / "data" for rank in range(setup.world)]
    sequences = setup.target.dataset()
    setup.target.write(roots[0].resolve(), sequences)
    for root in roots[1:]:
        shutil.copytree(roots[0], root)
    root = roots[setup.struck]
    shards = setup.target.shards(root)
    late = shards[len(shards) // 2 :]
    for name, position, size in setup.target.values(root):
        if name in late:
            damage.flip_bit(root / name, 8 * (position + size // 2))
    play = partial(_fit, setup, roots, None, None)
    found = play_ranks(play, setup)
    if setup.policy == "raise":
        return mark_differing(found, setup.struck)
    bad = _find_unreadable(setup, root, sequences)
    # Empty sequences are dropped.
    due = [number for number, sequence in enumerate(sequences) if len(sequence["x"])]
    batches = [due[first : first + _BATCH] for first in range(0, len(due), _BATCH)]
    return [
        _check_rows(
            setup, outcome, batches[rank :: setup.world], bad if rank == setup.struck else {}
        )
        for rank, outcome in enumerate(found)
    ]


def _find_unreadable(
    setup: Ranks, root: Path, sequences: Sequence[Mapping[str, Any]]
) -> dict[int, str]:
    """Return the sequences of a copy that cannot be read, with the errors."""
    found = {}
    for number, sequence in enumerate(sequences):
        try:
            store = setup.target.open(root, setup.target.verify[-1])
            store.read(np.array([[number, 0, len(sequence["x"])]]), store.fields)
        except DataError as error:
            found[number] = type(error).__name__
    return found


def _check_rows(
    setup: Ranks, found: Outcome, batches: Sequence[Sequence[int]], bad: Mapping[int, str]
) -> Outcome:
    """Compare the rows that a rank trained on with the plan, step by step."""
    if found.what != outcomes.WHOLE:
        return found
    trained: list[list[tuple[int, bool]]] = json.loads(found.text)
    hit = sum(number in bad for batch in batches for number in batch)
    wrong = ""
    for step, (rows, must) in enumerate(zip_longest(trained, batches, fillvalue=())):
        if not must and not any(real for _, real in rows):
            continue  # a padding row, so that all ranks make as many steps
        if not _is_dealt(setup.policy, rows, must, bad):
            wrong = wrong or f"step {step} has {rows}, but must have {list(must)}"
    if wrong:
        return replace(found, what=outcomes.WRONG, text=wrong)
    return replace(found, text="", happened={UNREADABLE: hit})


def _is_dealt(
    policy: str, rows: Sequence[Sequence[Any]], must: Sequence[int], bad: Mapping[int, str]
) -> bool:
    """Return whether rows are those of a batch, with unreadable rows masked or replaced.

    A batch without any readable row is masked, because it has no row to replace them with.
    """
    if len(rows) != len(must):
        return False
    policy = "mask" if all(due in bad for due in must) else policy
    for (number, real), due in zip(rows, must, strict=True):
        good = due not in bad
        if policy == "mask" or good:
            if (number, real) != (due, good):
                return False
        elif number in bad or not real:
            return False
    return True


def train_until_error(setup: Ranks, act: Callable[[], None]) -> list[Outcome]:
    """Train until a transform of the struck rank raises, or ends its worker."""
    root, sequences = _write_dataset(setup)
    due = [sequence for sequence in sequences if len(sequence["x"])]  # others are dropped
    at = due[(_STEP * setup.world + setup.struck) * _BATCH]
    trap = FaultTransform(act, "y", at["y"], NOTE.resolve())
    play = partial(_fit, setup, [root] * setup.world, trap, None)
    return mark_differing(play_ranks(play, setup), setup.struck)


def train_until_signal(setup: Ranks, number: int) -> list[Outcome]:
    """Train until a signal kills or stops the struck rank; its workers do not get it."""
    root, _ = _write_dataset(setup)
    play = partial(_fit, setup, [root] * setup.world, None, number)
    return play_ranks(play, setup, silent=setup.struck)


class FaultCallback(Callback):
    """Callback that sends this process a signal before a step.

    Args:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Send the signal."""
        del trainer, pl_module, batch
        if batch_idx == _STEP:
            strike(self._number)


class Mean(LightningModule):
    """Module with one parameter, whose steps need all ranks; it records the rows it trained on.

    Args:
        sequences: Expected content of the store.
    """

    def __init__(self, sequences: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.mean = torch.nn.Parameter(torch.zeros(2, dtype=torch.float32, device="cpu"))
        self.sequences = sequences
        self.trained: list[list[tuple[int, bool]]] = []
        self.wrong = ""

    def training_step(self, batch: SequenceBatch, batch_idx: int) -> torch.Tensor:
        """Return the mean squared distance of the timesteps from the parameter."""
        real = [float(weight) > 0 for weight in batch.weight]
        self.trained.append(list(zip(batch.ids.tolist(), real, strict=True)))
        difference = find_different_row(batch, self.sequences, set())
        self.wrong = self.wrong or (difference and f"step {batch_idx}: {difference}")
        error = ((batch["x"] - self.mean) ** 2).mean(-1)
        loss: torch.Tensor = (batch.score * error).sum() * batch.loss_scale
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD without momentum."""
        return torch.optim.SGD(self.parameters(), 0.1)


def _write_dataset(setup: Ranks) -> tuple[Path, list[dict[str, Any]]]:
    root, sequences = Path("data").resolve(), setup.target.dataset()
    setup.target.write(root, sequences)
    return root, sequences


def _make_short_timeouts(patience: float) -> RankTimeouts:
    """Return short timeouts, which only tests need; the DataModule has no option for them."""
    beat = patience / _BEATS
    return RankTimeouts(
        heartbeat=beat, unresponsive=patience, exit_grace=_GRACE, leave_grace=_GRACE
    )


def _fit(
    setup: Ranks, roots: list[Path], trap: FaultTransform | None, number: int | None, rank: int
) -> Outcome:
    """Fit one epoch as one of the ranks, and return the outcome."""
    struck = rank == setup.struck
    data = SequenceDataModule(
        train=setup.target.open(roots[rank], setup.target.verify[-1]),
        batching=Fixed(_BATCH, shuffle=False), num_workers=setup.workers,
        transform=trap, on_error=setup.policy, max_errors=_MOST_ERRORS,
    )  # fmt: skip
    if setup.patience is not None:
        data._coordinator = RankCoordinator(_make_short_timeouts(setup.patience))
    alone = setup.world == 1
    trainer = Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, devices=setup.world,
        strategy="auto" if alone else DDPStrategy(process_group_backend="gloo"),
        plugins=None if alone else [TorchElasticEnvironment()],
        callbacks=[] if number is None or not struck else [FaultCallback(number)],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = Mean(setup.target.dataset())
            trainer.fit(model, datamodule=data)
        except Exception as error:
            return of_error(error, seconds=0.0, delivered=trainer.global_step)
    if model.wrong:
        return Outcome(what=outcomes.WRONG, text=model.wrong, delivered=trainer.global_step)
    text = json.dumps(model.trained)
    return Outcome(what=outcomes.WHOLE, text=text, delivered=trainer.global_step)
