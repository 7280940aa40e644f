"""Which batch an evaluation had when its step failed, and what shows that batch."""

from __future__ import annotations

from lightning.pytorch import Trainer

from seqdata.errors import REPLAY_PREFIX, format_step
from seqdata.lightning import adapter
from seqdata.lightning.trainer_loader import LoaderIterator, TrainerLoader


def add_evaluation_context(trainer: Trainer | None, exception: BaseException) -> None:
    """Say in an exception of a validation, test or prediction step which batch it had."""
    loader = None if trainer is None else find_evaluated_loader(trainer)
    if loader is not None and isinstance(exception, Exception):
        exception.add_note(f"in {_describe_batch(loader)}")


def find_evaluated_loader(trainer: Trainer) -> TrainerLoader | None:
    """Return the loader of ours whose batch an evaluation step has; None: none has one."""
    if not adapter.is_in_evaluation(trainer):
        return None
    iterators = [
        iterator
        for iterator in adapter.get_active_iterators(trainer)
        if isinstance(iterator, LoaderIterator)
    ]
    return iterators[0].loader if iterators and iterators[0].has_batch else None


def format_replay_hint(loader: TrainerLoader, epoch: int, batch: int) -> str:
    """Return what shows a batch of a loader, as end of a message; nothing where nothing does."""
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
