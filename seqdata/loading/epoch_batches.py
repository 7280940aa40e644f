"""The batches of one epoch, one after the other; an error takes the place of one batch.

A generator that has raised is at its end: a loop that catches the error and asks again would take
what it had for the whole epoch. Here the next ``next()`` goes on with the batch behind. Place in
the flow: what makes batches below, the iterations of loaders above. Makes: batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from seqdata.errors import ConfigError, IncompleteEpochError, PlanError
from seqdata.sharing import RankPlan

_FATAL_ERRORS = (ConfigError, PlanError)  # what would fail in every batch is raised again


class EpochBatches(Iterator[Any]):
    """The batches of a rank's share of one epoch.

    Nothing happens before the first ``next()``. After an error the next ``next()`` goes on with the
    batch behind the one that could not be made. An error that is not of one batch is raised again,
    and a batch that Ctrl-C interrupted is made again.

    Args:
        make_share: Returns the share.
        make_source: Makes the batches of a share from a step on.
        epoch: For messages.

    Attributes:
        step: The step whose batch comes next; -1 before the first ``next()``.
    """

    def __init__(
        self,
        make_share: Callable[[], RankPlan],
        make_source: Callable[[RankPlan, int], Iterator[Any]],
        epoch: int,
    ) -> None:
        self.step = -1
        self._make_share = make_share
        self._make_source = make_source
        self._epoch = epoch
        self._share: RankPlan | None = None
        self._source: Iterator[Any] | None = None
        self._fatal_error: IncompleteEpochError | None = None  # there is nothing to go on with

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
            self._check_end()
            raise
        except BaseException as error:
            self._source = None
            self._note_error(error)
            raise
        self.step += 1
        return batch

    def close(self) -> None:
        """End the thread and the workers that make batches; there is nothing to ask for then."""
        source, self._source = self._source, None
        if isinstance(source, Generator):
            source.close()

    def _begin(self) -> Iterator[Any]:
        if self._fatal_error is not None:
            raise self._fatal_error.with_traceback(None)
        if self._share is None:
            self._share = self._make_share()
            self.step = self._share.first_step
        self._source = self._make_source(self._share, self.step)
        return self._source

    def _note_error(self, error: BaseException) -> None:
        """Take note of an error in place of a batch."""
        if isinstance(error, IncompleteEpochError):
            self._fatal_error = error
        elif isinstance(error, Exception) and not isinstance(error, _FATAL_ERRORS):
            self.step += 1

    def _check_end(self) -> None:
        """Raise IncompleteEpochError if batches are missing at the end."""
        share = self._share
        if share is None or self.step == len(share):
            return
        self._source = None
        self._fatal_error = IncompleteEpochError(
            f"loader: {self.step - share.first_step} batches of epoch {self._epoch} were "
            f"delivered, {len(share) - share.first_step} were planned; it was shut down while it "
            "played"
        )
        raise self._fatal_error
