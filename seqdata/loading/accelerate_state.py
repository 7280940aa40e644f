"""Hugging Face Accelerate's state of gradients: the end of an epoch of a Loader.

``Accelerator.prepare`` returns a Loader unchanged, and ``accumulate`` lets an update end with the
epoch only where the iteration is known to Accelerate's ``GradientState``. Accelerate is not
imported here: without an ``Accelerator`` in the process nothing happens.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from seqdata.resume_state import EpochProgress


class EpochEnd:
    """What Accelerate asks the loader that is iterated over.

    Args:
        progress: Of the epoch.
    """

    def __init__(self, progress: EpochProgress) -> None:
        self._progress = progress

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the last batch of the epoch has been delivered."""
        return self._progress.is_delivered

    @property
    def remainder(self) -> int:
        """0: no row of the last batch is repeated; -1: ranks may have filler, of weight 0."""
        return 0 if self._progress.share.world.size == 1 else -1


def announce_epoch(progress: EpochProgress, iteration: object) -> None:
    """Make an epoch known to Accelerate, as long as its iteration lives.

    Args:
        progress: Of the epoch, updated with each delivered batch.
        iteration: Delivers the batches.
    """
    module = sys.modules.get("accelerate.state")
    gradient_state: Any = getattr(module, "GradientState", None)
    if gradient_state is None or not gradient_state._shared_state:  # no Accelerator was made
        return
    epoch_end, shared = EpochEnd(progress), gradient_state()
    shared._add_dataloader(epoch_end)
    weakref.finalize(iteration, shared._remove_dataloader, epoch_end).atexit = False
