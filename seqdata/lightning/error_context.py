"""Which batch an evaluation had when its step failed, and what shows that batch.

Place in the flow: the DataModule asks it about exceptions. Reads: the loop that runs. Makes: a line
for a note.
"""

from __future__ import annotations

from lightning.pytorch import Trainer

from seqdata.errors import SEE, step_line
from seqdata.lightning import adapter
from seqdata.lightning.trainer_loader import Iteration, TrainerLoader


def explain_evaluation(trainer: Trainer | None, exception: BaseException) -> None:
    """Say in an exception of a validation, test or prediction step which batch it had."""
    loader = None if trainer is None else evaluated(trainer)
    if loader is not None and isinstance(exception, Exception):
        exception.add_note(f"in {_told(loader)}")


def evaluated(trainer: Trainer) -> TrainerLoader | None:
    """Give the loader of ours whose batch an evaluation step has; None: none has one."""
    if not adapter.is_in_evaluation(trainer):
        return None
    running = [one for one in adapter.playing(trainer) if isinstance(one, Iteration)]
    return running[0].loader if running and running[0].has_batch else None


def shown(loader: TrainerLoader, epoch: int, batch: int) -> str:
    """Give what shows a batch of a loader, as the end of a message; nothing where nothing does."""
    see = loader.player.options.see
    return "" if see is None else f". {SEE}{see(epoch, batch)}"


def _told(loader: TrainerLoader) -> str:
    handed, player = loader.handed, loader.player
    if handed is None:
        return "no batch"
    place, world = handed.begun, player.options.world
    number = player.share(place.epoch, place.position)[handed.step].number
    line = step_line(
        epoch=place.epoch, batch=number, step=handed.step, rank=world.rank, size=world.size
    )
    return f"{line}{shown(loader, place.epoch, number)}"
