"""The batches of one epoch, one after the other; an error takes the place of one batch.

A generator that has raised is at its end: a loop that catches the error and asks again would take
what it had for the whole epoch. Here the next ``next()`` continues with the batch behind. Place in
the flow: the engine's pipeline below, the user's loop or the Trainer above. Makes: batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from seqdata.errors import ConfigError, IncompleteEpochError, PlanError
from seqdata.sharing import RankPlan

_FATAL_ERRORS = (ConfigError, PlanError)  # what would fail in every batch is raised again


@dataclass(slots=True)
class EpochProgress:
    """How far an epoch was delivered, apart from the iteration: it holds no thread and no worker.

    Attributes:
        epoch: Which one.
        share: This rank's steps of it.
        step: The step that is delivered next; after an error, the one that has failed.
    """

    epoch: int
    share: RankPlan
    step: int

    @property
    def position(self) -> tuple[int, int]:
        """The epoch and the batches of its plan that were delivered; in the end, the next one."""
        if self.step == len(self.share):
            return self.epoch + 1, 0
        return self.epoch, self.share.position(self.step)


class EpochBatches(Iterator[Any]):
    """The batches of a rank's share of one epoch.

    Nothing happens before the first ``next()``. After an error the next ``next()`` continues with
    the batch behind the one that could not be made. An error that is not of one batch is raised
    again, and a batch that Ctrl-C interrupted is made again.

    Args:
        begin: Returns the share, and where its first batch is noted.
        make_source: Makes the batches of a share from a step on.

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
        self._fatal_error: IncompleteEpochError | None = None  # there is nothing to continue with
        self._is_closed = False

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            IncompleteEpochError: If the batches end before the plan does.
            Exception: What making the batch has raised.
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
        """Leave the epoch, as ``break`` does: the thread and the workers end that make batches."""
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
        """Take note of an error in place of a batch."""
        if isinstance(error, IncompleteEpochError):
            self._fatal_error = error
        elif isinstance(error, Exception) and not isinstance(error, _FATAL_ERRORS):
            self.step += 1

    def _end(self) -> None:
        """Note that the epoch is delivered; raise IncompleteEpochError if batches are missing."""
        progress = self._progress
        if progress is None or self._is_closed:
            return
        share = progress.share
        if self.step == len(share):
            progress.step = self.step  # the last batch may have been an error
            return
        self._source = None
        self._fatal_error = IncompleteEpochError(
            f"loader: {self.step - share.first_step} batches of epoch {progress.epoch} were "
            f"delivered, {len(share) - share.first_step} were planned; it was shut down while it "
            "played"
        )
        raise self._fatal_error
