"""Information about a batch without reading its tensors, so that nothing waits for a device.

A SequenceBatch has it; for a tuple or dict it is the planned one, which the loader has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from seqdata.batch.batch import SequenceBatch
from seqdata.batch.layouts import LAYOUTS
from seqdata.collators.base import SupportsLayout
from seqdata.lightning.trainer_loader import TrainerLoader
from seqdata.loading.base_engine import StepBatch
from seqdata.loading.options import UpdateSchedule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchInfo:
    """Identity and size of a batch on one rank; of zipped parts, of all of them together.

    Attributes:
        epoch: Epoch of the plan.
        number: Index of the batch in the plan.
        rows: Number of rows, including padding rows.
        width: Timesteps of the longest row.
        tokens: Timesteps that count in the loss.
        real: Timesteps of sequences, without padding rows.
        padded: Timesteps including padding.
        ids: int64 (rows,), indices of the sequences in the base store; on the CPU.
        parts: Name -> information about the batch of each part, if parts are zipped.
    """

    epoch: int
    number: int
    rows: int
    width: int
    tokens: int
    real: int
    padded: int
    ids: Tensor
    parts: Mapping[str, BatchInfo] = field(default_factory=dict)


def get_train_loader(trainer: Trainer) -> TrainerLoader | None:
    """Return the training loader, if it is a TrainerLoader."""
    loader = trainer.train_dataloader
    return loader if isinstance(loader, TrainerLoader) else None


def get_batch_info(batch: Any, loader: TrainerLoader | None) -> BatchInfo | None:
    """Return information about the last batch of a loader; None if nothing is known.

    Args:
        batch: The batch as the model receives it.
        loader: Its loader, if it is a TrainerLoader.
    """
    if _is_known(batch):
        return _make_info(batch)
    return None if loader is None else get_planned_info(loader)


def get_metadata(batch: Any, loader: TrainerLoader | None) -> Any:
    """Return a batch that has ids: the batch itself, or the planned one of a tuple or dict.

    Args:
        batch: The batch as the model receives it.
        loader: Its loader, if it is a TrainerLoader.
    """
    if _is_known(batch) or loader is None:
        return batch
    metadata = _make_metadata(loader)
    return batch if metadata is None else metadata


def get_lr_scale(batch: Any, loader: TrainerLoader | None) -> float | None:
    """Return the ``lr_scale`` of the last batch of a loader; None if it has none.

    Args:
        batch: The batch as the model receives it.
        loader: Its loader, if it is a TrainerLoader.
    """
    if not _is_known(batch):
        batch = None if loader is None else _make_metadata(loader)
    if isinstance(batch, Mapping):  # no part has lanes, whose chunks may vary
        batch = next(iter(batch.values()))
    return None if batch is None else float(batch.lr_scale)


def get_planned_info(loader: TrainerLoader) -> BatchInfo | None:
    """Return the planned information about the last batch of a loader; None if there was none."""
    metadata = _make_metadata(loader)
    if metadata is None:
        return None
    collator: Any = loader.engine.options.collator
    if isinstance(collator, SupportsLayout):
        for batch in metadata.values() if isinstance(metadata, Mapping) else [metadata]:
            batch.layout = collator.layout
    return _make_info(metadata)


def _is_known(batch: Any) -> bool:
    """Return whether a value is a SequenceBatch, or parts that all are."""
    if isinstance(batch, Mapping):
        return bool(batch) and all(isinstance(part, SequenceBatch) for part in batch.values())
    return isinstance(batch, SequenceBatch)


def _make_metadata(loader: TrainerLoader) -> StepBatch | None:
    batch_ref, engine = loader.last_batch, loader.engine
    if batch_ref is None:
        return None
    run_position = batch_ref.start_position
    share = engine.share(run_position.epoch, run_position.position)
    return engine.remake_batch(
        share, run_position.epoch, batch_ref.step, UpdateSchedule(), fill=False
    )


def _make_info(batch: StepBatch) -> BatchInfo:
    if isinstance(batch, Mapping):
        return _join_info({name: _make_info(part) for name, part in batch.items()})
    rows, horizon = len(batch), batch.horizon
    real = int(batch.lengths.sum()) + rows * horizon
    width = batch.padded_length or max(batch.lengths.tolist(), default=0)
    return BatchInfo(
        epoch=batch.epoch,
        number=batch.number,
        rows=rows,
        width=width + horizon,
        tokens=batch.num_tokens,
        real=real if batch.num_tokens else 0,
        padded=rows * (width + horizon) if LAYOUTS[batch.layout].has_rows else real,
        ids=batch.ids,
    )


def _join_info(parts: Mapping[str, BatchInfo]) -> BatchInfo:
    """Return the information about a step of several parts."""
    first, values = next(iter(parts.values())), parts.values()
    return BatchInfo(
        epoch=first.epoch,
        number=first.number,
        rows=sum(info.rows for info in values),
        width=max(info.width for info in values),
        tokens=sum(info.tokens for info in values),
        real=sum(info.real for info in values),
        padded=sum(info.padded for info in values),
        ids=torch.cat([info.ids for info in values]),
        parts=parts,
    )
