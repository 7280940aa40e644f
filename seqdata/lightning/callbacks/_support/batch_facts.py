"""What is known of a batch without looking into its tensors: no device is waited for.

A SequenceBatch says it itself; for a tuple or dict it is what was planned, which the loader knows.
Place in the flow: below the monitors. Reads: a batch's CPU side, or a plan. Makes: facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.collators.jagged import Jagged
from seqdata.collators.packed import PackedRows
from seqdata.collators.varlen import Varlen
from seqdata.lightning.trainer_loader import TrainerLoader
from seqdata.loading.batch_metadata import head_of

_WITHOUT_PADDING = (Jagged, PackedRows, Varlen)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchFacts:
    """One batch of one rank.

    Attributes:
        epoch: Of the plan.
        number: Batch of the plan.
        rows: Rows, filler too.
        width: Timesteps of the longest row.
        tokens: Timesteps that count in the loss.
        real: Timesteps of sequences; those of filler are none.
        padded: Timesteps that the batch holds with its padding.
        ids: int64 (rows,), numbers in the base store; on the CPU.
    """

    epoch: int
    number: int
    rows: int
    width: int
    tokens: int
    real: int
    padded: int
    ids: Tensor


def loader_of(trainer: Trainer) -> TrainerLoader | None:
    """Give the training loader, if it is one of ours."""
    loader = trainer.train_dataloader
    return loader if isinstance(loader, TrainerLoader) else None


def facts_of(batch: Any, loader: TrainerLoader | None) -> BatchFacts | None:
    """Give what is known of a batch that a loader has handed out last; None: nothing is.

    Args:
        batch: As the model sees it.
        loader: Where it is from, if that is one of ours.
    """
    if isinstance(batch, SequenceBatch):
        return _told(batch)
    return None if loader is None else planned(loader)


def scale_of(batch: Any, loader: TrainerLoader | None) -> float | None:
    """Give the ``lr_scale`` of a batch that a loader has handed out last; None: it has none.

    Args:
        batch: As the model sees it.
        loader: Where it is from, if that is one of ours.
    """
    if not isinstance(batch, SequenceBatch):
        batch = None if loader is None else _head(loader)
    return None if batch is None else batch.lr_scale


def planned(loader: TrainerLoader) -> BatchFacts | None:
    """Give what was planned for the batch that a loader has handed out last; None: none was."""
    head = _head(loader)
    if head is None:
        return None
    options = loader.player.options
    if isinstance(options.collator, _WITHOUT_PADDING):
        head.layout = "varlen"
    return _told(head)


def _head(loader: TrainerLoader) -> SequenceBatch | None:
    handed, player = loader.handed, loader.player
    if handed is None:
        return None
    place = handed.begun
    share = player.share(place.epoch, place.position)
    step = share[handed.step]
    ids = player.store.base_numbers(step.spans[:, 0])
    head = head_of(step, ids, share.plan, Axes(player.policy.axis))
    head.horizon = share.plan.lookahead - int(player.describe()["shift"])
    head.epoch = 0 if player.options.frozen_epoch else place.epoch
    return head


def _told(batch: SequenceBatch) -> BatchFacts:
    rows, horizon = len(batch), batch.horizon
    real = int(batch.lengths.sum()) + rows * horizon
    width = batch.padded_length or max(batch.lengths.tolist(), default=0)
    return BatchFacts(
        epoch=batch.epoch,
        number=batch.number,
        rows=rows,
        width=width + horizon,
        tokens=batch.num_tokens,
        real=real if batch.num_tokens else 0,
        padded=rows * (width + horizon) if batch.layout == "padded" else real,
        ids=batch.ids,
    )
