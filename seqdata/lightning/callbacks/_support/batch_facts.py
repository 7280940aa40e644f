"""Facts about a batch without reading its tensors, so that nothing waits for a device.

A SequenceBatch has them; for a tuple or dict they are the planned ones, which the loader has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.collators.base import SupportsLayout
from seqdata.lightning.trainer_loader import TrainerLoader
from seqdata.loading.batch_metadata import make_metadata


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchFacts:
    """The size of a batch on one rank.

    Attributes:
        epoch: Epoch of the plan.
        number: Number of the batch in the plan.
        rows: Number of rows, including filler.
        width: Timesteps of the longest row.
        tokens: Timesteps that count in the loss.
        real: Timesteps of sequences, without filler.
        padded: Timesteps including padding.
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


def get_train_loader(trainer: Trainer) -> TrainerLoader | None:
    """Return the training loader, if it is a TrainerLoader."""
    loader = trainer.train_dataloader
    return loader if isinstance(loader, TrainerLoader) else None


def get_facts(batch: Any, loader: TrainerLoader | None) -> BatchFacts | None:
    """Return the facts about the last batch of a loader; None if nothing is known.

    Args:
        batch: The batch as the model receives it.
        loader: Its loader, if it is a TrainerLoader.
    """
    if isinstance(batch, SequenceBatch):
        return _make_facts(batch)
    return None if loader is None else get_planned_facts(loader)


def get_lr_scale(batch: Any, loader: TrainerLoader | None) -> float | None:
    """Return the ``lr_scale`` of the last batch of a loader; None if it has none.

    Args:
        batch: The batch as the model receives it.
        loader: Its loader, if it is a TrainerLoader.
    """
    if not isinstance(batch, SequenceBatch):
        batch = None if loader is None else _make_metadata(loader)
    return None if batch is None else batch.lr_scale


def get_planned_facts(loader: TrainerLoader) -> BatchFacts | None:
    """Return the planned facts about the last batch of a loader; None if there was none."""
    metadata = _make_metadata(loader)
    if metadata is None:
        return None
    collator: Any = loader.engine.options.collator
    if isinstance(collator, SupportsLayout):
        metadata.layout = collator.layout
    return _make_facts(metadata)


def _make_metadata(loader: TrainerLoader) -> SequenceBatch | None:
    batch_ref, engine = loader.last_batch, loader.engine
    if batch_ref is None:
        return None
    run_position = batch_ref.begun_at
    share = engine.share(run_position.epoch, run_position.position)
    step = share[batch_ref.step]
    ids = engine.store.base_numbers(step.spans[:, 0])
    metadata = make_metadata(step, ids, share.plan, Axes(engine.policy.axis))
    metadata.horizon = share.plan.lookahead - int(engine.describe()["shift"])
    metadata.epoch = 0 if engine.options.frozen_epoch else run_position.epoch
    return metadata


def _make_facts(batch: SequenceBatch) -> BatchFacts:
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
