"""Adds the batch, and the command that replays it, to an exception of an evaluation step."""

from __future__ import annotations

from lightning.pytorch import Trainer

from seqdata.errors import REPLAY_PREFIX, format_step
from seqdata.lightning import adapter
from seqdata.lightning.trainer_loader import LoaderIterator, TrainerLoader


def add_evaluation_context(trainer: Trainer | None, exception: BaseException) -> None:
    """Add the batch to an exception of a validation, test or prediction step."""
    loader = None if trainer is None else find_evaluated_loader(trainer)
    if loader is not None and isinstance(exception, Exception):
        exception.add_note(f"in {_describe_batch(loader)}")


def find_evaluated_loader(trainer: Trainer) -> TrainerLoader | None:
    """Return the loader whose batch an evaluation step has; None if there is none."""
    if not adapter.is_in_evaluation(trainer):
        return None
    iterators = [
        iterator
        for iterator in adapter.get_active_iterators(trainer)
        if isinstance(iterator, LoaderIterator)
    ]
    return iterators[0].loader if iterators and iterators[0].has_batch else None


def format_replay_hint(loader: TrainerLoader, epoch: int, batch: int) -> str:
    """Return the end of a message with the command that replays a batch; empty without one."""
    hint = loader.engine.options.replay_hint
    return "" if hint is None else f". {REPLAY_PREFIX}{hint(epoch, batch)}"


def _describe_batch(loader: TrainerLoader) -> str:
    batch_ref, engine = loader.last_batch, loader.engine
    if batch_ref is None:
        return "no batch"
    run_position, world = batch_ref.begun_at, engine.options.world
    number = engine.share(run_position.epoch, run_position.position)[batch_ref.step].number
    line = format_step(
        epoch=run_position.epoch,
        batch=number,
        step=batch_ref.step,
        rank=world.rank,
        size=world.size,
    )
    return f"{line}{format_replay_hint(loader, run_position.epoch, number)}"
