"""The iterator over one epoch's batches, which continues after an error in a batch.

A generator ends when it raises: a loop that catches the error and calls ``next()`` would take the
epoch for complete. Here ``next()`` then continues with the next batch. Place in the flow: pipeline
-> EpochBatches -> the user's loop or the Trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from seqdata.errors import ConfigError, IncompleteEpochError, PlanError
from seqdata.sharing import RankPlan

_FATAL_ERRORS = (ConfigError, PlanError)  # errors that every batch would raise


@dataclass(slots=True)
class EpochProgress:
    """The progress of an epoch. It is separate from the iterator, so it holds no thread or worker.

    Attributes:
        epoch: Number of the epoch.
        share: This rank's steps of the epoch.
        step: The step to deliver next; after an error, the step that failed.
        is_probe: Whether the batches are only inspected: a segment does not begin by that.
    """

    epoch: int
    share: RankPlan
    step: int
    is_probe: bool = False

    @property
    def position(self) -> tuple[int, int]:
        """The epoch and the number of its delivered batches; at its end, the next epoch and 0."""
        if self.step == len(self.share):
            return self.epoch + 1, 0
        return self.epoch, self.share.position(self.step)


class EpochBatches(Iterator[Any]):
    """An iterator over a rank's batches of one epoch.

    Nothing happens before the first ``next()``. After an error ``next()`` continues with the batch
    after the failed one. An error that concerns no single batch is raised again, and a batch that
    Ctrl-C interrupted is rebuilt.

    Args:
        begin: Returns the epoch's progress, with the rank's share.
        make_source: Returns an iterator over the batches of a share, from a step.

    Attributes:
        step: The step whose batch comes next; -1 before the first ``next()``.
    """

    def __init__(
        self,
        begin: Callable[[], EpochProgress],
        make_source: Callable[[EpochProgress, int], Iterator[Any]],
    ) -> None:
        self.step = -1
        self._begin_epoch = begin
        self._make_source = make_source
        self._progress: EpochProgress | None = None
        self._source: Iterator[Any] | None = None
        self._fatal_error: IncompleteEpochError | None = None  # nothing to continue with
        self._is_closed = False

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            IncompleteEpochError: If the batches end before the plan does.
            Exception: The error that making the batch raised.
        """
        try:
            source = self._source
            batch = next(self._begin() if source is None else source)
        except StopIteration:
            self._end()
            raise
        except BaseException as error:
            self._source = None
            self._note_error(error)
            raise
        self.step += 1
        if self._progress is not None:
            self._progress.step = self.step
        return batch

    def close(self) -> None:
        """Leave the epoch, as ``break`` does: its thread and workers stop."""
        self._is_closed = True
        source, self._source = self._source, None
        if isinstance(source, Generator):
            source.close()

    def _begin(self) -> Iterator[Any]:
        if self._is_closed:
            return iter(())
        if self._fatal_error is not None:
            raise self._fatal_error.with_traceback(None)
        if self._progress is None:
            self._progress = self._begin_epoch()
            self.step = self._progress.step
        self._source = self._make_source(self._progress, self.step)
        return self._source

    def _note_error(self, error: BaseException) -> None:
        """Record an error in place of a batch."""
        if isinstance(error, IncompleteEpochError):
            self._fatal_error = error
        elif isinstance(error, Exception) and not isinstance(error, _FATAL_ERRORS):
            self.step += 1

    def _end(self) -> None:
        """Record that the epoch is delivered; raise IncompleteEpochError if batches are missing."""
        progress = self._progress
        if progress is None or self._is_closed:
            return
        share = progress.share
        if self.step == len(share):
            progress.step = self.step  # the last batch may have been an error
            return
        self._source = None
        self._fatal_error = IncompleteEpochError(
            f"loader: only {self.step - share.first_step} of {len(share) - share.first_step} "
            f"batches of epoch {progress.epoch} were delivered, because the loader was shut down"
        )
        raise self._fatal_error
